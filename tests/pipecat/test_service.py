"""The Pipecat service in real pipelines: frames, audio, sample rates, metrics.

The engine hums (fake_engine), so that its speech and its duration are known; test_engine.py has the
real engine.
"""

import asyncio

import numpy as np
import pytest
from fake_engine import FRAME_SAMPLES, FakeEngine
from pipecat.frames.frames import (
    AggregatedTextFrame,
    LLMAssistantPushAggregationFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
)
from pipecat.metrics.metrics import (
    ProcessingMetricsData,
    TTFAMetricsData,
    TTFBMetricsData,
    TTSUsageMetricsData,
)
from pipelines import SENTENCE, SPEECH, TOKEN, Run, WavOutput, logged, service, talk
from tolerances import PITCH

from qwen_megakernel.cloning.mixing import mix
from qwen_megakernel.errors import UnknownLanguage, UnknownVoice, UsageError
from qwen_megakernel.pipecat.service import MegakernelTTSService
from qwen_megakernel.voice import Voice

SPEECH_FRAMES = (LLMFullResponseStartFrame, *SPEECH, LLMFullResponseEndFrame)


# ---- frames and audio ----------------------------------------------------------------------------


async def test_a_turn_is_started_spoken_and_stopped_once(mode):
    async with talk(mode) as run:
        await run.turn("Hello there. ", "How are ", "you today?", ends=1)
    assert run.order(*SPEECH_FRAMES) == [*SPEECH_FRAMES]
    assert len({frame.context_id for frame in run.frames(*SPEECH)}) == 1
    told = [each for each in run.frames(AggregatedTextFrame) if type(each) is AggregatedTextFrame]
    assert [frame.text.strip() for frame in told] == ["Hello there.", "How are you today?"]
    assert len(run.engine.streams) == (2 if mode is SENTENCE else 1)


async def test_pcm_arrives_bit_for_bit_in_whole_samples(mode):
    async with talk(mode) as run:
        await run.turn("One two three four. ", "Five six seven, eight nine. ", "Ten.", stops=1)
    assert run.pcm == run.sent
    for frame in run.frames(TTSAudioRawFrame):
        assert (frame.sample_rate, frame.num_channels) == (24000, 1)
        assert len(frame.audio) % 2 == 0


async def test_audio_leaves_while_the_rest_is_being_made(mode):
    async with talk(mode, stall_after=1) as run:
        await run.turn("This sentence is about three seconds long, so we can wait for it.")
        await run.until(TTSAudioRawFrame)
        assert run.engine.streams[0].finish_reason is None
        assert run.engine.streams[0].num_frames < 5
        run.engine.go_on()
        first = run.frames(TTSAudioRawFrame)[0]
        assert len(first.audio) == 2 * FRAME_SAMPLES  # the first chunk is one frame
        await run.until(TTSStoppedFrame)
    assert run.pcm == run.sent


