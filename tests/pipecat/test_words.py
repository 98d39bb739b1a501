"""The words that the Pipecat service pushes, and texts that are hard to speak."""

import asyncio

import pytest
from fake_engine import FakeEngine
from pipecat.frames.frames import (
    AggregatedTextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    StartFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipecat.transcriptions.language import Language
from pipecat.utils.string import TextPartForConcatenation, concatenate_aggregated_text
from pipelines import SENTENCE, TOKEN, Run, service, talk
from tolerances import LAST_WORD_SECONDS, WORD_SECONDS

from qwen_megakernel.pipecat.service import MegakernelTTSService

SAID = "Hello there my friend. It is a fine day, is it not?"


# ---- words ---------------------------------------------------------------------------------------


async def test_every_word_is_pushed_once_in_order_at_its_time(mode):
    async with talk(mode, letter_s=0.09) as run:
        await run.turn(SAID[:23], SAID[23:40], SAID[40:], ends=1)
    words = run.frames(TTSTextFrame)
    assert [word.text for word in words] == (SAID.split())
    times = [word.pts for word in words]
    assert times == sorted(times)
    spoken_s = len(run.pcm) / 2 / 24000
    assert (times[-1] - times[0]) / 1e9 == pytest.approx(spoken_s - 0.09 * 7, abs=LAST_WORD_SECONDS)


async def test_words_of_a_sentence_that_is_heard_before_it_is_complete_keep_their_order():
    engine = FakeEngine()
    async with Run(tts := service(engine, TOKEN)) as run:
        add, is_complete, told = tts._add_word_timestamps, asyncio.Event(), []

        async def add_second_word_late(*args: object, **options: object) -> None:
            told.append(args)
            if len(told) == 2:
                await is_complete.wait()
            await add(*args, **options)

        tts._add_word_timestamps = add_second_word_late
        await run.send(LLMFullResponseStartFrame())
        for token in ("It", " is", " half", " past", " nine"):
            await run.send(LLMTextFrame(token))
        await run.until(lambda: len(told) == 2)
        assert run.frames(TTSTextFrame) == []  # words wait for the end of their sentence
        await run.send(LLMFullResponseEndFrame())
        await run.until(TTSTextFrame)
        is_complete.set()
        await run.until(TTSStoppedFrame)
    words = [word.text for word in run.frames(TTSTextFrame)]
    assert words == ["It", "is", "half", "past", "nine"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Great 😀! See you soon.", ["Great 😀!", "See", "you", "soon."]),
        ("Thanks 🎉", ["Thanks 🎉"]),
        ("We did it! 🎉🎉", ["We", "did", "it!", "🎉🎉"]),
        ("Hi 😀 there. Ok 👍! Bye 👋.", ["Hi", "😀", "there.", "Ok 👍!", "Bye 👋."]),
        ("你好 😀！再见。", ["你", "好 😀！", "再", "见。"]),
    ],
)
async def test_emoji_and_marks_that_are_not_heard_are_pushed_once(mode, text, words):
    async with talk(mode) as run:
        await run.turn(*(f"{word} " for word in text.split()), ends=1)
    frames = run.frames(TTSTextFrame)
    assert [frame.text for frame in frames] == words
    assert [frame.raw_text for frame in frames] == words  # what the conversation stores


async def test_words_begin_where_something_can_be_heard(mode):
    async with talk(mode, silent_frames=5) as run:
        await run.say("Hello there my friend.", stops=1)
    words = run.frames(TTSTextFrame)
    assert (words[-1].pts - words[0].pts) / 1e9 == pytest.approx(12 / 15, abs=WORD_SECONDS)
    told_late_s = words[0].pts / 1e9 - (run.when(TTSAudioRawFrame)[0] - run.when(StartFrame)[0])
    assert told_late_s == pytest.approx(5 * 0.08, abs=WORD_SECONDS + run.slack_s)


async def test_chinese_is_pushed_by_the_character_and_joined_without_spaces(mode):
    settings = MegakernelTTSService.Settings(language=Language.ZH)
    async with Run(service(FakeEngine(), mode, settings=settings)) as run:
        await run.turn("你好，世", "界。我用 Py", "thon 编程。", ends=1)
    words = run.frames(TTSTextFrame)
    assert [word.text for word in words][:4] == ["你", "好，", "世", "界。"]
    assert "".join(word.text for word in words) == "你好，世界。我用 Python 编程。"
    assert all(word.includes_inter_frame_spaces for word in words)


async def test_ideographs_within_another_script_keep_the_spaces_around_them(mode):
    async with talk(mode) as run:
        await run.turn("Say 你好 to ", "her. ", "Then go.", ends=1)
    parts = [
        TextPartForConcatenation(word.raw_text, word.includes_inter_frame_spaces)
        for word in run.frames(TTSTextFrame)
    ]
    assert concatenate_aggregated_text(parts) == "Say 你好 to her. Then go."


