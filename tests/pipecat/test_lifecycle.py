"""The service from its constructor to its cleanup: it starts, ends, and leaks nothing."""

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from unittest.mock import Mock

import pytest
from fake_engine import FakeEngine
from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    StartFrame,
    StopFrame,
    TTSAudioRawFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
)
from pipelines import SENTENCE, SPEECH, TOKEN, Run, WavOutput, service, talk
from tolerances import WORD_SECONDS

from qwen_megakernel.pipecat.contexts import ContextSpeech
from qwen_megakernel.pipecat.service import MegakernelTTSService
from qwen_megakernel.tts_engine import TTSEngine

# ---- ends ----------------------------------------------------------------------------------------


async def test_an_end_frame_waits_for_all_speech(mode):
    async with talk(mode, rtf=0.2) as run:
        await run.turn("These are the last words. ", "Really.")
        await run.finish()
    assert run.pcm == run.sent
    kinds = (TTSAudioRawFrame, TTSStoppedFrame, EndFrame)
    assert run.order(*kinds) == [*kinds]
    assert all(stream.finish_reason == "eos" for stream in run.engine.streams)


async def test_an_end_frame_ends_a_turn_that_the_llm_did_not(mode):
    async with talk(mode) as run:
        await run.send(LLMFullResponseStartFrame(), LLMTextFrame("One. And tw"))
        await run.until(TTSAudioRawFrame)
        await run.finish()  # its limit is less than stop_frame_timeout_s
    assert run.pcm == run.sent
    assert not run.engine.speaking


@pytest.mark.parametrize("interruptible", [True, False])
async def test_a_barge_in_behind_an_end_frame_ends_the_pipeline(mode, interruptible):
    """With Pipecat's own `stop` this hangs until the process is cancelled."""
    async with talk(mode, rtf=0.2) as run:
        await run.say("Goodbye and thank you for the call.", interruptible=interruptible)
        await run.until(TTSAudioRawFrame)
        await run.send(EndFrame())
        await asyncio.sleep(0.05)
        await run.interrupt()
        await run.ended()
    assert len(run.frames(EndFrame)) == 1
    if not interruptible:
        assert run.pcm == run.engine.streams[0].sent
        assert run.engine.streams[0].finish_reason == "eos"


async def test_several_barge_ins_behind_an_end_frame_end_the_pipeline():
    async with talk(TOKEN, rtf=1.0) as run:
        await run.say("Interrupt me.")
        await run.say("You cannot interrupt me.", interruptible=False)
        await run.until(lambda: len(run.engine.speaking) == 2)
        await run.send(EndFrame())
        for _ in range(4):
            await run.interrupt()
            await asyncio.sleep(0.03)
        await run.ended()
    assert run.pcm.endswith(run.engine.streams[1].sent)


@pytest.mark.parametrize("interrupted", [False, True])
async def test_a_service_speaks_in_a_second_pipeline(mode, interrupted):
    """The second pipeline starts after an EndFrame, because Pipecat cannot reuse a cancelled
    service."""
    async with talk(mode, rtf=0.2) as run:
        await run.turn("These are the last words. ", "Really.")
        await run.until(TTSAudioRawFrame)
        await run.send(EndFrame())
        for _ in range(3 if interrupted else 0):
            await run.interrupt()
            await asyncio.sleep(0.01)
        await run.ended()
    before = len(run.sent)
    async with Run(run.tts) as run:
        await run.turn("These are the first ones. ", "Really.")
        await run.until(TTSAudioRawFrame)
        await run.finish()
    assert run.pcm == run.sent[before:]
    assert run.order(*SPEECH, EndFrame) == [*SPEECH, EndFrame]
    begun_s = run.when(TTSAudioRawFrame)[0] - run.when(StartFrame)[0]  # when the clock was at 0
    assert run.frames(TTSTextFrame)[0].pts / 1e9 < begun_s + WORD_SECONDS + run.slack_s
    assert not run.errors


@pytest.mark.parametrize("end", [EndFrame, StopFrame])
async def test_a_second_pipeline_hears_nothing_of_an_unfinished_turn(mode, end):
    """A StopFrame waits for no text that the LLM never sends, and keeps the service as it is."""
    async with talk(mode) as run:
        await run.send(LLMFullResponseStartFrame(), LLMTextFrame("One. And tw"))
        await run.until(TTSAudioRawFrame)
        await run.send(end())
        await run.ended(timeout_s=20)  # less than stop_frame_timeout_s
    async with Run(run.tts) as run:
        await run.turn("Again.", stops=1)
    assert [word.text for word in run.frames(TTSTextFrame)] == ["Again."]
    assert run.pcm == run.engine.streams[-1].sent and run.errors == []


async def test_a_cancel_frame_stops_the_engine_and_the_pipeline(mode):
    async with talk(mode, stall_after=1) as run:
        await run.turn("This is a long sentence that nobody will hear to its end.")
        await run.until(TTSAudioRawFrame)
        await run.worker.cancel()
        await run.ended(timeout_s=20)  # less than engine_timeout_s
    assert not run.engine.speaking and run.engine.streams[0].cancelled


async def test_a_cancel_frame_ends_a_pipeline_that_waits_for_its_end(mode):
    async with talk(mode, stall_after=1) as run:
        await run.say("A long farewell that would take much too long to wait for.")
        await run.until(TTSAudioRawFrame)
        await run.send(EndFrame())
        await asyncio.sleep(0.05)
        await run.worker.pipeline.queue_frame(CancelFrame())
        await run.ended(timeout_s=20)  # less than engine_timeout_s
    assert not run.engine.speaking


