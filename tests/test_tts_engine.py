"""The engine: order, look-ahead, closing, errors, fairness, text that arrives late."""

import asyncio
import gc
import itertools
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from tolerances import PCM16

from qwen_megakernel import TTSEngine, guard
from qwen_megakernel.errors import (
    EmptyText,
    EngineClosed,
    GenerationError,
    KernelTimeout,
    OutOfMemory,
    TextTooLong,
    UnknownLanguage,
    UnknownVoice,
    UsageError,
)
from qwen_megakernel.speech_stream import PART_CHARS
from qwen_megakernel.step_loop import MAX_QUEUED_CHUNKS

TEXT = "Hello there, how are you today?"
VOICE = "vivian"


@pytest.fixture(scope="module")
def tts():
    with TTSEngine.from_pretrained("tiny-random", num_slots=3, warmup=False) as engine:
        yield engine


@pytest.fixture(scope="module")
def alone(tts):
    """What seeds 1, 2, 3 give when nobody else speaks."""
    return {seed: speak(tts, seed=seed) for seed in (1, 2, 3)}


def speak(tts, **options):
    return tts.synthesize(TEXT, **({"voice": VOICE, "max_frames": 24} | options))


def wait_until(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)


def test_chunks_are_in_order_ramp_up_and_add_up(tts):
    chunks = list(tts.stream(TEXT, voice=VOICE, seed=4, max_frames=30, text_feed="stepwise"))
    assert [chunk.is_last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    lengths = [chunk.num_frames for chunk in chunks[:-1]]
    assert lengths[:-1] == [1, 2, 4, 8, 10][: len(lengths) - 1]
    starts = list(itertools.accumulate(lengths, initial=0))
    assert [chunk.frame_index for chunk in chunks] == starts
    assert all(len(chunk.samples) == chunk.num_frames * 1920 for chunk in chunks)
    assert all(chunk.samples.dtype == np.int16 for chunk in chunks)
    times = [chunk.t_ms for chunk in chunks]
    assert times == sorted(times)


def test_the_first_chunk_leaves_before_frame_two_is_drawn(tts, monkeypatch):
    """Order of events inside the loop: one frame, its audio, then the next frame."""
    events = []
    loop = tts._loop
    step, send = loop._decoder.step, loop._table.put

    def recording_step(slots, num_frames):
        events.append(("step", num_frames))
        return step(slots, num_frames)

    def recording_put(state, samples, first, count, reason=None):
        events.append(("chunk", count))
        return send(state, samples, first, count, reason)

    monkeypatch.setattr(loop._decoder, "step", recording_step)
    monkeypatch.setattr(loop._table, "put", recording_put)
    speak(tts, seed=5, first_chunk_frames=1)
    assert events[:3] == [("step", 1), ("chunk", 1), ("step", 2)]


@pytest.mark.parametrize(("first", "chunk"), [(1, 1), (1, 10), (3, 25), (2, 3)])
def test_codes_and_audio_do_not_depend_on_chunking(tts, alone, first, chunk):
    other = speak(tts, seed=1, first_chunk_frames=first, chunk_frames=chunk)
    assert np.array_equal(other.codes, alone[1].codes)
    assert np.abs(other.audio - alone[1].audio).max() <= PCM16


def test_the_same_seed_gives_the_same_codes_and_another_does_not(tts, alone):
    assert np.array_equal(speak(tts, seed=2).codes, alone[2].codes)
    assert not np.array_equal(alone[1].codes, alone[2].codes)


def test_a_drawn_seed_is_told_and_repeats_the_stream(tts):
    first = speak(tts)
    again = speak(tts, seed=first.seed)
    assert np.array_equal(first.codes, again.codes)


def test_company_does_not_change_a_bit(tts, alone):
    """Five streams on three slots, started at different times, each with its own chunking."""
    streams = {}
    for index, seed in enumerate((1, 2, 3, 1, 2)):
        streams[index] = (
            seed,
            tts.stream(TEXT, voice=VOICE, seed=seed, max_frames=24, chunk_frames=3 + index),
        )
        time.sleep(0.02)
    for seed, stream in streams.values():
        list(stream)
        assert np.array_equal(stream.codes, alone[seed].codes)


def test_waiting_streams_are_served_oldest_first(tts):
    streams = [tts.stream(TEXT, voice=VOICE, seed=1, max_frames=6) for _ in range(6)]
    for stream in streams:
        list(stream)
    finished = [stream.timings["total"] for stream in streams]
    assert max(finished[:3]) < min(finished[3:])


def test_close_stops_the_stream_and_frees_its_slot(tts):
    stream = tts.stream(TEXT, voice=VOICE, seed=1, max_frames=200)
    next(stream)
    stream.close()
    rest = list(stream)
    assert rest[-1].finish_reason == "cancelled" == stream.finish_reason
    wait_until(lambda: tts._loop.num_active == 0)


@pytest.fixture
def gated(tts, monkeypatch):
    """Lets the plain decoder draw frames one by one: (entered, let_go, frames drawn by slot)."""
    decoder, entered, let_go = (
        tts._loop._decoder._decoder,
        threading.Semaphore(0),
        threading.Event(),
    )
    frames, frame = [], decoder._frame

    def gated_frame(slot, forced):
        frames.append(slot)
        entered.release()
        assert let_go.wait(30)
        return frame(slot, forced)

    monkeypatch.setattr(decoder, "_frame", gated_frame)
    yield entered, let_go, frames
    let_go.set()


def test_close_frees_the_slot_after_the_frame_that_is_being_drawn(tts, gated):
    entered, let_go, frames = gated
    stream = tts.stream(TEXT, voice=VOICE, seed=1, first_chunk_frames=4, max_frames=200)
    assert entered.acquire(timeout=30)  # in the first of the four frames of a step
    stream.close()
    let_go.set()
    assert [chunk.finish_reason for chunk in stream] == ["cancelled"]
    assert frames == [0]


def test_a_neighbour_of_a_closed_stream_loses_nothing(tts, alone, gated):
    entered, let_go, _ = gated
    options = {"voice": VOICE, "max_frames": 24, "chunk_frames": 4}
    keep, drop = tts.stream(TEXT, seed=1, **options), tts.stream(TEXT, seed=2, **options)
    assert entered.acquire(timeout=30)
    drop.close()
    let_go.set()
    list(keep)
    assert np.array_equal(keep.codes, alone[1].codes)


def test_closing_a_finished_stream_interrupts_nobody(tts, monkeypatch):
    stream = tts.stream(TEXT, voice=VOICE, seed=1, max_frames=2)
    list(stream)
    interrupted = []
    monkeypatch.setattr(tts._loop._decoder, "cancel", lambda: interrupted.append(True))
    stream.close()
    assert not interrupted


def test_a_dropped_stream_frees_its_slot(tts):
    stream = tts.stream(TEXT, voice=VOICE, seed=1, max_frames=200)
    next(stream)
    del stream
    gc.collect()
    wait_until(lambda: tts._loop.num_active == 0)


def test_a_waiting_stream_can_be_cancelled(tts):
    busy = [tts.stream(text_open=True, voice=VOICE) for _ in range(3)]
    waiting = tts.stream(TEXT, voice=VOICE)
    waiting.close()
    assert [chunk.finish_reason for chunk in waiting] == ["cancelled"]
    for stream in busy:
        stream.close()
    wait_until(lambda: tts._loop.num_active == 0)


def test_a_slow_reader_pauses_only_itself(tts):
    slow = tts.stream(TEXT, voice=VOICE, seed=1, chunk_frames=1, max_frames=60)
    outbox = slow._state.outbox
    wait_until(lambda: len(outbox) == MAX_QUEUED_CHUNKS or slow.finish_reason)
    quick = speak(tts, seed=2)
    assert quick.finish_reason in ("eos", "length")
    assert len(outbox) <= MAX_QUEUED_CHUNKS + 1
    rest = list(slow)
    assert rest[-1].is_last
    assert np.array_equal(slow.codes[:24], speak(tts, seed=1, max_frames=60).codes[:24])


def test_many_readers_in_threads_get_their_own_audio(tts, alone):
    found = {}

    def read(index):
        found[index] = speak(tts, seed=1 + index % 3)

    threads = [threading.Thread(target=read, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, speech in found.items():
        assert np.array_equal(speech.codes, alone[1 + index % 3].codes)


async def test_async_iteration_gives_the_same_and_leaves_the_loop_free(tts, alone):
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.002)
            ticks += 1

    ticker = asyncio.create_task(tick())
    samples = [
        chunk.samples async for chunk in tts.astream(TEXT, voice=VOICE, seed=1, max_frames=24)
    ]
    ticker.cancel()
    assert np.abs(np.concatenate(samples) / 32768 - alone[1].audio).max() <= PCM16
    assert ticks >= 3


async def test_leaving_an_async_stream_cancels_it(tts):
    async for _ in tts.astream(TEXT, voice=VOICE, max_frames=200):
        break
    gc.collect()
    for _ in range(1000):  # the event loop closes the generator when it gets to it
        await asyncio.sleep(0.01)
        if tts._loop.num_active == 0:
            return
    raise AssertionError("the slot was never freed")


# ---- text that arrives while audio flows out -----------------------------------------------------


@pytest.mark.parametrize("pieces", [["Hello there, how are you today?"], list(TEXT)])
def test_fed_text_gives_the_codes_of_whole_text(tts, pieces):
    whole = speak(tts, seed=6, text_feed="stepwise", max_frames=40)
    stream = tts.stream(text_open=True, voice=VOICE, seed=6, max_frames=40)
    for piece in pieces:
        stream.feed(piece)
    stream.end_text()
    list(stream)
    assert np.array_equal(stream.codes, whole.codes)


@pytest.fixture(scope="module")
def stepwise(tts):
    """A whole text fed stepwise that neither ends at once nor within 24 frames."""
    for seed in range(100):
        speech = speak(tts, seed=seed, text_feed="stepwise")
        if speech.finish_reason == "length":
            return speech
    raise AssertionError("every seed ends early")


def test_audio_flows_before_the_text_is_complete_and_then_stalls(tts, stepwise):
    stream = tts.stream(text_open=True, voice=VOICE, seed=stepwise.seed, max_frames=24)
    stream.feed("Hello there, how are ")
    assert next(stream).num_frames == 1
    wait_until(lambda: not tts._loop._runnable())
    drawn = tts._loop._table.active()[0].num_frames
    time.sleep(0.1)
    assert tts._loop._table.active()[0].num_frames == drawn  # stalled: no pad was added
    stream.feed("you today?")
    stream.end_text()
    list(stream)
    assert np.array_equal(stream.codes, stepwise.codes)


def test_text_that_comes_after_the_end_token_is_spoken_as_a_new_part(tts):
    early = next(
        speech
        for speech in (speak(tts, seed=seed, text_feed="stepwise") for seed in range(100))
        if speech.finish_reason == "eos" and len(speech.codes) < 5
    )
    stream = tts.stream(text_open=True, voice=VOICE, seed=early.seed, max_frames=24)
    stream.feed("Hello there, how are ")
    wait_until(lambda: stream.num_parts and tts._loop._table.active()[0].part is None)
    stream.feed("you today?")
    stream.end_text()
    list(stream)
    assert stream.num_parts == 2
    assert np.array_equal(stream.codes[: len(early.codes)], early.codes)
    assert len(stream.codes) > len(early.codes)


def test_a_long_open_text_is_cut_at_sentences(tts):
    sentence = "This is one of many sentences that follow each other without an end. "
    stream = tts.stream(text_open=True, voice=VOICE, seed=6, max_frames=60)
    for _ in range(3 * PART_CHARS // len(sentence)):
        stream.feed(sentence)
    parts = len(stream._state.parts)
    stream.end_text()
    assert parts >= 2
    list(stream)
    assert stream.finish_reason in ("eos", "length")


def test_an_open_text_without_a_word_is_an_error_of_the_stream(tts):
    stream = tts.stream(text_open=True, voice=VOICE)
    stream.feed(" ... ")
    stream.end_text()
    with pytest.raises(EmptyText):
        list(stream)
    assert stream.finish_reason == "error"


def test_feeding_a_complete_text_is_refused(tts):
    with tts.stream(TEXT, voice=VOICE, max_frames=2) as stream, pytest.raises(UsageError):
        stream.feed("more")


# ---- ends ----------------------------------------------------------------------------------------


def test_max_frames_counts_frames(tts):
    for limit in (1, 2, 7):
        speech = speak(tts, seed=1, max_frames=limit)
        assert len(speech.codes) == limit and speech.finish_reason == "length"
        assert len(speech.audio) == limit * 1920


def test_long_text_is_spoken_in_parts(tts):
    text = " ".join(f"This is sentence number {index} of a long text." for index in range(12))
    speech = tts.synthesize(text, voice=VOICE, seed=1, max_frames=400)
    assert speech.parts >= 2
    whole = tts.synthesize(text, voice=VOICE, seed=1, max_frames=400, split="off")
    assert whole.parts == 1


class Planted:
    """A decoder that never ends: speaks whatever `codes` says. Everything else is the real one."""

    def __init__(self, decoder, codes):
        self._decoder, self._codes, self._frame = decoder, codes, 0

    def __getattr__(self, name):
        return getattr(self._decoder, name)

    def step(self, slots, num_frames):
        result = self._decoder.step(slots, num_frames)
        for index in range(num_frames):
            result.codes[:, index] = self._codes(self._frame + index)
        self._frame += num_frames
        return type(result)(result.codes, (num_frames,) * len(slots), (False,) * len(slots))


@pytest.fixture
def runaway(tts, monkeypatch):
    def plant(codes):
        decoder = tts._loop._decoder._decoder
        monkeypatch.setattr(tts._loop._decoder, "_decoder", Planted(decoder, codes))

    return plant


@pytest.mark.parametrize("chunk_frames", [1, 4, 10])
def test_a_repeating_runaway_is_cut_at_the_same_frame_for_every_chunking(
    tts, runaway, chunk_frames
):
    runaway(lambda frame: 5 + frame % 3)
    speech = tts.synthesize(TEXT * 9, voice=VOICE, split="off", chunk_frames=chunk_frames, seed=1)
    assert speech.finish_reason == "repeat"
    assert len(speech.codes) == guard.REPEAT_FRAMES - 1
    assert len(speech.audio) == len(speech.codes) * 1920


def test_a_runaway_that_varies_is_cut_by_its_texts_budget(tts, runaway):
    runaway(lambda frame: (frame * 7919) % 2000)
    speech = tts.synthesize("Hi.", voice=VOICE, seed=1)
    num_tokens = len(tts._tokenizer.encode("Hi.").body)
    assert speech.finish_reason == "length"
    assert len(speech.codes) == guard.SPARE_FRAMES + guard.FRAMES_PER_TEXT_TOKEN * num_tokens


def test_a_silent_runaway_is_cut_at_the_same_frame_for_every_chunking(tts, runaway, monkeypatch):
    runaway(lambda frame: (frame * 7919) % 2000)
    step = tts._loop._vocoder.step
    monkeypatch.setattr(
        tts._loop._vocoder, "step", lambda codes, states: torch.zeros_like(step(codes, states))
    )
    lengths = []
    for chunk_frames in (1, 7, 10):
        runaway(lambda frame: (frame * 7919) % 2000)
        speech = tts.synthesize(TEXT, voice=VOICE, seed=1, chunk_frames=chunk_frames)
        assert speech.finish_reason == "silence"
        lengths.append(len(speech.codes))
    assert lengths == [guard.SILENT_FRAMES - 1] * 3


def plant(loaded, **tensors):
    """A copy of a checkpoint in which some tensors are changed by a function."""
    changed = {"talker": dict(loaded.talker), "codec_decoder": dict(loaded.codec_decoder)}
    for where, changes in tensors.items():
        for name, change in changes.items():
            changed[where][name] = change(changed[where][name].clone())
    return replace(loaded, **changed)


EOS = 2150  # codec_eos_token_id of tiny-random and of every release


def without_eos(head):
    head[EOS] = 0  # never the best of 2048 random logits
    return head


@pytest.mark.parametrize(
    ("reason", "tensors"),
    [
        ("length", {"talker": {"codec_head.weight": without_eos}}),
        # All logits equal: greedy decoding holds code 0 for ever.
        ("repeat", {"talker": {"codec_head.weight": torch.zeros_like}}),
        (
            "silence",
            {
                "talker": {"codec_head.weight": without_eos},
                "codec_decoder": {
                    "decoder.6.conv.weight": torch.zeros_like,
                    "decoder.6.conv.bias": torch.zeros_like,
                },
            },
        ),
    ],
)
def test_a_runaway_checkpoint_is_stopped_for_its_reason(load_checkpoint, reason, tensors):
    loaded = plant(load_checkpoint("tiny-random"), **tensors)
    with TTSEngine(loaded, backend="torch", warmup=False) as engine:
        greedy = {"do_sample": False, "subtalker_do_sample": False, "repetition_penalty": 1.0}
        text = "Hi there." if reason == "length" else TEXT * 3
        speech = engine.synthesize(text, voice=VOICE, seed=1, split="off", **greedy)
        num_tokens = len(engine._tokenizer.encode(text).body)
    assert speech.finish_reason == reason
    assert len(speech.audio) == len(speech.codes) * 1920
    expected = {
        "length": guard.SPARE_FRAMES + guard.FRAMES_PER_TEXT_TOKEN * num_tokens,
        "repeat": guard.REPEAT_FRAMES - 1,
        "silence": guard.SILENT_FRAMES - 1,
    }
    assert len(speech.codes) == expected[reason]


# ---- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", ["prefill", "step", "vocoder"])
def test_a_fault_ends_its_stream_and_the_engine_goes_on(tts, monkeypatch, stage):
    owner = tts._loop._vocoder if stage == "vocoder" else tts._loop._decoder
    name = "step" if stage == "vocoder" else stage

    def fail(*args, **kwargs):
        raise RuntimeError("planted")

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail)
        stream = tts.stream(TEXT, voice=VOICE, seed=1, max_frames=8)
        with pytest.raises(GenerationError, match="planted"):
            list(stream)
        assert stream.finish_reason == "error"
    assert len(speak(tts, seed=1, max_frames=8).codes) == 8


def test_three_hangs_in_a_row_are_enough(monkeypatch):
    def hang(*args, **kwargs):
        raise KernelTimeout("planted hang")

    with TTSEngine.from_pretrained("tiny-random", warmup=False) as tts:

        def hang_once():
            with monkeypatch.context() as patch:
                patch.setattr(tts._loop._decoder, "step", hang)
                with pytest.raises(KernelTimeout, match="planted hang"):
                    list(tts.stream(TEXT, voice=VOICE, seed=1, max_frames=2))

        hang_once()
        hang_once()
        assert len(speak(tts, seed=1, max_frames=2).codes) == 2  # and the count begins again
        for _ in range(3):
            assert tts.failure is None
            hang_once()
        assert "3 launches in a row hung" in tts.failure.what
        with pytest.raises(KernelTimeout, match=r"takes no more requests.*\n.*planted hang"):
            tts.stream(TEXT, voice=VOICE, seed=1)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"text": ""}, EmptyText),
        ({"text": " \n\t"}, EmptyText),
        ({"text": "🙂👍"}, EmptyText),
        ({"text": "x" * 20_001}, TextTooLong),
        ({"voice": "alloy"}, UnknownVoice),
        ({"language": "klingon"}, UnknownLanguage),
        ({"seed": -1}, UsageError),
        ({"max_frames": 0}, UsageError),
        ({"temperature": 0.0}, UsageError),
        ({"top_p": 1.5}, UsageError),
        ({"text_feed": "backwards"}, UsageError),
        ({"first_chunk_frames": 4, "chunk_frames": 2}, UsageError),
    ],
)
def test_a_bad_request_is_refused_before_any_work(tts, options, error):
    with pytest.raises(error):
        tts.stream(**({"text": TEXT, "voice": VOICE} | options))
    assert tts._loop.num_active == 0


