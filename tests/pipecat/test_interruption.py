"""Barge-in: which speech stops, which goes on, which words the context keeps; shared engines."""

import asyncio
import time

import numpy as np
import pytest
from fake_engine import FakeEngine
from pipecat.frames.frames import (
    BotStoppedSpeakingFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    StartFrame,
    TTSAudioRawFrame,
    TTSSpeakFrame,
    TTSStartedFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    TTSUpdateSettingsFrame,
)
from pipecat.metrics.metrics import TTFBMetricsData
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipelines import SPEECH, TOKEN, Mode, Run, WavOutput, service, talk
from tolerances import WORD_SECONDS

from benchmarks.letters import count_letters

STORY = (
    "Once upon a time there was a very small house at the edge of a wood. ",
    "In it lived a fox who could play the violin. ",
    "Every evening the animals came and sat down in the grass to listen.",
)


async def assert_quiet(run: Run) -> None:
    """Check that no audio is pushed and no slot is held after the interruption."""
    await run.until(InterruptionFrame)
    assert not run.engine.speaking
    num_audio = len(run.frames(TTSAudioRawFrame))
    await asyncio.sleep(0.15)
    assert len(run.frames(TTSAudioRawFrame)) == num_audio


async def test_interruption_before_the_first_audio(mode):
    async with talk(mode, first_delay_s=5.0) as run:
        await run.turn(*STORY)
        await run.until(lambda: run.engine.speaking)
        await run.interrupt()
        await assert_quiet(run)
        run.engine.first_delay_s = 0
        await run.turn("What is it?", stops=1)
    assert run.pcm == run.engine.streams[-1].sent and run.engine.streams[-1].sent
    # The time until the interruption must not count as time to first byte.
    assert all(data.value < 1 + run.slack_s for data in run.metrics(TTFBMetricsData))
    assert len([data for data in run.metrics(TTFBMetricsData) if data.value]) == 1
    assert run.errors == []


async def test_interruption_during_audio(mode):
    async with talk(mode, rtf=1.0) as run:
        await run.turn(*STORY)
        await run.until(TTSAudioRawFrame, 2)
        at = time.monotonic()
        await run.interrupt()
        await assert_quiet(run)
        assert run.when(InterruptionFrame)[0] - at < 0.05 + run.slack_s
        assert all(stream.cancelled for stream in run.engine.streams)
        run.engine.rtf = 0.02
        await run.turn("What is it?", stops=1)
    last = run.engine.streams[-1]
    assert run.pcm.endswith(last.sent) and last.text.spoken == "What is it?"
    contexts = [frame.context_id for frame in run.frames(TTSStartedFrame)]
    assert len(set(contexts)) == 2
    late = [frame for frame in run.frames(TTSAudioRawFrame) if frame.context_id == contexts[0]]
    assert max(run.after.log.index(entry) for entry in run.after.log if entry[1] in late) < (
        next(i for i, entry in enumerate(run.after.log) if isinstance(entry[1], InterruptionFrame))
    )


async def test_interruption_after_audio_costs_nothing(mode):
    async with talk(mode) as run:
        await run.turn("Done.", ends=1)
        await run.interrupt()
        await run.turn("And again.", stops=2)
    assert run.pcm == run.sent
    assert run.errors == []


async def test_interruption_while_the_llm_still_writes(mode):
    async with talk(mode) as run:
        await run.send(LLMFullResponseStartFrame(), LLMTextFrame("It was a dark night. And "))
        await run.until(TTSAudioRawFrame)
        await run.interrupt()
        await assert_quiet(run)
        await run.turn("New turn.", stops=1)
    assert run.engine.streams[-1].text.spoken == "New turn."  # without text of the old turn


async def test_uninterruptible_speech_is_spoken_to_its_end(mode):
    async with talk(mode, stall_after=1) as run:
        await run.say("This call may be recorded.", interruptible=False)
        await run.until(TTSAudioRawFrame)
        await run.interrupt()
        await run.until(InterruptionFrame)
        run.engine.go_on()
        await run.until(TTSStoppedFrame)
    assert run.engine.streams[0].finish_reason == "eos" and run.pcm == run.engine.streams[0].sent
    assert run.order(*SPEECH) == [*SPEECH]


async def test_uninterruptible_speech_survives_in_front_of_interruptible(mode):
    async with talk(mode, stall_after=1) as run:
        await run.say("Keep this one.", interruptible=False)
        await run.say("Drop this one, please, it is long.")
        await run.until(TTSAudioRawFrame)
        await run.interrupt()
        await run.until(InterruptionFrame)
        run.engine.go_on()
        await run.until(TTSStoppedFrame)
        await asyncio.sleep(0.1)
    assert run.pcm == run.engine.streams[0].sent
    assert not run.engine.speaking and run.engine.streams[0].finish_reason == "eos"