@pytest.mark.parametrize("end", ["cancel", "cleanup"])
async def test_cancelling_and_cleaning_up_each_stop_the_engine_at_once(end):
    engine = FakeEngine(rtf=0.5)
    # A processor that was cleaned up passes nothing on, so the worker must stop waiting for it.
    async with Run(tts := service(engine, TOKEN), cancel_timeout_secs=0.2) as run:
        await run.turn("Nobody will hear this to its end, whatever comes next.")
        await run.until(TTSAudioRawFrame)
        await (tts.cancel(CancelFrame()) if end == "cancel" else tts.cleanup())
        assert not engine.speaking
        await run.worker.cancel()
        await run.ended()


async def test_an_interruption_of_nothing_harms_nothing(mode):
    async with talk(mode) as run:
        for _ in range(3):
            await run.interrupt()
        await run.until(InterruptionFrame, 3)
        await run.turn("Hello.", stops=1)
    assert run.pcm == run.engine.streams[0].sent


async def test_frames_keep_their_place_behind_speech(mode):
    async with Run(service(FakeEngine(rtf=0.3), mode), WavOutput(speed=50)) as run:
        await run.turn("One.")
        await run.turn("Two.", ends=2)
    kinds = (LLMFullResponseStartFrame, TTSStartedFrame, TTSStoppedFrame, LLMFullResponseEndFrame)
    assert run.order(*kinds) == 2 * [*kinds]


# ---- engines -------------------------------------------------------------------------------------


async def test_a_shared_engine_stays_open():
    async with talk() as run:
        await run.say("Hello.")
    assert not run.engine.closed


async def test_an_engine_of_its_own_is_loaded_by_name_and_closed(monkeypatch):
    engine = FakeEngine()
    load = Mock(return_value=engine)
    monkeypatch.setattr(TTSEngine, "from_pretrained", load)
    tts = MegakernelTTSService(model_path="tiny-random", chunk_frames=10)  # the seed's call
    async with Run(tts) as run:
        await run.say("Hello.", stops=1)
        assert not engine.closed
    load.assert_called_once_with("tiny-random", adapter=None)
    assert engine.closed


async def test_settings_that_fail_close_the_engine_that_was_loaded(monkeypatch):
    engine = FakeEngine()
    monkeypatch.setattr(TTSEngine, "from_pretrained", lambda model, adapter: engine)
    with pytest.raises(ValueError, match="nobody"):
        MegakernelTTSService(
            model_path="tiny-random", settings=MegakernelTTSService.Settings(voice="nobody")
        )
    assert engine.closed


async def test_cleanup_may_come_twice_and_without_a_start():
    tts = service(FakeEngine())
    await tts.cleanup()
    await tts.cleanup()


# ---- leaks ---------------------------------------------------------------------------------------


@pytest.mark.ci
@pytest.mark.parametrize("mode", [SENTENCE, TOKEN])
async def test_two_hundred_turns_leave_nothing_behind(mode):
    engine = FakeEngine(num_slots=1, letter_s=0.02)
    async with Run(tts := service(engine, mode)) as run:
        await _turns(run, engine, 20)
        await _rest(run)
        before = _counts(run, engine)
        await _turns(run, engine, 200)
        await _rest(run)
        await run.until(lambda: len(asyncio.all_tasks()) <= before["tasks"])
        after = _counts(run, engine)
        assert tts._speeches == {} and tts.get_audio_contexts() == []
    assert not engine.speaking and engine._slots._value == 1
    assert after["threads"] <= before["threads"]
    assert after["speeches"] <= 1  # the worker keeps the last error, and its traceback's frames


async def _turns(run: Run, engine: FakeEngine, count: int) -> None:
    """Turns that end in every way: normally, by barge-in, by error, without sound."""
    for i in range(count):
        engine.fail_after = 1 if i % 7 == 3 else None
        engine.rtf = 0.9 if i % 3 == 1 else 0.01
        stopped = len(run.frames(TTSStoppedFrame))
        await run.turn("One two. ", "🎉" if i % 5 == 2 else "Three four five six.")
        if i % 3 == 1:
            await run.until(lambda: engine.speaking)
            await run.interrupt()
            await run.until(lambda: not engine.speaking)
        else:
            await run.until(TTSStoppedFrame, stopped + 1)


async def _rest(run: Run) -> None:
    """A turn that plays to its end, because Pipecat still renews tasks after the last of
    `_turns`."""
    stopped = len(run.frames(TTSStoppedFrame))
    await run.say("Last.")
    await run.until(TTSStoppedFrame, stopped + 1)
    await asyncio.sleep(0.05)


def _counts(run: Run, engine: FakeEngine) -> dict[str, int]:
    engine.streams.clear()
    for recorder in (run.before, run.after, run.end):
        recorder.log.clear()  # its errors refer to the frames where they were raised
    gc.collect()
    return {
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "speeches": sum(type(thing) is ContextSpeech for thing in gc.get_objects()),
    }


async def test_a_service_that_was_used_can_be_collected():
    async with talk(TOKEN) as run:
        await run.turn("Hello.", stops=1)
    gone = weakref.ref(run.tts)
    del run
    await asyncio.sleep(0)
    gc.collect()
    assert gone() is None


# ---- import --------------------------------------------------------------------------------------


def test_importing_the_service_does_not_load_torch():
    code = "import qwen_megakernel.pipecat.service, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


async def test_the_first_frame_through_is_the_start_frame():
    async with Run(service(FakeEngine())) as run:
        await run.until(StartFrame)
    assert isinstance(run.after.log[0][1], StartFrame)