def test_control_characters_do_not_change_the_speech(tts):
    dirty = "\x00Hello\x07 there,\x1b how are you today?\ufeff"
    assert np.array_equal(
        tts.synthesize(dirty, voice=VOICE, seed=1, max_frames=24).codes, speak(tts, seed=1).codes
    )


def test_a_closed_engine_cancels_its_streams_and_refuses_new_ones():
    engine = TTSEngine.from_pretrained("tiny-random", warmup=False)
    speaking = engine.stream(TEXT, voice=VOICE, max_frames=500)
    waiting = engine.stream(TEXT, voice=VOICE)
    next(speaking)
    engine.close()
    engine.close()
    assert list(speaking)[-1].finish_reason == "cancelled"
    assert [chunk.finish_reason for chunk in waiting] == ["cancelled"]
    with pytest.raises(EngineClosed):
        engine.stream(TEXT, voice=VOICE)


def test_codes_are_dumped_where_the_variable_says(tts, tmp_path, monkeypatch):
    path = tmp_path / "codes.tsv"
    monkeypatch.setenv("TTS_DUMP_CODES", str(path))
    speech = speak(tts, seed=1)
    rows = [[int(code) for code in line.split("\t")] for line in path.read_text().splitlines()]
    assert np.array_equal(np.array(rows), speech.codes)