async def test_a_turn_is_cancelled_while_settings_are_being_changed():
    """The frame that is being processed is then uninterruptible, so `run_tts` is not cancelled."""
    engine = FakeEngine(rtf=0.5)
    tts = service(engine, TOKEN)
    changing, gate = asyncio.Event(), asyncio.Event()

    async def slow_update(delta: object) -> dict:
        changing.set()
        await gate.wait()
        return {}

    async with Run(tts) as run:
        await run.turn(*STORY)
        await run.until(TTSAudioRawFrame)
        tts._update_settings = slow_update
        await run.send(TTSUpdateSettingsFrame(delta=tts.Settings(seed=1)))
        await run.until(changing.is_set)
        await run.interrupt()
        await assert_quiet(run)
        gate.set()


async def test_the_conversation_remembers_what_was_heard_within_a_word(mode):
    async with asyncio.TaskGroup() as group:  # each takes as long as listening
        for rtf in (0.1, 0.7):
            for pace in (0.05, 0.1):
                group.create_task(_barge_in(mode, rtf, pace))


async def _barge_in(mode: Mode, rtf: float, pace: float) -> None:
    engine = FakeEngine(rtf=rtf, letter_s=pace)
    context = LLMContext()
    output = WavOutput()
    tts = service(engine, mode)
    async with Run(tts, output, LLMContextAggregatorPair(context).assistant()) as run:
        await run.turn(*STORY)
        await run.until(TTSAudioRawFrame)
        await asyncio.sleep(1.6)
        await run.interrupt()
        await run.until(lambda: context.messages)
    heard_s = len(output.heard) / 2 / 24000
    words = " ".join(STORY).split()

    def words_in(seconds: float) -> int:
        ends = [count_letters("".join(words[: i + 1])) * pace for i in range(len(words))]
        return 1 + sum(end < seconds for end in ends)

    remembered = context.messages[0]["content"].split()
    assert remembered == words[: len(remembered)]
    # Time passes in a gap, too, and words are kept by their times; a busy machine passes them late.
    least = words_in(heard_s - run.slack_s) - 1
    most = words_in(heard_s + output.gaps_s) + 1
    assert least <= len(remembered) <= most, (rtf, pace)


async def test_speech_that_was_heard_is_remembered_whole():
    engine = FakeEngine()
    context = LLMContext()
    output = WavOutput()
    tts = service(engine)
    async with Run(tts, output, LLMContextAggregatorPair(context).assistant()) as run:
        await run.turn("Yes, of course. ", "I will.")
        await run.until(lambda: context.messages)
    assert [message["content"] for message in context.messages] == ["Yes, of course. I will."]


async def test_words_after_an_interruption_do_not_wait_for_dropped_audio(mode):
    async with talk(mode, rtf=0) as run:
        await run.turn(*STORY)
        await run.until(TTSStoppedFrame)  # ten seconds of audio have been pushed
        await run.interrupt()
        await run.until(InterruptionFrame)
        num_words, num_audio = len(run.frames(TTSTextFrame)), len(run.frames(TTSAudioRawFrame))
        await run.turn("Yes?", stops=2)
    word = run.frames(TTSTextFrame)[num_words]
    heard_s = run.when(TTSAudioRawFrame)[num_audio] - run.when(StartFrame)[0]
    assert word.pts / 1e9 == pytest.approx(heard_s, abs=WORD_SECONDS + run.slack_s)


# ---- many pipelines, one engine ------------------------------------------------------------------


@pytest.mark.parametrize("num_pipelines", [2, 4])
async def test_pipelines_share_an_engine_without_hearing_each_other(mode, num_pipelines):
    engine = FakeEngine(num_slots=4, rtf=0.2)
    runs = [Run(service(engine, mode)) for _ in range(num_pipelines)]
    async with asyncio.TaskGroup() as group:
        for i, run in enumerate(runs):
            group.create_task(_speak(run, f"This is number {i} speaking."))
    by_text = {stream.text.spoken: stream.sent for stream in engine.streams}
    for i, run in enumerate(runs):
        assert run.pcm == by_text[f"This is number {i} speaking."]
    assert not engine.closed and not engine.speaking


async def _speak(run: Run, text: str) -> None:
    async with run:
        await run.turn(text, stops=1)


