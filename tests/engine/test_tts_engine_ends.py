"""The engine: streams and engines that are closed, dropped or fail, and launches that hang."""

import asyncio
import contextlib
import gc
import itertools
import os
import queue
import signal
import sys
import threading
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import tiny_speech
import torch
from tiny_speech import TEXT, VOICE, closed_text, speak, tiny_engine
from tolerances import PCM16
from waiting import wait_until

from qwen_megakernel.engine import step_loop
from qwen_megakernel.engine.slots import SlotTable
from qwen_megakernel.engine.speech import Speech
from qwen_megakernel.engine.stages import Stages
from qwen_megakernel.engine.step_loop import StepLoop
from qwen_megakernel.engine.stream_state import StreamState
from qwen_megakernel.errors import (
    EngineClosed,
    GenerationError,
    GPULost,
    KernelTimeout,
    OutOfMemory,
)
from qwen_megakernel.gpu import driver
from qwen_megakernel.speech_options import SpeechOptions

LONG = 38  # a seed of more chunks than wait for a reader: its speech goes on until it is closed

# ---- what a vocoder gives back -------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_samples_that_are_no_numbers_end_their_stream_alone(cache_folder, monkeypatch, backend):
    with contextlib.closing(tiny_engine(backend=backend, num_slots=2)) as tts:
        expected = speak(tts, seed=2)
        vocoder = tts._loop.stages.vocoder
        inner, seen = vocoder.step, []

        def step(codes, states):
            seen.extend(states)
            pcm = inner(codes, states).clone()
            pcm[[state is seen[0] for state in states]] = torch.nan
            return pcm

        monkeypatch.setattr(vocoder, "step", step)
        options = {"voice": VOICE, "max_frames": 24}
        broken, whole = (tts.stream(TEXT, seed=seed, **options) for seed in (1, 2))
        with pytest.raises(GenerationError, match="Sample 0 of the audio is not a number"):
            list(broken)
        samples = np.concatenate([chunk.samples for chunk in whole])
        assert seen[0] is not seen[-1]
    assert np.abs(samples / np.float32(32768) - expected.audio).max() <= PCM16


# ---- closing -------------------------------------------------------------------------------------


def test_close_stops_the_stream_and_frees_its_slot(tts):
    stream = tts.stream(TEXT, voice=VOICE, seed=LONG)
    next(stream)
    stream.close()
    assert all(len(chunk.samples) for chunk in stream)
    assert stream.finish_reason == "cancelled"
    wait_until(lambda: tts.num_active == 0)


@pytest.fixture
def gated(tts, monkeypatch):
    """A plain decoder that draws frames one by one: (entered, let_go, frames drawn by slot)."""
    if tiny_speech.default_backend != "torch":
        pytest.skip("only the plain decoder has a function that draws one frame of one stream")
    decoder, entered, let_go = (tts._loop.stages.decoder, threading.Semaphore(0), threading.Event())
    frames, frame = [], decoder._frame

    def gated_frame(slot, *options):
        frames.append(slot)
        entered.release()
        assert let_go.wait(30)
        return frame(slot, *options)

    monkeypatch.setattr(decoder, "_frame", gated_frame)
    yield entered, let_go, frames
    let_go.set()


def test_close_frees_the_slot_after_the_frame_that_is_being_drawn(tts, gated):
    entered, let_go, frames = gated
    stream = tts.stream(TEXT, voice=VOICE, seed=1, first_chunk_frames=4, max_frames=200)
    assert entered.acquire(timeout=30)  # in the first of the four frames of a step
    stream.close()
    let_go.set()
    assert list(stream) == [] and stream.finish_reason == "cancelled"
    assert frames == [0]


@pytest.fixture
def alone(tts):
    """The speech of seed 1 without other streams."""
    return speak(tts, seed=1)