def test_two_hundred_streams_leave_nothing_behind(tts):
    before = threading.active_count()
    for index in range(200):
        stream = tts.stream("Hi.", voice=VOICE, seed=index, max_frames=1)
        if index % 3:
            list(stream)
        else:
            stream.close()
    wait_until(lambda: tts._loop.num_active == 0)
    assert threading.active_count() == before


def test_a_stream_keeps_its_engine_alive_and_a_dropped_engine_stops():
    stream = TTSEngine.from_pretrained("tiny-random", warmup=False).stream(
        TEXT, voice=VOICE, seed=1, max_frames=12
    )
    gc.collect()
    assert list(stream)[-1].finish_reason == "length"
    thread = stream._engine._loop._thread
    del stream
    gc.collect()
    wait_until(lambda: not thread.is_alive())


def test_no_voice_means_the_first_speaker_of_a_custom_voice_model(tts):
    first = tts.default_voice
    assert first in tts.voices
    named = tts.synthesize(TEXT, voice=first, seed=1, max_frames=6)
    assert np.array_equal(tts.synthesize(TEXT, seed=1, max_frames=6).codes, named.codes)


def test_a_failure_to_build_reaches_the_caller_and_leaves_no_thread(monkeypatch):
    from qwen_megakernel import step_loop

    before = threading.active_count()

    def fail():
        raise OutOfMemory("planted")

    with pytest.raises(OutOfMemory, match="planted"):
        step_loop.StepLoop(fail, sample_rate=24000, on_finished=lambda state: None)
    wait_until(lambda: threading.active_count() == before)


def test_decoding_codes_gives_the_streams_audio(tts, alone):
    pcm = tts.decode(alone[1].codes)
    assert np.abs(pcm - alone[1].audio).max() <= PCM16
    with pytest.raises(UsageError):
        tts.decode(np.full((2, 16), 4000))
    assert len(speak(tts, seed=1, max_frames=3).codes) == 3


def test_the_warm_up_fits_an_engine_of_few_frames():
    """Its sentence has more text rows than a part of this engine has frames."""
    with TTSEngine.from_pretrained("tiny-random-base", max_frames=1) as small:
        assert small.synthesize("Hi", text_feed="full", seed=1).finish_reason == "length"