async def test_one_interrupted_pipeline_leaves_the_others_undisturbed(mode):
    engine = FakeEngine(num_slots=4, rtf=1.0)
    one, two, three, four = (Run(service(engine, mode)) for _ in range(4))
    async with one, two, three, four:
        for run in (one, two, three, four):
            await run.turn(STORY[1])
        await one.until(TTSAudioRawFrame, 2)
        await one.interrupt()
        await one.until(InterruptionFrame)
        for run in (two, three, four):
            await run.until(TTSStoppedFrame)
    whole = [each for each in engine.streams if each.finish_reason == "eos"]  # in any order
    assert len(whole) == 3 and len(one.pcm) < len(whole[0].sent)
    for run in (two, three, four):
        assert run.pcm in [stream.sent for stream in whole]
        gaps = np.diff(run.when(TTSAudioRawFrame))
        assert max(gaps) < 0.8 + 0.1 + run.slack_s  # a chunk of ten frames


async def test_an_interruption_frees_the_slot_for_the_next_pipeline(mode):
    engine = FakeEngine(num_slots=1, rtf=0.5)
    async with Run(service(engine, mode)) as one, Run(service(engine, mode)) as two:
        await one.turn(*STORY)
        await one.until(TTSAudioRawFrame)
        await two.turn("My turn.")
        at = time.monotonic()
        await one.interrupt()
        await two.until(TTSAudioRawFrame)
        assert two.when(TTSAudioRawFrame)[0] - at < 0.5 + two.slack_s
        await two.until(TTSStoppedFrame)


async def test_the_transport_falls_silent_at_once():
    engine = FakeEngine(rtf=0.1)
    output = WavOutput()
    async with Run(service(engine), output) as run:
        await run.turn(*STORY)
        await run.until(lambda: len(output.heard) > 24000)
        await run.interrupt()

        def arrived(kind: type) -> int:
            return sum(isinstance(frame, kind) for _, frame, _ in run.end.log)

        await run.until(lambda: arrived(InterruptionFrame))
        num_heard = len(output.heard)
        await asyncio.sleep(0.3)
        assert len(output.heard) == num_heard
        await run.until(lambda: arrived(BotStoppedSpeakingFrame))
        assert arrived(BotStoppedSpeakingFrame) == 1


@pytest.mark.parametrize("text", ["Left over. ", "... "])
async def test_text_that_comes_behind_an_interruption_holds_up_nothing(mode, text):
    """Its turn is over, so that no end of the turn follows. Pipecat lets an interruption overtake
    text that has just come to the service."""
    async with talk(mode) as run:
        await run.send(LLMFullResponseStartFrame(), LLMTextFrame("One moment, please. I"))
        await run.until(TTSAudioRawFrame)
        await run.interrupt()
        await run.send(LLMTextFrame(text), LLMFullResponseEndFrame())
        await run.turn("What is it?", ends=2)
        assert not run.engine.speaking and run.tts.get_audio_contexts() == []
    assert run.pcm.endswith(run.engine.streams[-1].sent) and run.errors == []


async def test_a_turn_that_is_interrupted_during_other_speech_is_over():
    """Pipecat returns to the turn after the speech, which itself cannot be interrupted."""
    async with talk(stall_after=1) as run:
        notice = TTSSpeakFrame("Keep this one.")
        notice.interruptible = False
        await run.send(LLMFullResponseStartFrame(), notice)
        await run.until(TTSAudioRawFrame)
        await run.interrupt()
        await run.until(InterruptionFrame)
        run.engine.go_on()
        await run.send(LLMTextFrame("Left over. And"))
        await run.say("Next.", stops=3)  # its limit is below stop_frame_timeout_s
    contexts = [frame.context_id for frame in run.frames(TTSStartedFrame)]
    assert len(set(contexts)) == 3 and run.errors == []


async def test_words_that_come_behind_an_interruption_reach_the_conversation(mode):
    """They are heard, though they are no sentence and their turn is over."""
    async with talk(mode) as run:
        await run.interrupt()
        await run.send(LLMTextFrame("Left over "), LLMFullResponseEndFrame(), stops=1)
    assert [word.text for word in run.frames(TTSTextFrame)] == ["Left", "over"]


async def test_a_service_that_does_not_work_holds_up_nothing(mode):
    """Text behind an interruption opens a context, even if the service then speaks nothing."""
    async with talk(mode) as run:
        await run.tts.set_usable(False)
        await run.send(LLMTextFrame("Left over. And more"), stops=1)
        await run.tts.set_usable(True)
        await run.turn("What is it?", stops=2)
        assert run.tts.get_audio_contexts() == []
    assert run.pcm == run.engine.streams[-1].sent