def test_a_neighbour_of_a_closed_stream_loses_nothing(tts, alone, gated):
    entered, let_go, _ = gated
    options = {"voice": VOICE, "max_frames": 24, "chunk_frames": 4}
    keep, drop = tts.stream(TEXT, seed=1, **options), tts.stream(TEXT, seed=2, **options)
    assert entered.acquire(timeout=30)
    drop.close()
    let_go.set()
    list(keep)
    assert np.array_equal(keep.codes, alone.codes)


def test_closing_a_finished_stream_interrupts_no_other(tts, monkeypatch):
    stream = tts.stream(TEXT, voice=VOICE, seed=1, max_frames=2)
    list(stream)
    interrupted = []
    monkeypatch.setattr(tts._loop.stages.decoder, "cancel", lambda: interrupted.append(True))
    stream.close()
    assert not interrupted


def test_a_dropped_stream_frees_its_slot(tts):
    stream = tts.stream(TEXT, voice=VOICE, seed=1, max_frames=200)
    next(stream)
    del stream
    gc.collect()
    wait_until(lambda: tts.num_active == 0)


def test_a_stream_that_is_collected_at_any_line_of_the_loop_is_not_forgotten():
    """The collector runs in whichever thread allocates, also in the loop's, before it sleeps."""
    left = -1  # lines of the loop's thread until the stream is closed; -1: no stream is to be

    def trace(frame, event, arg):
        nonlocal left
        left -= event == "line" and left >= 0
        if not left:
            left = -1
            state.cancel()
        return trace

    def count_lines(lines):
        nonlocal left
        left = lines

    threading.settrace(trace)
    decoder = SimpleNamespace(num_slots=1, cancel=lambda: None)
    loop = StepLoop(lambda: Stages(decoder, None, None), on_finished=lambda state: None)
    threading.settrace(None)
    request = SpeechOptions()
    for lines in itertools.count(1):
        text = closed_text(request)
        text.is_closed = False
        state = StreamState(request, text, loop.wake, loop.interrupt, 24000)
        loop.submit(state)
        loop.run(partial(count_lines, lines))
        last = None
        while last != left:  # a slow loop still counts lines
            last = left
            with contextlib.suppress(queue.Empty):
                assert state.outbox.get(timeout=2 if left > 0 else 20) == "cancelled"
                break
        else:
            assert left > 0, f"the loop slept {lines} lines after its call"
            break
    assert lines > 50  # those of a whole turn
    loop.close()


def test_a_waiting_stream_can_be_cancelled(tts):
    busy = [tts.stream(text_open=True, voice=VOICE) for _ in range(3)]
    waiting = tts.stream(TEXT, voice=VOICE)
    waiting.close()
    assert list(waiting) == [] and waiting.finish_reason == "cancelled"
    for stream in busy:
        stream.close()
    wait_until(lambda: tts.num_active == 0)


def test_of_two_equal_requests_that_wait_the_right_one_is_cancelled(tts, alone):
    busy = [tts.stream(text_open=True, voice=VOICE) for _ in range(3)]
    keep, drop = (tts.stream(TEXT, voice=VOICE, seed=1, max_frames=24) for _ in range(2))
    drop.close()
    assert list(drop) == [] and drop.finish_reason == "cancelled"
    for stream in busy:
        stream.close()
    list(keep)
    assert np.array_equal(keep.codes, alone.codes)


def state(**facts):
    request = SpeechOptions()
    made = StreamState(request, closed_text(request), lambda: None, lambda: None, 24000)
    for name, value in facts.items():
        setattr(made, name, value)
    return made


def test_held_speech_that_cannot_be_delivered_ends_its_stream_alone():
    table = SlotTable(1, on_finished=lambda state: None, look_again=lambda: None)
    broken = state(holds=True, held=[None])
    whole = state(holds=True)
    table.waiting.extend([broken, whole])
    table.release_held()
    assert isinstance(broken.outbox.get(), GenerationError)
    assert not whole.holds and list(table.waiting) == [whole]


