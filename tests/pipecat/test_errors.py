"""The Pipecat service continues after engines fail, stall, refuse or run away."""

import asyncio

import pytest
from fake_engine import FRAME_SAMPLES, FakeEngine
from pipecat.frames.frames import (
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.utils.errors import ErrorCategory
from pipelines import SPEECH, TOKEN, Run, logged, service, talk

from qwen_megakernel.errors import EngineBusy, EngineClosed, GenerationError, GPULost, UsageError
from qwen_megakernel.pipecat.contexts import ContextSpeech
from qwen_megakernel.pipecat.service import MegakernelTTSService

Settings = MegakernelTTSService.Settings


@pytest.mark.parametrize("after", [0, 3])
async def test_an_engine_error_ends_its_turn_and_nothing_else(mode, after):
    async with talk(mode, fail_after=after) as run:
        await run.turn("This one goes wrong. ", "All of it.", stops=1)
        run.engine.fail_after = None
        await run.turn("This one goes well.", stops=2)
    assert {type(frame.exception) for frame in run.errors} == {GenerationError}
    assert {frame.category for frame in run.errors} == {ErrorCategory.SERVER}
    assert run.pcm.endswith(run.engine.streams[-1].sent) and run.engine.streams[-1].sent
    assert not run.engine.speaking


async def test_passing_errors_never_write_the_service_off(mode):
    async with talk(mode, fail_after=0, error=EngineBusy("full")) as run:
        for _ in range(5):
            await run.turn("Nobody answers.")
        await run.until(TTSStoppedFrame, 5)
        assert run.tts.is_usable
    assert {frame.category for frame in run.errors} == {ErrorCategory.RATE_LIMIT}
    assert len(run.errors) == 5


@pytest.mark.parametrize("refusal", [EngineBusy("full"), ZeroDivisionError("a bug")], ids=repr)
async def test_a_refused_request_is_one_error_and_no_open_context(mode, refusal):
    async with talk(mode, refusal=refusal) as run:
        await run.turn("Nobody ", "will ", "say ", "this.", stops=1)
        run.engine.refusal = None
        await run.turn("But this.", stops=2)
    assert [type(frame.exception) for frame in run.errors] == [type(refusal)]
    assert run.pcm.endswith(run.engine.streams[0].sent)


async def test_a_closed_engine_makes_the_service_unusable(mode):
    async with talk(mode, stall_after=1) as run:
        await run.turn("This is cut short by the end of the run.engine.")
        await run.until(TTSAudioRawFrame)
        run.engine.close()
        await run.until(TTSStoppedFrame)
        assert not run.tts.is_usable
        await run.turn("Nobody can speak this.", ends=2)
    assert [type(frame.exception) for frame in run.errors] == [EngineClosed]


@pytest.mark.parametrize("fails", ["at once", "while it speaks"])
async def test_an_engine_that_takes_no_more_requests_makes_the_service_unusable(mode, fails):
    """The end of its turn may go to another service, so that this one's speech ends before."""
    lost = GPULost("The GPU is lost.")
    async with talk(mode, fail_after=1, error=lost) as run:
        run.engine.failure = lost
        if fails == "at once":
            run.engine.refusal = lost
        await run.send(LLMFullResponseStartFrame(), LLMTextFrame("It fails in this one. And"))
        await run.until(TTSStoppedFrame)
        assert not run.tts.is_usable and run.tts.get_audio_contexts() == []
    assert [type(frame.exception) for frame in run.errors] == [GPULost]


async def test_a_request_that_can_never_work_waits_for_other_settings(mode):
    async with talk(mode, fail_after=0, error=UsageError("no")) as run:
        await run.turn("Refused.", stops=1)
        assert not run.tts.is_usable
        run.engine.fail_after = None
        await run.send(TTSUpdateSettingsFrame(delta=Settings(seed=3)))
        await run.turn("Accepted.", stops=2)
        assert run.tts.is_usable
    assert [frame.category for frame in run.errors] == [ErrorCategory.INVALID_REQUEST]
    assert run.engine.streams[-1].sent


@pytest.mark.parametrize("after", [0, 3])
async def test_a_stalled_engine_is_given_up(mode, after):
    async with Run(service(FakeEngine(stall_after=after), mode, engine_timeout_s=1.0)) as run:
        await run.turn("This one hangs forever.", stops=1)
        run.engine.stall_after = None
        await run.turn("This one does not.", stops=2)
    assert [frame.exception.what for frame in run.errors] == ["No audio from the engine for 1 s."]
    assert not run.engine.speaking and run.engine.streams[0].cancelled


async def test_arriving_text_is_progress_for_the_engine_timeout():
    async with Run(service(FakeEngine(), TOKEN, engine_timeout_s=2.0)) as run:
        await run.send(LLMFullResponseStartFrame())
        for _ in range(8):
            await run.send(LLMTextFrame("a "))  # too short for a frame
            await asyncio.sleep(0.3)
        await run.send(LLMFullResponseEndFrame(), stops=1)
    assert run.errors == []


async def test_text_that_comes_just_when_a_request_has_timed_out_is_no_error_of_its_own():
    speech = ContextSpeech(timeout_s=60.0)
    loop = asyncio.get_running_loop()
    reading = loop.create_task(speech.next_chunk(FakeEngine(stall_after=0).stream("Wait.")))
    await asyncio.sleep(0)

    async def end() -> None:
        speech.end_text()

    speech._deadline.reschedule(loop.time())  # the loop ends the wait in its next turn, ...
    ending = loop.create_task(end())  # ... then the text, and only in the turn after it the reader
    with pytest.raises(GenerationError):
        await reading
    await ending


async def test_speech_may_wait_longer_for_that_before_it_than_the_engine_timeout():
    """In TOKEN mode both requests begin at once, and the second one waits for the only slot."""
    engine = FakeEngine(num_slots=1, rtf=0.4)
    async with Run(service(engine, TOKEN, engine_timeout_s=1.0)) as run:
        await run.say("This keeps the only slot busy for longer than the engine may be silent.")
        await run.say("I wait.", stops=2)
    assert run.errors == [] and run.pcm == run.sent


async def test_a_long_wait_for_the_gpu_does_not_end_a_context():
    engine = FakeEngine(num_slots=1, rtf=0.4)
    first, second = service(engine), service(engine)
    async with Run(first) as one, Run(second) as two:
        await one.say("This keeps the only slot busy for a good while.")
        await one.until(TTSAudioRawFrame)
        await two.say("I wait.", stops=1)
    assert two.order(*SPEECH) == [*SPEECH]
    assert two.errors == []


def test_a_context_must_outlast_a_request():
    with pytest.raises(UsageError, match="must be longer"):
        service(FakeEngine(), stop_frame_timeout_s=5.0, engine_timeout_s=5.0)


async def test_a_runaway_is_reported():
    engine = FakeEngine()
    tts = service(engine, settings=Settings(max_frames=4, seed=11))
    ended = []

    @tts.event_handler("on_speech_ended")
    async def on_speech_ended(tts: MegakernelTTSService, context_id: str, stream: object) -> None:
        ended.append((stream.finish_reason, stream.seed))

    with logged() as lines:
        async with Run(tts) as run:
            await run.say("This is longer than four frames.", stops=1)
    assert ended == [("length", 11)]
    assert "without an end token (length), seed 11" in "".join(lines)
    assert len(run.pcm) == 2 * 4 * FRAME_SAMPLES


async def test_text_behind_the_end_of_its_speech_opens_nothing():
    async with Run(service(FakeEngine(), TOKEN, settings=Settings(max_frames=4))) as run:
        await run.send(LLMFullResponseStartFrame(), LLMTextFrame("This is longer than that. "))
        await run.until(lambda: [s.finish_reason for s in run.engine.streams] == ["length"])
        await run.send(LLMTextFrame("And there is more. "), LLMFullResponseEndFrame(), ends=1)
    assert run.order(TTSStartedFrame, TTSStoppedFrame) == [TTSStartedFrame, TTSStoppedFrame]
    assert len(run.engine.streams) == 1 and run.errors == []