async def test_chunks_have_the_sizes_asked_for():
    async with Run(service(FakeEngine(), first_chunk_frames=2, chunk_frames=5)) as run:
        await run.say("A text that is long enough for some chunks.", stops=1)
    frames = [len(frame.audio) // 2 // FRAME_SAMPLES for frame in run.frames(TTSAudioRawFrame)]
    assert frames[:4] == [2, 4, 5, 5]


async def test_a_speak_frame_is_a_turn_of_its_own(mode):
    async with talk(mode) as run:
        await run.say("Welcome back.", stops=1)
    kinds = (TTSStartedFrame, TTSAudioRawFrame, LLMAssistantPushAggregationFrame, TTSStoppedFrame)
    assert run.order(*kinds) == [*kinds]


async def test_two_utterances_back_to_back_do_not_mix(mode):
    async with talk(mode, rtf=0.1) as run:
        await run.say("The first one.")
        await run.say("And the second one.", stops=2)
    assert run.order(*SPEECH) == 2 * [*SPEECH]
    assert run.pcm == run.sent


async def test_speech_inside_a_turn_waits_for_the_turn(mode):
    async with talk(mode) as run:
        await run.send(LLMFullResponseStartFrame(), LLMTextFrame("One moment please. "))
        await run.say("Bing!")
        await run.send(LLMTextFrame("Here it is."), LLMFullResponseEndFrame(), stops=2)
    started = [frame.context_id for frame in run.frames(TTSStartedFrame)]
    stopped = [frame.context_id for frame in run.frames(TTSStoppedFrame)]
    assert len(set(started)) == 2 and started == stopped
    assert sorted(stream.text.spoken.strip() for stream in run.engine.streams)[0] == "Bing!"


async def test_a_slow_engine_keeps_the_order_of_frames(mode):
    async with talk(mode, rtf=0.6, first_delay_s=0.1) as run:
        await run.turn("Good day. ", "Bye.")
        await run.say("And more.", stops=2)
    assert run.order(*SPEECH) == 2 * [*SPEECH]
    assert run.pcm == run.sent


async def test_a_turn_is_one_request_fed_word_by_word_in_token_mode():
    async with talk(TOKEN, rtf=0.1) as run:
        await run.send(LLMFullResponseStartFrame())
        await run.send(LLMTextFrame("  Hello the"), LLMTextFrame("re my "), LLMTextFrame("fr"))
        await run.until(lambda: [s.text.spoken for s in run.engine.streams] == ["Hello there my "])
        await run.until(TTSAudioRawFrame)  # while the turn's text is still open
        await run.send(LLMTextFrame("iend, 50"), LLMTextFrame("+ of you."))
        await run.send(LLMFullResponseEndFrame(), stops=1)
    assert [stream.text.spoken for stream in run.engine.streams] == [
        "Hello there my friend, 50+ of you."
    ]


async def test_text_transforms_see_whole_words_in_token_mode():
    seen = []

    async def transform(text: str, kind: str) -> str:
        seen.append(text)
        return text.replace("50+", "over fifty")

    async with Run(service(FakeEngine(), TOKEN, text_transforms=[("*", transform)])) as run:
        await run.turn("It has 5", "0", "+ ro", "oms.", stops=1)
    assert "".join(seen) == "It has 50+ rooms." and not {"5", "0", "+ ro"} & set(seen)
    assert run.engine.streams[0].text.spoken == "It has over fifty rooms."


async def test_a_late_llm_stalls_the_request_and_ends_nothing():
    async with talk(TOKEN) as run:
        await run.send(LLMFullResponseStartFrame(), LLMTextFrame("A beginning "))
        await run.until(TTSAudioRawFrame)
        await asyncio.sleep(0.3)
        assert run.order(TTSStoppedFrame) == [] and run.engine.streams[0].finish_reason is None
        await run.send(LLMTextFrame("and an end."), LLMFullResponseEndFrame(), stops=1)
    assert run.engine.streams[0].finish_reason == "eos"
    assert run.pcm == run.sent and len(run.engine.streams) == 1


async def test_a_turn_of_an_in_context_voice_is_one_request_in_token_mode():
    codes = np.zeros((3, 4), np.int64)
    mario = Voice("mario", np.zeros(4, np.float32), codes=codes, transcript="It is me.")
    settings = MegakernelTTSService.Settings(voice="mario")
    with logged() as lines:
        tts = service(FakeEngine(), TOKEN, voices={"mario": mario}, settings=settings)
    assert not lines
    async with Run(tts) as run:
        await run.turn("Hello the", "re. How a", "re you? Fi", "ne", stops=1)
    (stream,) = run.engine.streams
    assert stream.text.spoken == "Hello there. How are you? Fine"
    assert stream.request.voice is mario
    assert run.pcm == run.sent
    assert run.order(TTSStartedFrame, TTSStoppedFrame) == [TTSStartedFrame, TTSStoppedFrame]


def test_the_voices_of_a_service_are_mixed_and_listed():
    own = {name: Voice(name, np.eye(2, dtype=np.float32)[at]) for at, name in enumerate("ab")}
    settings = MegakernelTTSService.Settings(voice="a(3)+b")
    tts = service(FakeEngine(), voices=own, settings=settings)
    assert tts._voice == mix("a(3)+b", [(own["a"], 3), (own["b"], 1)])
    for name in ("mario", "mario+luigi"):
        with pytest.raises(UnknownVoice, match='Unknown voice "mario') as caught:
            settings = MegakernelTTSService.Settings(voice=name)
            service(FakeEngine(), voices={"maria": own["a"]}, settings=settings)
        assert caught.value.why == "The service's own voices: maria."


def test_a_model_and_an_adapter_of_another_type_are_named():
    with pytest.raises(UsageError, match="model is 5; it must be"):
        MegakernelTTSService(model_path=5)
    with pytest.raises(UsageError, match=r"adapter is \['a'\]; it must be"):
        MegakernelTTSService(model_path="demo-voice", adapter=["a"])


def test_an_unknown_language_lists_the_known_ones_once():
    settings = MegakernelTTSService.Settings(language="klingon")
    with pytest.raises(UnknownLanguage) as caught:
        service(FakeEngine(), settings=settings)
    assert caught.value.what.count("auto") == 1


# ---- sample rates --------------------------------------------------------------------------------


async def test_transports_of_every_rate_play_all_audio_at_its_pitch():
    async with asyncio.TaskGroup() as group:
        for rate in (8000, 16000, 24000, 48000):
            group.create_task(_play(rate))


async def _play(rate: int) -> None:
    engine = FakeEngine()
    output = WavOutput(rate, speed=20)
    async with Run(service(engine), output, sample_rate=rate) as run:
        await run.say("Hello there my dear friends.", stops=1)
        assert run.tts.sample_rate == 24000
    heard = np.frombuffer(bytes(output.heard), np.int16).astype(float)
    seconds = len(run.pcm) / 2 / 24000
    assert seconds <= len(heard) / rate < seconds + 0.1, rate  # the last chunk is padded
    spectrum = np.abs(np.fft.rfft(heard[: int(seconds * rate)]))
    assert np.argmax(spectrum) / seconds == pytest.approx(engine.streams[0].pitch, rel=PITCH)


# ---- metrics -------------------------------------------------------------------------------------


async def test_metrics_are_reported_in_sentence_mode():
    async with talk(first_delay_s=0.1, rtf=0.1) as run:
        await run.turn("Hello there. ", "Bye now.", ends=1)
    first, *others = [data.value for data in run.metrics(TTFBMetricsData) if data.value]
    assert 0.1 < first < 0.15 + run.slack_s and not others
    assert len([data for data in run.metrics(ProcessingMetricsData) if data.value]) == 2
    assert [data.value for data in run.metrics(TTSUsageMetricsData)] == [12, 8]
    assert len(run.metrics(TTFAMetricsData)) == 1


async def test_metrics_are_reported_once_a_turn_in_token_mode():
    async with talk(TOKEN, first_delay_s=0.1) as run:
        await run.turn("Hello there. ", "Bye now.", ends=1)
    assert len([data for data in run.metrics(TTFBMetricsData) if data.value]) == 1
    assert [data for data in run.metrics(ProcessingMetricsData) if data.value] == []
    assert [data.value for data in run.metrics(TTSUsageMetricsData)] == [21]