def test_streams_may_join_the_queue_while_it_is_looked_through():
    ended, done = [], threading.Event()
    table = SlotTable(1, on_finished=ended.append, look_again=lambda: None)

    def join_and_leave():
        for index in range(4000):
            table.waiting.append(state(cancelled=index % 8 == 0))
        done.set()

    thread = threading.Thread(target=join_and_leave)
    thread.start()
    while not done.is_set():
        table.drop_cancelled()
    table.drop_cancelled()
    thread.join()
    assert len(ended) == 500 and len(table.waiting) == 3500


async def test_a_stream_is_an_async_context_too(tts):
    async with tts.stream(TEXT, voice=VOICE, seed=LONG) as stream:
        await anext(stream)
    assert all([len(chunk.samples) async for chunk in stream])
    assert stream.finish_reason == "cancelled"


async def test_leaving_an_async_stream_cancels_it(tts):
    async for _ in tts.astream(TEXT, voice=VOICE, max_frames=200):
        break
    gc.collect()
    for _ in range(1000):  # the event loop closes the generator when it gets to it
        await asyncio.sleep(0.01)
        if tts.num_active == 0:
            return
    raise AssertionError("the slot was never freed")


def test_a_reader_whose_event_loop_is_closed_harms_no_other(tts, alone):
    loop = asyncio.new_event_loop()
    stream = tts.stream(TEXT, voice=VOICE, seed=1, max_frames=24)
    stream._state.outbox._waiter = loop, asyncio.Event()
    loop.close()
    assert list(stream) and np.array_equal(stream.codes, alone.codes)


def test_a_closed_engine_cancels_its_streams_and_refuses_new_ones():
    engine = tiny_engine()
    speaking = engine.stream(TEXT, voice=VOICE, seed=LONG)
    waiting = engine.stream(TEXT, voice=VOICE)
    next(speaking)
    engine.close()
    engine.close()
    list(speaking)
    assert speaking.finish_reason == "cancelled"
    assert list(waiting) == [] and waiting.finish_reason == "cancelled"
    with pytest.raises(EngineClosed):
        engine.stream(TEXT, voice=VOICE)


async def test_close_ends_the_threads_and_what_was_spoken_can_still_be_read():
    before, engine = set(threading.enumerate()), tiny_engine()
    stream = engine.stream(TEXT, voice=VOICE, seed=1, max_frames=24, speed=1.1)
    first = await anext(stream)
    wait_until(lambda: stream.finish_reason)
    engine.close()
    wait_until(lambda: not set(threading.enumerate()) - before)
    rest = [chunk async for chunk in stream]
    assert sum(len(chunk.samples) for chunk in (first, *rest)) > 20000
    assert await stream.times.find()
    wait_until(lambda: not set(threading.enumerate()) - before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_is_refused_instead_of_waiting_for_a_thread_it_has_not(tts, alone):
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        for use in (lambda: next(tts.stream(TEXT, voice=VOICE)), lambda: tts.decode(alone.codes)):
            try:
                use()
                os._exit(1)
            except EngineClosed as error:
                # An engine made here would wait for threads of PyTorch, which a fork lacks.
                if 'get_context("spawn")' not in error.hint:
                    os._exit(2)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert np.array_equal(speak(tts, seed=1).codes, alone.codes)


def test_two_hundred_streams_leave_nothing_behind(tts):
    before = set(threading.enumerate())
    for index in range(200):
        stream = tts.stream("Hi.", voice=VOICE, seed=index, max_frames=1)
        if index % 3:
            list(stream)
        else:
            stream.close()
    wait_until(lambda: tts.num_active == 0)
    assert not set(threading.enumerate()) - before


def test_a_stream_keeps_its_engine_alive_and_a_dropped_engine_stops():
    stream = tiny_engine().stream(TEXT, voice=VOICE, seed=1, max_frames=12)
    gc.collect()
    assert list(stream) and stream.finish_reason == "length"
    thread = stream._engine._loop._thread
    del stream
    gc.collect()
    wait_until(lambda: not thread.is_alive())


# ---- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["prefill", "launch", "vocoder"])
def test_a_fault_ends_its_stream_and_the_engine_goes_on(tts, monkeypatch, stage):
    owner = tts._loop.stages.vocoder if stage == "vocoder" else tts._loop.stages.decoder
    name = "step" if stage == "vocoder" else stage
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, Mock(side_effect=RuntimeError("planted")))
        stream = tts.stream(TEXT, voice=VOICE, seed=1, max_frames=8)
        with pytest.raises(GenerationError, match="planted"):
            list(stream)
        assert stream.finish_reason == "error"
    assert len(speak(tts, seed=1, max_frames=8).codes) == 8