async def test_a_word_is_never_timed_before_its_audio_is_heard():
    async with talk() as run:
        await run.send(LLMFullResponseStartFrame(), LLMTextFrame("Short one. And "))
        await run.until(lambda: run.engine.streams and run.engine.streams[0].finish_reason)
        await asyncio.sleep(1.2)  # the LLM pauses until long after the first sentence was heard
        await run.send(LLMTextFrame("now more."), LLMFullResponseEndFrame(), ends=1)
    words = {word.text: word.pts for word in run.frames(TTSTextFrame)}
    assert (words["And"] - words["Short"]) / 1e9 > 1.1
    assert (words["more."] - words["And"]) / 1e9 == pytest.approx(6 / 15, abs=WORD_SECONDS)


# ---- text that is hard or impossible to speak ----------------------------------------------------


@pytest.mark.parametrize("text", ["😀😀", "...", " — ", "\U0001f44d"])
async def test_text_without_sound_is_a_moment_of_silence(mode, text):
    async with talk(mode) as run:
        for _ in range(4):  # Pipecat gives a service up after three contexts without audio
            await run.turn(text)
        await run.turn("Still here.", stops=5)
    assert run.errors == []
    audio = run.frames(TTSAudioRawFrame)
    assert not any(any(frame.audio) for frame in audio[:4])
    assert len(run.engine.streams) == 1 and run.pcm.endswith(run.engine.streams[0].sent)


@pytest.mark.parametrize("text", ["", "   ", "\n\n"])
async def test_empty_text_is_no_turn_at_all(mode, text):
    async with talk(mode) as run:
        await run.turn(text)
        await run.say(text, ends=1)
    assert run.frames(TTSStartedFrame, TTSAudioRawFrame) == [] and run.errors == []
    assert run.engine.streams == []


async def test_emoji_at_the_end_of_a_turn_does_not_keep_it_open(mode):
    async with talk(mode) as run:
        await run.turn("All done! ", "🎉", stops=1)  # its limit is below stop_frame_timeout_s
    assert run.errors == []


async def test_ten_thousand_characters_are_spoken(mode):
    engine = FakeEngine(rtf=0, letter_s=0.004)
    text = "A sentence of forty characters in total. " * 244
    async with Run(service(engine, mode)) as run:
        await run.turn(*(text[start : start + 100] for start in range(0, len(text), 100)))
        await run.until(LLMFullResponseEndFrame, timeout_s=60)
    assert run.errors == []
    assert "".join(stream.text.spoken for stream in engine.streams).replace(" ", "") == (
        text.replace(" ", "")
    )


async def test_long_speech_is_cut_into_sentences_of_one_context(mode):
    """With the words of 10,000 characters at once, Pipecat would block the loop for a second."""
    engine = FakeEngine(rtf=0, letter_s=0.004)
    text = "A sentence of forty characters in total. " * 100
    tts = service(engine, mode)
    requests = []

    @tts.event_handler("on_tts_request")
    async def on_tts_request(tts: MegakernelTTSService, context_id: str, text: str) -> None:
        requests.append((context_id, text))

    async with Run(tts) as run:
        await run.say(text, stops=1, timeout_s=60)
    assert len(requests) == 100 and len({context_id for context_id, _ in requests}) == 1
    assert len(engine.streams) == (100 if mode is SENTENCE else 1)
    assert " ".join(stream.text.spoken.strip() for stream in engine.streams) == text.strip()
    assert " ".join(word.text for word in run.frames(TTSTextFrame)) == text.strip()
    assert run.order(TTSStartedFrame, TTSStoppedFrame) == [TTSStartedFrame, TTSStoppedFrame]


async def test_a_long_text_outside_a_turn_is_spoken_to_its_end(mode):
    text = "This is one of its sentences. " * 20
    async with talk(mode) as run:
        await run.send(AggregatedTextFrame(text, "sentence", raw_text=text), stops=1)
    assert [word.text for word in run.frames(TTSTextFrame)] == text.split()
    assert len(run.frames(TTSStartedFrame)) == 1 and run.pcm == run.sent


async def test_a_long_text_that_is_not_spoken_stays_whole():
    code = "def double(number):\n    return 2 * number. Or so.\n" * 20
    async with Run(service(FakeEngine(), skip_text_types=["code"])) as run:
        await run.send(AggregatedTextFrame(code, "code"))
        await run.until(AggregatedTextFrame)
    assert [frame.text for frame in run.frames(AggregatedTextFrame)] == [code]


async def test_markdown_goes_where_the_transform_sends_it_and_the_context_keeps_it():
    async def plain(text: str, kind: str) -> str:
        return text.replace("*", "")

    async with Run(service(FakeEngine(), text_transforms=[("*", plain)])) as run:
        await run.turn("This is **very** bold.", ends=1)
    assert run.engine.streams[0].text.spoken == "This is very bold."
    assert " ".join(f.raw_text or f.text for f in run.frames(TTSTextFrame)) == (
        "This is **very** bold."
    )
