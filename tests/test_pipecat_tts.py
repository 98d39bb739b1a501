"""The Pipecat service in real pipelines: frames, audio, words, metrics, bad text, settings.

The engine hums (fake_engine), so that what is said and how long it takes are known; the real engine
is in test_pipecat_engine.py.
"""

import asyncio

import numpy as np
import pytest
from fake_engine import FRAME_SAMPLES, FakeEngine
from pipecat.frames.frames import (
    AggregatedTextFrame,
    ErrorFrame,
    LLMAssistantPushAggregationFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    StartFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.metrics.metrics import (
    ProcessingMetricsData,
    TTFAMetricsData,
    TTFBMetricsData,
    TTSUsageMetricsData,
)
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TextAggregationMode
from pipecat.transcriptions.language import Language
from pipecat.utils.errors import ErrorCategory
from pipelines import Run, WavOutput, logged

from qwen_megakernel.errors import (
    EngineBusy,
    EngineClosed,
    GenerationError,
    UnknownLanguage,
    UnknownVoice,
    UsageError,
)
from qwen_megakernel.pipecat_tts import MegakernelTTSService
from qwen_megakernel.voice import Voice

SENTENCE, TOKEN = TextAggregationMode.SENTENCE, TextAggregationMode.TOKEN
Settings = MegakernelTTSService.Settings
BOTH = pytest.mark.parametrize("mode", [SENTENCE, TOKEN], ids=str)

SPEECH_FRAMES = (
    LLMFullResponseStartFrame,
    TTSStartedFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
    LLMFullResponseEndFrame,
)
ICL_VOICE = Voice(
    "mario", np.zeros(4, np.float32), codes=np.zeros((3, 4), np.int64), transcript="It is me."
)


def service(
    engine: FakeEngine, mode: TextAggregationMode = SENTENCE, **options: object
) -> MegakernelTTSService:
    return MegakernelTTSService(engine=engine, text_aggregation_mode=mode, **options)


def sent(engine: FakeEngine) -> bytes:
    return b"".join(stream.sent for stream in engine.streams)


# ---- frames and audio ----------------------------------------------------------------------------


@BOTH
async def test_a_turn_is_started_spoken_and_stopped_once(mode: TextAggregationMode) -> None:
    engine = FakeEngine()
    async with Run(service(engine, mode)) as run:
        await run.turn("Hello there. ", "How are ", "you today?")
        await run.until(LLMFullResponseEndFrame)
    assert run.names(*SPEECH_FRAMES) == [frame.__name__ for frame in SPEECH_FRAMES]
    assert len({frame.context_id for frame in run.frames(*SPEECH_FRAMES[1:4])}) == 1
    assert [
        frame.text.strip()
        for frame in run.frames(AggregatedTextFrame)
        if type(frame) is AggregatedTextFrame
    ] == ["Hello there.", "How are you today?"]
    assert len(engine.streams) == (2 if mode is SENTENCE else 1)


@BOTH
async def test_pcm_arrives_bit_for_bit_in_whole_samples(mode: TextAggregationMode) -> None:
    engine = FakeEngine()
    async with Run(service(engine, mode)) as run:
        await run.turn("One two three four. ", "Five six seven, eight nine. ", "Ten.")
        await run.until(TTSStoppedFrame)
    assert run.pcm == sent(engine)
    for frame in run.frames(TTSAudioRawFrame):
        assert (frame.sample_rate, frame.num_channels) == (24000, 1)
        assert len(frame.audio) % 2 == 0


@BOTH
async def test_audio_leaves_while_the_rest_is_being_made(mode: TextAggregationMode) -> None:
    engine = FakeEngine(rtf=0.2)
    async with Run(service(engine, mode)) as run:
        await run.turn("This sentence is about three seconds long, so we can wait for it.")
        await run.until(TTSAudioRawFrame)
        assert engine.streams[0].finish_reason is None
        assert engine.streams[0].num_frames < 5
        assert len(run.pcm) == 2 * FRAME_SAMPLES  # the first chunk is one frame
        await run.until(TTSStoppedFrame)
    assert run.pcm == sent(engine)


async def test_chunks_have_the_sizes_asked_for() -> None:
    engine = FakeEngine()
    async with Run(service(engine, first_chunk_frames=2, chunk_frames=5)) as run:
        await run.say("A text that is long enough for some chunks.")
        await run.until(TTSStoppedFrame)
    frames = [len(frame.audio) // 2 // FRAME_SAMPLES for frame in run.frames(TTSAudioRawFrame)]
    assert frames[:4] == [2, 4, 5, 5]


@BOTH
async def test_a_speak_frame_is_a_turn_of_its_own(mode: TextAggregationMode) -> None:
    engine = FakeEngine()
    async with Run(service(engine, mode)) as run:
        await run.say("Welcome back.")
        await run.until(TTSStoppedFrame)
    kinds = (TTSStartedFrame, TTSAudioRawFrame, LLMAssistantPushAggregationFrame, TTSStoppedFrame)
    assert run.names(*kinds) == [kind.__name__ for kind in kinds]


@BOTH
async def test_two_utterances_back_to_back_do_not_mix(mode: TextAggregationMode) -> None:
    engine = FakeEngine(rtf=0.1)
    async with Run(service(engine, mode)) as run:
        await run.say("The first one.")
        await run.say("And the second one.")
        await run.until(TTSStoppedFrame, 2)
    assert run.names(TTSStartedFrame, TTSAudioRawFrame, TTSStoppedFrame) == 2 * [
        "TTSStartedFrame",
        "TTSAudioRawFrame",
        "TTSStoppedFrame",
    ]
    assert run.pcm == sent(engine)


@BOTH
async def test_speech_inside_a_turn_waits_for_the_turn(mode: TextAggregationMode) -> None:
    engine = FakeEngine()
    async with Run(service(engine, mode)) as run:
        await run.send(LLMFullResponseStartFrame(), LLMTextFrame("One moment please. "))
        await run.say("Bing!")
        await run.send(LLMTextFrame("Here it is."), LLMFullResponseEndFrame())
        await run.until(TTSStoppedFrame, 2)
    started = [frame.context_id for frame in run.frames(TTSStartedFrame)]
    stopped = [frame.context_id for frame in run.frames(TTSStoppedFrame)]
    assert len(set(started)) == 2 and started == stopped
    assert sorted(stream.text.strip() for stream in engine.streams)[0] == "Bing!"


@BOTH
async def test_a_slow_engine_keeps_the_order_of_frames(mode: TextAggregationMode) -> None:
    engine = FakeEngine(rtf=0.6, first_delay_s=0.1)
    async with Run(service(engine, mode)) as run:
        await run.turn("Good day. ", "Bye.")
        await run.say("And more.")
        await run.until(TTSStoppedFrame, 2)
    assert run.names(TTSStartedFrame, TTSAudioRawFrame, TTSStoppedFrame) == 2 * [
        "TTSStartedFrame",
        "TTSAudioRawFrame",
        "TTSStoppedFrame",
    ]
    assert run.pcm == sent(engine)


async def test_a_turn_is_one_request_fed_word_by_word_in_token_mode() -> None:
    engine = FakeEngine(rtf=0.1)
    async with Run(service(engine, TOKEN)) as run:
        await run.send(LLMFullResponseStartFrame())
        await run.send(LLMTextFrame("  Hello the"), LLMTextFrame("re my "), LLMTextFrame("fr"))
        await run.until(lambda: engine.streams and engine.streams[0].text == "Hello there my ")
        await run.until(TTSAudioRawFrame)  # while the turn's text is still open
        await run.send(LLMTextFrame("iend, 50"), LLMTextFrame("+ of you."))
        await run.send(LLMFullResponseEndFrame())
        await run.until(TTSStoppedFrame)
    assert [stream.text for stream in engine.streams] == ["Hello there my friend, 50+ of you."]


async def test_text_transforms_see_whole_words_in_token_mode() -> None:
    seen = []

    async def transform(text: str, kind: str) -> str:
        seen.append(text)
        return text.replace("50+", "over fifty")

    engine = FakeEngine()
    tts = service(engine, TOKEN, text_transforms=[("*", transform)])
    async with Run(tts) as run:
        await run.turn("It has 5", "0", "+ ro", "oms.")
        await run.until(TTSStoppedFrame)
    assert "".join(seen) == "It has 50+ rooms." and not {"5", "0", "+ ro"} & set(seen)
    assert engine.streams[0].text == "It has over fifty rooms."


async def test_a_late_llm_stalls_the_request_and_ends_nothing() -> None:
    engine = FakeEngine()
    async with Run(service(engine, TOKEN)) as run:
        await run.send(LLMFullResponseStartFrame(), LLMTextFrame("A beginning "))
        await run.until(TTSAudioRawFrame)
        await asyncio.sleep(0.3)
        assert run.names(TTSStoppedFrame) == [] and engine.streams[0].finish_reason is None
        await run.send(LLMTextFrame("and an end."), LLMFullResponseEndFrame())
        await run.until(TTSStoppedFrame)
    assert engine.streams[0].finish_reason == "eos"
    assert run.pcm == sent(engine) and len(engine.streams) == 1


async def test_in_context_voices_are_spoken_by_the_sentence_in_token_mode() -> None:
    engine = FakeEngine()
    voices = {"mario": ICL_VOICE}
    with logged() as lines:
        tts = service(engine, TOKEN, voices=voices, settings=Settings(voice="mario"))
    assert "'mario' is an in-context voice" in lines[0]
    async with Run(tts) as run:
        await run.turn("Hello the", "re. How a", "re you? Fi", "ne")
        await run.until(TTSStoppedFrame)
    assert [stream.text for stream in engine.streams] == ["Hello there.", "How are you?", "Fine"]
    assert all(stream.request.voice is ICL_VOICE for stream in engine.streams)
    assert run.pcm == sent(engine)
    assert run.names(TTSStartedFrame, TTSStoppedFrame) == ["TTSStartedFrame", "TTSStoppedFrame"]


# ---- sample rates --------------------------------------------------------------------------------


async def test_transports_of_every_rate_play_all_audio_at_its_pitch() -> None:
    async with asyncio.TaskGroup() as group:
        for rate in (8000, 16000, 24000, 48000):
            group.create_task(_play(rate))


async def _play(rate: int) -> None:
    engine = FakeEngine()
    output = WavOutput(rate, speed=20)
    async with Run(service(engine), output, sample_rate=rate) as run:
        await run.say("Hello there my dear friends.")
        await run.until(TTSStoppedFrame)
        assert run.tts.sample_rate == 24000
    heard = np.frombuffer(bytes(output.heard), np.int16).astype(float)
    seconds = len(run.pcm) / 2 / 24000
    assert seconds <= len(heard) / rate < seconds + 0.1, rate  # the last chunk is padded
    spectrum = np.abs(np.fft.rfft(heard[: int(seconds * rate)]))
    assert np.argmax(spectrum) / seconds == pytest.approx(engine.streams[0].pitch, rel=0.02)


# ---- words ---------------------------------------------------------------------------------------


SAID = "Hello there my friend. It is a fine day, is it not?"


@BOTH
async def test_every_word_is_told_once_in_order_at_its_time(mode: TextAggregationMode) -> None:
    engine = FakeEngine(letter_s=0.09)
    async with Run(service(engine, mode)) as run:
        await run.turn(SAID[:23], SAID[23:40], SAID[40:])
        await run.until(LLMFullResponseEndFrame)
    words = run.frames(TTSTextFrame)
    assert [word.text for word in words] == (SAID.split())
    times = [word.pts for word in words]
    assert times == sorted(times)
    spoken_s = len(run.pcm) / 2 / 24000
    assert (times[-1] - times[0]) / 1e9 == pytest.approx(spoken_s - 0.09 * 7, abs=0.15)


@BOTH
async def test_words_begin_where_something_can_be_heard(mode: TextAggregationMode) -> None:
    engine = FakeEngine(silent_frames=5)
    async with Run(service(engine, mode)) as run:
        await run.say("Hello there my friend.")
        await run.until(TTSStoppedFrame)
    words = run.frames(TTSTextFrame)
    assert (words[-1].pts - words[0].pts) / 1e9 == pytest.approx(12 / 15, abs=0.1)
    told_late_s = words[0].pts / 1e9 - (run.when(TTSAudioRawFrame)[0] - run.when(StartFrame)[0])
    assert told_late_s == pytest.approx(5 * 0.08, abs=0.1)


@BOTH
async def test_chinese_is_told_by_the_character_and_joined_without_spaces(
    mode: TextAggregationMode,
) -> None:
    engine = FakeEngine()
    async with Run(service(engine, mode, settings=Settings(language=Language.ZH))) as run:
        await run.turn("你好，世", "界。我用 Py", "thon 编程。")
        await run.until(LLMFullResponseEndFrame)
    words = run.frames(TTSTextFrame)
    assert [word.text for word in words][:4] == ["你", "好，", "世", "界。"]
    assert "".join(word.text for word in words) == "你好，世界。我用Python编程。"
    assert all(word.includes_inter_frame_spaces for word in words if word.text != "Python")


async def test_a_word_is_never_timed_before_its_audio_is_heard() -> None:
    engine = FakeEngine()
    async with Run(service(engine)) as run:
        await run.send(LLMFullResponseStartFrame(), LLMTextFrame("Short one. And "))
        await run.until(lambda: engine.streams and engine.streams[0].finish_reason)
        await asyncio.sleep(1.2)  # the LLM pauses until long after the first sentence was heard
        await run.send(LLMTextFrame("now more."), LLMFullResponseEndFrame())
        await run.until(LLMFullResponseEndFrame)
    words = {word.text: word.pts for word in run.frames(TTSTextFrame)}
    assert (words["And"] - words["Short"]) / 1e9 > 1.1
    assert (words["more."] - words["And"]) / 1e9 == pytest.approx(6 / 15, abs=0.1)


# ---- metrics -------------------------------------------------------------------------------------


async def test_metrics_are_reported_in_sentence_mode() -> None:
    engine = FakeEngine(first_delay_s=0.1, rtf=0.1)
    async with Run(service(engine)) as run:
        await run.turn("Hello there. ", "Bye now.")
        await run.until(LLMFullResponseEndFrame)
    first, *others = [data.value for data in run.metrics(TTFBMetricsData) if data.value]
    assert 0.1 < first < 0.15 and not others
    assert len([data for data in run.metrics(ProcessingMetricsData) if data.value]) == 2
    assert [data.value for data in run.metrics(TTSUsageMetricsData)] == [12, 8]
    assert len(run.metrics(TTFAMetricsData)) == 1


async def test_metrics_are_reported_once_a_turn_in_token_mode() -> None:
    engine = FakeEngine(first_delay_s=0.1)
    async with Run(service(engine, TOKEN)) as run:
        await run.turn("Hello there. ", "Bye now.")
        await run.until(LLMFullResponseEndFrame)
    assert len([data for data in run.metrics(TTFBMetricsData) if data.value]) == 1
    assert [data for data in run.metrics(ProcessingMetricsData) if data.value] == []
    assert [data.value for data in run.metrics(TTSUsageMetricsData)] == [21]


# ---- text that is hard or impossible to speak ----------------------------------------------------


@BOTH
@pytest.mark.parametrize("text", ["😀😀", "...", " — ", "\U0001f44d"])
async def test_text_without_sound_is_a_moment_of_silence(
    mode: TextAggregationMode, text: str
) -> None:
    engine = FakeEngine()
    async with Run(service(engine, mode)) as run:
        for _ in range(4):  # after three contexts without audio a service is written off
            await run.turn(text)
        await run.turn("Still here.")
        await run.until(TTSStoppedFrame, 5)
    assert run.errors == []
    audio = run.frames(TTSAudioRawFrame)
    assert not any(any(frame.audio) for frame in audio[:4])
    assert len(engine.streams) == 1 and run.pcm.endswith(engine.streams[0].sent)


@BOTH
@pytest.mark.parametrize("text", ["", "   ", "\n\n"])
async def test_empty_text_is_no_turn_at_all(mode: TextAggregationMode, text: str) -> None:
    engine = FakeEngine()
    async with Run(service(engine, mode)) as run:
        await run.turn(text)
        await run.say(text)
        await run.until(LLMFullResponseEndFrame)
    assert run.frames(TTSStartedFrame, TTSAudioRawFrame) == [] and run.errors == []
    assert engine.streams == []


@BOTH
async def test_emoji_at_the_end_of_a_turn_does_not_keep_it_open(mode: TextAggregationMode) -> None:
    engine = FakeEngine()
    async with Run(service(engine, mode)) as run:
        await run.turn("All done! ", "🎉")
        await run.until(TTSStoppedFrame, timeout_s=2)
    assert run.errors == []


@BOTH
async def test_ten_thousand_characters_are_spoken(mode: TextAggregationMode) -> None:
    engine = FakeEngine(rtf=0, letter_s=0.004)
    text = "A sentence of forty characters in total. " * 244
    async with Run(service(engine, mode)) as run:
        await run.turn(*(text[start : start + 100] for start in range(0, len(text), 100)))
        await run.until(LLMFullResponseEndFrame, timeout_s=10)
    assert run.errors == []
    assert "".join(stream.text for stream in engine.streams).replace(" ", "") == (
        text.replace(" ", "")
    )


@BOTH
async def test_long_speech_is_cut_into_sentences_of_one_context(mode: TextAggregationMode) -> None:
    """Following the words of 10,000 characters at once, Pipecat keeps the loop for a second."""
    engine = FakeEngine(rtf=0, letter_s=0.004)
    text = "A sentence of forty characters in total. " * 100
    tts = service(engine, mode)
    requests = []

    @tts.event_handler("on_tts_request")
    async def on_tts_request(tts: MegakernelTTSService, context_id: str, text: str) -> None:
        requests.append((context_id, text))

    async with Run(tts) as run:
        await run.say(text)
        await run.until(TTSStoppedFrame, timeout_s=10)
    assert len(requests) == 100 and len({context_id for context_id, _ in requests}) == 1
    assert len(engine.streams) == (100 if mode is SENTENCE else 1)
    assert " ".join(stream.text.strip() for stream in engine.streams) == text.strip()
    assert " ".join(word.text for word in run.frames(TTSTextFrame)) == text.strip()
    assert run.names(TTSStartedFrame, TTSStoppedFrame) == ["TTSStartedFrame", "TTSStoppedFrame"]


async def test_markdown_goes_where_the_transform_sends_it_and_the_context_keeps_it() -> None:
    async def plain(text: str, kind: str) -> str:
        return text.replace("*", "")

    engine = FakeEngine()
    async with Run(service(engine, text_transforms=[("*", plain)])) as run:
        await run.turn("This is **very** bold.")
        await run.until(LLMFullResponseEndFrame)
    assert engine.streams[0].text == "This is very bold."
    assert " ".join(f.raw_text or f.text for f in run.frames(TTSTextFrame)) == (
        "This is **very** bold."
    )


# ---- errors --------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("after", [0, 3])
async def test_an_engine_error_ends_its_turn_and_nothing_else(
    mode: TextAggregationMode, after: int
) -> None:
    engine = FakeEngine(fail_after=after)
    async with Run(service(engine, mode)) as run:
        await run.turn("This one goes wrong. ", "All of it.")
        await run.until(TTSStoppedFrame, timeout_s=2)
        engine.fail_after = None
        await run.turn("This one goes well.")
        await run.until(TTSStoppedFrame, 2, timeout_s=2)
    assert {type(frame.exception) for frame in run.errors} == {GenerationError}
    assert {frame.category for frame in run.errors} == {ErrorCategory.SERVER}
    assert run.pcm.endswith(engine.streams[-1].sent) and engine.streams[-1].sent
    assert not engine.speaking


@BOTH
async def test_passing_errors_never_write_the_service_off(mode: TextAggregationMode) -> None:
    engine = FakeEngine(fail_after=0, error=EngineBusy("full"))
    tts = service(engine, mode)
    async with Run(tts) as run:
        for _ in range(5):
            await run.turn("Nobody answers.")
        await run.until(TTSStoppedFrame, 5)
        assert tts.is_usable
    assert {frame.category for frame in run.errors} == {ErrorCategory.RATE_LIMIT}
    assert len(run.errors) == 5


@BOTH
@pytest.mark.parametrize("refusal", [EngineBusy("full"), ZeroDivisionError("a bug")], ids=repr)
async def test_a_refused_request_is_one_error_and_no_open_context(
    mode: TextAggregationMode, refusal: Exception
) -> None:
    engine = FakeEngine(refusal=refusal)
    async with Run(service(engine, mode)) as run:
        await run.turn("Nobody ", "will ", "say ", "this.")
        await run.until(TTSStoppedFrame, timeout_s=2)
        engine.refusal = None
        await run.turn("But this.")
        await run.until(TTSStoppedFrame, 2, timeout_s=2)
    assert [type(frame.exception) for frame in run.errors] == [type(refusal)]
    assert run.pcm.endswith(engine.streams[0].sent)


@BOTH
async def test_a_closed_engine_makes_the_service_unusable(mode: TextAggregationMode) -> None:
    engine = FakeEngine(rtf=0.5)
    tts = service(engine, mode)
    async with Run(tts) as run:
        await run.turn("This is cut short by the end of the engine.")
        await run.until(TTSAudioRawFrame)
        engine.close()
        await run.until(TTSStoppedFrame)
        assert not tts.is_usable
        await run.turn("Nobody can speak this.")
        await run.until(LLMFullResponseEndFrame, 2)
    assert [type(frame.exception) for frame in run.errors] == [EngineClosed]


@BOTH
async def test_a_request_that_can_never_work_waits_for_other_settings(
    mode: TextAggregationMode,
) -> None:
    engine = FakeEngine(fail_after=0, error=UsageError("no"))
    tts = service(engine, mode)
    async with Run(tts) as run:
        await run.turn("Refused.")
        await run.until(TTSStoppedFrame)
        assert not tts.is_usable
        engine.fail_after = None
        await run.send(TTSUpdateSettingsFrame(delta=Settings(seed=3)))
        await run.turn("Accepted.")
        await run.until(TTSStoppedFrame, 2)
        assert tts.is_usable
    assert [frame.category for frame in run.errors] == [ErrorCategory.INVALID_REQUEST]
    assert engine.streams[-1].sent


@BOTH
@pytest.mark.parametrize("after", [0, 3])
async def test_a_stalled_engine_is_given_up(mode: TextAggregationMode, after: int) -> None:
    engine = FakeEngine(stall_after=after)
    async with Run(service(engine, mode, engine_timeout_s=0.2)) as run:
        await run.turn("This one hangs forever.")
        await run.until(TTSStoppedFrame, timeout_s=2)
        engine.stall_after = None
        await run.turn("This one does not.")
        await run.until(TTSStoppedFrame, 2, timeout_s=2)
    assert [frame.exception.what for frame in run.errors] == ["No audio from the engine for 0.2 s."]
    assert not engine.speaking and engine.streams[0].cancelled


async def test_arriving_text_is_progress_for_the_engine_timeout() -> None:
    engine = FakeEngine()
    async with Run(service(engine, TOKEN, engine_timeout_s=0.3)) as run:
        await run.send(LLMFullResponseStartFrame())
        for _ in range(8):
            await run.send(LLMTextFrame("a "))  # too short to make a frame
            await asyncio.sleep(0.1)
        await run.send(LLMFullResponseEndFrame())
        await run.until(TTSStoppedFrame)
    assert run.errors == []


async def test_a_long_wait_for_the_gpu_does_not_end_a_context() -> None:
    engine = FakeEngine(num_slots=1, rtf=0.4)
    first, second = service(engine), service(engine)
    async with Run(first) as one, Run(second) as two:
        await one.say("This keeps the only slot busy for a good while.")
        await one.until(TTSAudioRawFrame)
        await two.say("I wait.")
        await two.until(TTSStoppedFrame)
    assert two.names(TTSStartedFrame, TTSAudioRawFrame, TTSStoppedFrame) == [
        "TTSStartedFrame",
        "TTSAudioRawFrame",
        "TTSStoppedFrame",
    ]
    assert two.errors == []


def test_a_context_must_outlast_a_request() -> None:
    with pytest.raises(UsageError, match="must be longer"):
        service(FakeEngine(), stop_frame_timeout_s=5.0, engine_timeout_s=5.0)


async def test_a_runaway_is_told_honestly() -> None:
    engine = FakeEngine()
    tts = service(engine, settings=Settings(max_frames=4, seed=11))
    ended = []

    @tts.event_handler("on_speech_ended")
    async def on_speech_ended(tts: MegakernelTTSService, context_id: str, stream: object) -> None:
        ended.append((stream.finish_reason, stream.seed))

    with logged() as lines:
        async with Run(tts) as run:
            await run.say("This is longer than four frames.")
            await run.until(TTSStoppedFrame)
    assert ended == [("length", 11)]
    assert "without an end token (length), seed 11" in "".join(lines)
    assert len(run.pcm) == 2 * 4 * FRAME_SAMPLES


async def test_text_behind_the_end_of_its_speech_opens_nothing() -> None:
    engine = FakeEngine()
    async with Run(service(engine, TOKEN, settings=Settings(max_frames=4))) as run:
        await run.send(LLMFullResponseStartFrame(), LLMTextFrame("This is longer than that. "))
        await run.until(lambda: engine.streams and engine.streams[0].finish_reason == "length")
        await run.send(LLMTextFrame("And there is more. "), LLMFullResponseEndFrame())
        await run.until(LLMFullResponseEndFrame)
    assert run.names(TTSStartedFrame, TTSStoppedFrame) == ["TTSStartedFrame", "TTSStoppedFrame"]
    assert len(engine.streams) == 1 and run.errors == []


# ---- settings ------------------------------------------------------------------------------------


async def test_settings_reach_the_engine() -> None:
    engine = FakeEngine()
    settings = Settings(
        voice="vivian",
        language=Language.DE,
        instruct="Whisper.",
        seed=5,
        temperature=0.5,
        subtalker_top_k=9,
    )
    async with Run(service(engine, settings=settings)) as run:
        await run.say("Hallo.")
        await run.until(TTSStoppedFrame)
    request = engine.streams[0].request
    assert (request.voice, request.language, request.instruct) == ("vivian", "german", "Whisper.")
    assert (request.seed, request.sampling.temperature) == (5, 0.5)
    assert request.sampling.subtalker_top_k == 9


@pytest.mark.parametrize(
    ("language", "stored", "splitter"),
    [
        (Language.ZH, "chinese", "zh"),
        (Language.EN_GB, "english", "en"),
        ("Japanese", "japanese", "ja"),
        ("de-AT", "german", "de"),
        (Language.SW, "auto", "sw"),
        ("auto", "auto", "en"),
        (None, "auto", "en"),
    ],
)
async def test_languages_become_names_for_the_model_and_codes_for_the_splitter(
    language: Language | str | None, stored: str, splitter: str
) -> None:
    given = service(FakeEngine(), settings=Settings(language=language))
    assert (given.settings.language, given.text_aggregation_language) == (stored, splitter)
    updated = service(FakeEngine(), settings=Settings(language="english"))
    async with Run(updated) as run:
        await run.send(TTSUpdateSettingsFrame(delta=Settings(language=language)))
        await run.say("Mark.")
        await run.until(TTSStoppedFrame)
    assert (updated.settings.language, updated.text_aggregation_language) == (stored, splitter)


async def test_settings_change_between_sentences() -> None:
    engine = FakeEngine()
    async with Run(service(engine, settings=Settings(voice="aiden"))) as run:
        await run.send(LLMFullResponseStartFrame(), LLMTextFrame("One. Two"))
        await run.send(TTSUpdateSettingsFrame(delta=TTSSettings(voice="vivian")))
        await run.send(TTSUpdateSettingsFrame(delta=Settings(language="zh", temperature=0.1)))
        await run.send(LLMTextFrame(" more."), LLMFullResponseEndFrame())
        await run.until(TTSStoppedFrame)
    one, two = (stream.request for stream in engine.streams)
    assert (one.voice, one.language) == ("aiden", "auto")
    assert (two.voice, two.language, two.sampling.temperature) == ("vivian", "chinese", 0.1)
    assert run.names(TTSStartedFrame, TTSStoppedFrame) == ["TTSStartedFrame", "TTSStoppedFrame"]


async def test_a_change_within_a_token_turn_opens_a_new_context() -> None:
    engine = FakeEngine()
    async with Run(service(engine, TOKEN, settings=Settings(voice="aiden"))) as run:
        await run.send(LLMFullResponseStartFrame(), LLMTextFrame("Before it. "))
        await run.until(TTSStartedFrame)
        await run.send(TTSUpdateSettingsFrame(delta=Settings(voice="vivian")))
        await run.send(LLMTextFrame("After it."), LLMFullResponseEndFrame())
        await run.until(TTSStoppedFrame, 2)
    assert [(stream.request.voice, stream.text) for stream in engine.streams] == [
        ("aiden", "Before it. "),
        ("vivian", "After it."),
    ]
    assert " ".join(frame.text for frame in run.frames(TTSTextFrame)) == "Before it. After it."
    assert run.pcm == sent(engine)


@pytest.mark.parametrize(
    "delta",
    [
        Settings(voice="nobody", seed=3),
        Settings(language="Klingon", seed=3),
        Settings(temperature=-1.0, seed=3),
        Settings(seed=-3),
    ],
    ids=["voice", "language", "sampling", "seed"],
)
async def test_settings_that_cannot_work_are_refused_as_a_whole(delta: TTSSettings) -> None:
    engine = FakeEngine()
    tts = service(engine, settings=Settings(voice="aiden", seed=1))
    async with Run(tts) as run:
        await run.send(TTSUpdateSettingsFrame(delta=delta))
        await run.say("As before.")
        await run.until(TTSStoppedFrame)
        assert tts.is_usable
    assert [type(frame) for frame in run.errors] == [ErrorFrame]
    assert engine.streams[0].request.voice == "aiden" and engine.streams[0].seed == 1


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        (Settings(voice="nobody"), UnknownVoice),
        (Settings(language="Klingon"), UnknownLanguage),
        (Settings(top_p=3.0), UsageError),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(
    settings: TTSSettings, error: type[Exception]
) -> None:
    with pytest.raises(error):
        service(FakeEngine(), settings=settings)


def test_a_model_and_an_engine_are_one_too_many() -> None:
    with pytest.raises(UsageError, match="not both"):
        MegakernelTTSService(model_path="tiny-random", engine=FakeEngine())


async def test_no_setting_is_left_open() -> None:
    tts = service(FakeEngine())
    assert set(tts.settings.given_fields()) == {
        name for name in Settings.__dataclass_fields__ if name not in ("extra", "_aliases")
    }
    assert tts.settings.model == "hum"