def test_a_fault_at_the_end_of_a_part_ends_its_stream_alone(tts, alone, monkeypatch):
    end_part = StreamState.end_part

    def failing(stream):
        if stream.request.seed == 2:
            raise RuntimeError("planted")
        return end_part(stream)

    monkeypatch.setattr(StreamState, "end_part", failing)
    keep = tts.stream(TEXT, voice=VOICE, seed=1, max_frames=24)
    lose = tts.stream(TEXT, voice=VOICE, seed=2, max_frames=8)
    with pytest.raises(GenerationError, match="planted"):
        list(lose)
    assert np.array_equal(Speech.collect(keep).codes, alone.codes)


def test_a_fault_while_a_stream_ends_reaches_its_reader(monkeypatch):
    with tiny_engine() as tts:
        monkeypatch.setattr(
            tts._loop.table, "_on_finished", Mock(side_effect=ValueError("planted"))
        )
        lose = tts.stream(TEXT, voice=VOICE, seed=1, max_frames=8)
        with pytest.raises(GenerationError, match="planted"):
            list(lose)
        assert lose.finish_reason == "error" and not tts.num_active


class Panic(BaseException):
    """What a fault in code of Rust raises, such as that of tokenizers."""


@pytest.mark.parametrize("where", ["admit", "end_spoken"])
def test_no_reader_waits_for_a_thread_that_has_ended(monkeypatch, where):
    with tiny_engine() as tts:
        with monkeypatch.context() as patch:
            patch.setattr(tts._loop.table, where, Mock(side_effect=Panic("planted")))
            with pytest.raises(GenerationError, match="Panic: planted"):
                list(tts.stream(TEXT, voice=VOICE, seed=1))
        assert len(speak(tts, seed=1, max_frames=8).codes) == 8


def test_a_fault_of_the_loop_itself_reaches_every_stream_and_the_engine_goes_on(tts, monkeypatch):
    table = tts._loop.table

    def broken(vocoder):
        if table.waiting:  # else this turn may belong to an earlier test
            monkeypatch.undo()
            raise RuntimeError("planted")

    monkeypatch.setattr(table, "admit", broken)
    with pytest.raises(GenerationError, match="planted"):
        list(tts.stream(TEXT, voice=VOICE, seed=1))
    assert len(speak(tts, seed=1).codes)


def test_three_hangs_in_a_row_are_enough(monkeypatch):
    hang = Mock(side_effect=KernelTimeout("planted hang"))
    with tiny_engine() as tts:

        def hang_once():
            with monkeypatch.context() as patch:
                patch.setattr(tts._loop.stages.decoder, "launch", hang)
                with pytest.raises(KernelTimeout, match="planted hang"):
                    list(tts.stream(TEXT, voice=VOICE, seed=1, max_frames=2))

        hang_once()
        hang_once()
        assert len(speak(tts, seed=1, max_frames=2).codes) == 2  # the count restarts
        for _ in range(3):
            assert tts.failure is None
            hang_once()
        assert "3 launches in a row hung" in tts.failure.what
        with pytest.raises(KernelTimeout, match=r"takes no more requests.*\n.*planted hang"):
            tts.stream(TEXT, voice=VOICE, seed=1)


