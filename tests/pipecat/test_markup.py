"""SSML in a pipeline: pauses, words, divided tags, and turns that go on after an error."""

import numpy as np
import pytest
from fixtures import module_fixture
from pipecat.frames.frames import TTSAudioRawFrame, TTSStoppedFrame, TTSTextFrame
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipelines import Run, service

from qwen_megakernel import TTSEngine
from qwen_megakernel.errors import MarkupError, UsageError
from qwen_megakernel.pipecat.service import MegakernelTTSService

RATE = 24000
FIRST, SECOND = "Your table is ready.", "We will meet you."
SSML = MegakernelTTSService.Settings(text_format="ssml", seed=1)
# Tags begin in one piece and end in another, and one element holds two sentences.
PIECES = (
    "<speak>Your ta",
    "ble is ready. <bre",
    'ak time="700ms',
    '"/> <prosody rate="fast">We ',
    "will meet you.</prosody></spe",
    "ak>",
)

engine = module_fixture(lambda: TTSEngine.from_pretrained("demo-voice", backend="cpu", num_slots=2))


def longest_silence(pcm: bytes) -> tuple[int, int]:
    """First sample and length of the longest run of zeros."""
    silent = np.concatenate([[1], np.frombuffer(pcm, "<i2"), [1]]) == 0
    edges = np.flatnonzero(np.diff(silent.astype(np.int8))).reshape(-1, 2)
    first, end = max(edges.tolist(), key=lambda edge: edge[1] - edge[0])
    return first, end - first


async def test_a_turn_with_markup_has_its_pause_and_its_words(mode, engine):
    async with Run(service(engine, mode, settings=SSML)) as run:
        await run.turn(*PIECES, ends=1)
    assert run.errors == []
    first, length = longest_silence(run.pcm)
    assert length >= 0.7 * RATE
    words = run.frames(TTSTextFrame)
    assert [word.text for word in words] == f"{FIRST} {SECOND}".split()
    begins = [(word.pts - words[0].pts) / 1e9 for word in words]
    assert begins == sorted(begins)
    assert begins[4] >= (first + length) / RATE - 0.3  # after the pause


@pytest.mark.parametrize(
    ("text_format", "text"),
    [("pauses", "It is ready. [pause 1s] Good."), ("script", "demo: It is ready.\ndemo: Good.")],
)
async def test_pauses_and_names_of_speakers_stay_in_the_conversation(
    mode, engine, text_format, text
):
    settings = MegakernelTTSService.Settings(text_format=text_format, seed=1)
    async with Run(service(engine, mode, settings=settings)) as run:
        await run.turn(text, ends=1)
    assert run.errors == []
    told = " ".join(word.text for word in run.frames(TTSTextFrame))
    assert told == text.replace("\n", " ")


async def test_words_have_the_times_that_the_stream_has(mode, engine):
    streams, told = [], []
    tts = service(engine, mode, settings=MegakernelTTSService.Settings(seed=1))
    tts._heard_s = lambda context_id: -100.0  # no word is due before the end of the audio
    add = tts.add_word_timestamps

    async def noting_add(words: list[tuple[str, float]], *args: object, **options: object) -> None:
        told.extend(words)
        await add(words, *args, **options)

    tts.add_word_timestamps = noting_add

    @tts.event_handler("on_speech_ended")
    async def on_speech_ended(_: object, context_id: str, stream: object) -> None:
        streams.append(stream)

    async with Run(tts) as run:
        await run.turn("It is 3:05 pm and your table for two is ready.", ends=1)
    assert told == [(word.word, word.start) for word in streams[0].times.words]
    assert len({start for _, start in told}) == len(told) == 11


async def test_a_speech_of_its_own_may_have_markup(mode, engine):
    async with Run(service(engine, mode, settings=SSML)) as run:
        await run.say(f'{FIRST} <break time="700ms"/> {SECOND}', stops=1)
    assert run.errors == [] and longest_silence(run.pcm)[1] >= 0.7 * RATE


async def test_broken_markup_is_an_error_behind_what_is_spoken_and_the_service_goes_on(
    mode, engine
):
    async with Run(service(engine, mode, settings=SSML)) as run:
        await run.turn(FIRST, " We <break time='", "x'/> will ", "meet you.", " And more.", stops=1)
        (error,) = run.errors
        assert isinstance(error.exception, MarkupError)
        assert "line 1, column 25: break time is 'x'" in error.error
        assert sum(len(frame.audio) for frame in run.frames(TTSAudioRawFrame)) > RATE
        num_words = len(run.frames(TTSTextFrame))
        await run.turn(*PIECES)
        await run.until(lambda: len(run.frames(TTSStoppedFrame)) == 2)
    assert len(run.errors) == 1
    words = [word.text for word in run.frames(TTSTextFrame)]
    assert words[:4] == FIRST.split()
    assert words[num_words:] == f"{FIRST} {SECOND}".split()


async def test_an_unclosed_tag_is_an_error_at_the_end_of_the_turn(mode, engine):
    async with Run(service(engine, mode, settings=SSML)) as run:
        await run.turn(f'<prosody rate="fast">{FIRST}', stops=1)
    (error,) = run.errors
    assert "line 1, column 1: <prosody> is not closed" in error.error


async def test_plain_text_is_never_obeyed(mode, engine):
    async with Run(service(engine, mode)) as run:
        await run.turn('One <break time="1s"/> two.', ends=1)
    assert longest_silence(run.pcm)[1] < RATE / 2 and run.errors == []


async def test_the_conversation_has_what_was_said(engine):
    context = LLMContext()
    tts = service(engine, settings=SSML)
    async with Run(tts, LLMContextAggregatorPair(context).assistant()) as run:
        await run.turn(f'{FIRST} <break time="100ms"/> {SECOND}')
        await run.until(lambda: context.messages)
    assert FIRST in context.messages[0]["content"] and SECOND in context.messages[0]["content"]


def test_another_format_is_refused_at_the_start(engine):
    with pytest.raises(UsageError, match="text_format is 'html'"):
        service(engine, settings=MegakernelTTSService.Settings(text_format="html"))