def test_a_stream_that_a_step_has_lost_ends_alone_and_one_hang_counts_once(monkeypatch):
    def losing(slots, num_frames):
        result = launch(slots, num_frames)()
        if len(slots) == 3:
            result.codes[1:] = 0  # as if a launch of two streams had hung
            result = replace(
                result,
                num_frames=(result.num_frames[0], 0, 0),
                failures=dict.fromkeys((1, 2), KernelTimeout("planted hang")),
            )
        return lambda: result

    with tiny_engine(num_slots=3) as tts:
        launch = tts._loop.stages.decoder.launch
        monkeypatch.setattr(tts._loop.stages.decoder, "launch", losing)
        options = {"voice": VOICE, "seed": 1, "max_frames": 8}
        expected = speak(tts, **options).codes
        for _ in range(4):
            # Each step of all three streams loses two; the next, of the first alone, is complete.
            wait_until(lambda: not tts.num_active)
            # All are admitted in one turn.
            streams = tts._loop.run(lambda: [tts.stream(TEXT, **options) for _ in range(3)])
            np.testing.assert_array_equal(Speech.collect(streams[0]).codes, expected)
            for stream in streams[1:]:
                with pytest.raises(KernelTimeout, match="planted hang"):
                    list(stream)
            assert tts.failure is None


def test_a_gpu_that_is_lost_takes_no_more_requests(monkeypatch):
    illegal = RuntimeError("CUDA error: an illegal memory access was encountered")
    with tiny_engine() as tts:
        with monkeypatch.context() as patch:
            patch.setattr(tts._loop.stages.decoder, "launch", Mock(side_effect=illegal))
            with pytest.raises(GenerationError, match="illegal memory access"):
                speak(tts, seed=1, max_frames=2)
            assert tts.failure is None  # the GPU answers, so only that stream failed
            patch.setattr(driver, "_answers", lambda: False)
            with pytest.raises(GPULost, match="illegal memory access"):
                speak(tts, seed=1, max_frames=2)
        with pytest.raises(GPULost, match="cannot use it any more"):
            tts.stream(TEXT, voice=VOICE, seed=1)
        assert tts.failure.http_status == 503


def test_a_failure_to_build_reaches_the_caller_and_leaves_no_thread():
    before, fail = set(threading.enumerate()), Mock(side_effect=OutOfMemory("planted"))
    with pytest.raises(OutOfMemory, match="planted"):
        StepLoop(fail, on_finished=lambda state: None)
    wait_until(lambda: not set(threading.enumerate()) - before)


def test_ctrl_c_when_it_has_been_built_leaves_no_thread_with_a_model(monkeypatch):
    before = set(threading.enumerate())

    class InterruptedFuture(Future):
        def result(self, timeout=None):
            super().result(timeout)
            (thread,) = set(threading.enumerate()) - before
            wait_until(lambda: "wait" in sys._current_frames()[thread.ident].f_code.co_name)
            raise KeyboardInterrupt

    monkeypatch.setattr(step_loop, "Future", InterruptedFuture)
    with pytest.raises(KeyboardInterrupt):
        StepLoop(
            lambda: Stages(SimpleNamespace(num_slots=1), None, None), on_finished=lambda state: None
        )
    wait_until(lambda: not set(threading.enumerate()) - before)


def test_ctrl_c_while_it_is_built_leaves_no_thread_with_a_model():
    before, interrupted = set(threading.enumerate()), threading.Event()

    def build():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        assert interrupted.wait(20)
        return Stages(SimpleNamespace(num_slots=1), None, None)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            StepLoop(build, on_finished=lambda state: None)
    finally:
        signal.signal(signal.SIGINT, handler)
        interrupted.set()
    wait_until(lambda: not set(threading.enumerate()) - before)
