"""The engine: order, seeds, many streams, slow readers, and the options of a request."""

import asyncio
import itertools
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from copy import copy, deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures import module_value
from spies import watch
from tiny_speech import TEXT, VOICE, speak, tiny_engine
from tolerances import PCM16
from waiting import wait_until

from qwen_megakernel import TTSEngine
from qwen_megakernel.engine import codes_file
from qwen_megakernel.engine.speech import Speech
from qwen_megakernel.engine.stream_state import MAX_QUEUED_CHUNKS, StreamState
from qwen_megakernel.errors import (
    EmptyText,
    ModelFilesError,
    TextTooLong,
    UnknownLanguage,
    UnknownVoice,
    UsageError,
)
from qwen_megakernel.speech_options import MAX_FACTOR, MAX_TOP_K, MIN_FACTOR
from qwen_megakernel.vocoder.cpu.vocoder import CpuVocoder
from qwen_megakernel.vocoder.vocoder import Vocoder

# The speech of seeds 1, 2, 3 without other streams.
alone = module_value(lambda tts: {seed: speak(tts, seed=seed) for seed in (1, 2, 3)})


def test_chunks_are_in_order_ramp_up_and_add_up(tts):
    chunks = list(tts.stream(TEXT, voice=VOICE, seed=4, max_frames=30, text_feed="stepwise"))
    lengths = [chunk.num_frames for chunk in chunks]
    assert all(lengths)
    assert lengths[:-1] == [1, 2, 4, 8, 10][: len(lengths) - 1]
    starts = list(itertools.accumulate(lengths[:-1], initial=0))
    assert [chunk.frame_index for chunk in chunks] == starts
    assert all(len(chunk.samples) == chunk.num_frames * 1920 for chunk in chunks)
    assert all(chunk.samples.dtype == np.int16 for chunk in chunks)
    times = [chunk.t_ms for chunk in chunks]
    assert times == sorted(times)


def test_the_first_chunk_leaves_before_frame_two_is_drawn(tts, monkeypatch):
    """Order of events inside the loop: one frame, its audio, then the next frame."""
    events, decoder = [], tts._loop.stages.decoder
    watch(monkeypatch, decoder, "launch", lambda slots, count: events.append(("step", count)))
    watch(monkeypatch, StreamState, "deliver", lambda *args, **_: events.append(("chunk", args[3])))
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


def test_a_drawn_seed_is_reported_and_repeats_the_stream(tts):
    first = speak(tts)
    again = speak(tts, seed=first.seed)
    assert np.array_equal(first.codes, again.codes)


ci = pytest.mark.ci


@pytest.mark.parametrize(
    ("model", "engine_backend", "num_threads"),
    [
        ("demo-voice", "cpu", 2),
        pytest.param("tiny-random", "torch", 1, marks=ci),
        pytest.param("demo-voice", "cpu", 1, marks=ci),
        pytest.param("demo-voice", "torch", 1, marks=ci),
        pytest.param("tiny-random", "emulation", 1, marks=ci),
    ],
)
def test_other_streams_change_neither_codes_nor_samples(
    model, engine_backend, num_threads, monkeypatch
):
    """Five streams run on three slots, two of them behind others, in several lengths of chunks.

    On the native decoder, a stream whose chunks are cut as without other streams has the same bits
    of samples, too. Elsewhere, and with chunks of another length, they may differ by one step.
    """
    same_bits = engine_backend == "cpu"
    options = {"backend": engine_backend, "num_threads": num_threads, "num_slots": 3}
    with tiny_engine(model, **options) as tts:
        batches, vocoder = [], tts._loop.stages.vocoder
        watch(monkeypatch, vocoder, "step", lambda codes, _: batches.append(len(codes)))

        def start(index, **chunks):
            chunks = {"first_chunk_frames": 1 + index // 3, "chunk_frames": 3 + index // 2} | chunks
            return tts.stream(TEXT, seed=index % 3, max_frames=16, **chunks)

        # Three are queued before the first begins.
        streams = tts._loop.run(lambda: [start(index) for index in range(3)])
        streams += [start(index) for index in range(3, 5)]
        speeches = [Speech.collect(stream) for stream in streams]
        assert max(batches) == 3
        for index, together in enumerate(speeches):
            alone = Speech.collect(start(index))
            assert np.array_equal(together.codes, alone.codes) and len(alone.codes) > 4
            assert np.abs(together.audio - alone.audio).max() <= (0 if same_bits else PCM16)
            otherwise = Speech.collect(start(index, chunk_frames=16, first_chunk_frames=4))
            assert np.abs(together.audio - otherwise.audio).max() <= PCM16


def test_waiting_streams_are_served_oldest_first(tts):
    options = {"voice": VOICE, "seed": 1, "max_frames": 6}
    # All are queued before the first begins.
    streams = tts._loop.run(lambda: [tts.stream(TEXT, **options) for _ in range(6)])
    for stream in streams:
        list(stream)
    finished = [each._state.started + each.timings["total"] / 1000 for each in streams]
    assert max(finished[:3]) < min(finished[3:])


def test_a_slow_reader_pauses_only_itself(tts):
    slow = tts.stream(TEXT, voice=VOICE, seed=1, chunk_frames=1, max_frames=60)
    outbox = slow._state.outbox
    wait_until(lambda: len(outbox) == MAX_QUEUED_CHUNKS or slow.finish_reason)
    quick = speak(tts, seed=2)
    assert quick.finish_reason in ("eos", "length")
    assert len(outbox) <= MAX_QUEUED_CHUNKS + 1
    assert list(slow) and slow.finish_reason
    assert np.array_equal(slow.codes[:24], speak(tts, seed=1, max_frames=60).codes[:24])


def test_many_readers_in_threads_get_their_own_audio(tts, alone):
    seeds = [1, 2, 3] * 2
    with ThreadPoolExecutor(6) as pool:
        for seed, speech in zip(seeds, pool.map(lambda s: speak(tts, seed=s), seeds), strict=True):
            assert np.array_equal(speech.codes, alone[seed].codes)


def test_two_threads_that_read_one_stream_share_its_chunks_and_both_end(tts, alone):
    for _ in range(3):
        stream = tts.stream(TEXT, voice=VOICE, seed=1, max_frames=24)
        pool = ThreadPoolExecutor(2)
        readers = [pool.submit(list, stream) for _ in range(2)]
        pool.shutdown(wait=False)
        chunks = [chunk for reader in readers for chunk in reader.result(timeout=60)]
        assert sum(chunk.num_frames for chunk in chunks) == len(alone[1].codes)


async def test_two_coroutines_that_read_one_stream_share_its_chunks_and_both_end(tts, alone):
    async def read(stream):
        return [chunk async for chunk in stream]

    for rate in (None, 16000):  # the chunks of one are changed in a thread
        stream = tts.stream(TEXT, voice=VOICE, seed=1, max_frames=24, sample_rate=rate)
        async with asyncio.timeout(60):
            parts = await asyncio.gather(read(stream), read(stream))
        assert sum(len(part) for part in parts) > 1
        assert sum(chunk.num_frames for part in parts for chunk in part) == len(alone[1].codes)


def test_readers_in_a_second_event_loop_go_on_with_a_stream(tts, alone):
    stream = tts.stream(TEXT, voice=VOICE, seed=1, max_frames=24, chunk_frames=1)

    async def read(num_chunks):
        reads = (anext(stream, None) for _ in range(num_chunks))  # all at once, so that they wait
        return await asyncio.wait_for(asyncio.gather(*reads), 60)

    chunks = [chunk for num in (3, 30) for chunk in asyncio.run(read(num)) if chunk]
    assert sum(chunk.num_frames for chunk in chunks) == len(alone[1].codes)


async def test_two_event_loops_that_read_one_stream_at_a_time_are_refused(tts):
    stream = tts.stream(voice=VOICE, text_open=True)
    reading = asyncio.create_task(anext(stream, None))
    await asyncio.sleep(0)
    with pytest.raises(UsageError, match=r"^Two event loops read one stream"):
        await asyncio.to_thread(lambda: asyncio.run(asyncio.wait_for(anext(stream), 20)))
    stream.close()
    assert await reading is None


async def test_async_iteration_gives_the_same_and_leaves_the_loop_free(tts, alone, monkeypatch):
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0.002)
            ticks += 1

    decoder = tts._loop.stages.decoder
    watch(monkeypatch, decoder, "launch", lambda *_: wait_until(lambda: ticks >= 3))
    ticker = asyncio.create_task(tick())
    heard = [chunk.samples async for chunk in tts.astream(TEXT, voice=VOICE, seed=1, max_frames=24)]
    ticker.cancel()
    assert np.abs(np.concatenate(heard) / 32768 - alone[1].audio).max() <= PCM16


def test_a_name_in_place_of_a_checkpoint_gets_the_call_that_takes_it():
    with pytest.raises(UsageError, match=r'TTSEngine\.from_pretrained\("demo-voice"\)'):
        TTSEngine("demo-voice")


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


def test_a_mistyped_option_of_from_pretrained_gets_the_nearest_one():
    with pytest.raises(UsageError, match=r"\nThe options are .*\nDid you mean \"keep_packed\"\?"):
        TTSEngine.from_pretrained("demo-voice", keep_pack=True)


@pytest.mark.parametrize("copied", [pickle.dumps, deepcopy])
def test_an_engine_that_cannot_be_copied_says_what_to_do_instead(tts, copied):
    with pytest.raises(UsageError, match=r"TTSEngine cannot be pickled[^\n]*\n[^\n]*\nCreate one"):
        copied(tts)


@pytest.mark.parametrize("copied", [pickle.dumps, copy, deepcopy])
def test_a_stream_is_not_copied_because_the_copy_would_close_it(tts, alone, copied):
    with tts.stream(TEXT, voice=VOICE, seed=1, max_frames=24) as stream:
        with pytest.raises(UsageError, match=r"SpeechStream cannot be [^\n]*\n[^\n]*\nCollect it"):
            copied(stream)
        list(stream)
        assert stream.finish_reason != "cancelled" and np.array_equal(stream.codes, alone[1].codes)


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
        ({"temperature": 1e-45}, UsageError),  # 0 in float32
        ({"repetition_penalty": 1e-45}, UsageError),  # would cause infinite logits
        ({"top_k": 2**31}, UsageError),  # too large for int32
        ({"top_p": 1.5}, UsageError),
        ({"text_feed": "backwards"}, UsageError),
        ({"first_chunk_frames": 4, "chunk_frames": 2}, UsageError),
    ],
)
def test_a_bad_request_is_refused_before_any_work(tts, options, error):
    with pytest.raises(error):
        tts.stream(**({"text": TEXT, "voice": VOICE} | options))
    assert tts.num_active == 0


@pytest.mark.parametrize("factor", [MIN_FACTOR, MAX_FACTOR])
def test_no_request_can_end_other_streams(tts, alone, factor):
    """A launch whose logits are not finite fails for all its streams; no option may cause that."""
    names = ("temperature", "subtalker_temperature", "repetition_penalty")
    extreme = tts.stream(
        TEXT, voice=VOICE, seed=2, max_frames=24, **dict.fromkeys(names, factor), top_k=MAX_TOP_K
    )
    assert np.array_equal(speak(tts, seed=1).codes, alone[1].codes)
    assert list(extreme) and extreme.finish_reason in ("eos", "length")


NO_NUMBERS = [
    ("seed", 1.5),
    ("seed", "7"),
    ("max_frames", 5.5),
    ("chunk_frames", 2.5),
    ("first_chunk_frames", 1.5),
    ("top_k", 1.5),
    ("subtalker_top_k", float("nan")),
    ("temperature", "0.9"),
    ("top_p", b"1"),
    ("do_sample", "no"),
    ("subtalker_do_sample", 2),
]


@pytest.mark.parametrize(("name", "value"), NO_NUMBERS)
def test_a_value_that_is_not_a_number_is_refused_before_it_ends_other_streams(tts, name, value):
    with pytest.raises(UsageError, match=f"{name} is "):
        tts.stream(TEXT, voice=VOICE, **{name: value})


@pytest.mark.parametrize("name", ["text", "voice", "style", "language", "instruct"])
@pytest.mark.parametrize("value", [5, b"Hello.", ["Hello."]])
def test_a_value_that_is_not_a_text_is_refused(tts, name, value):
    with pytest.raises(UsageError, match=f"{name} is .*; it must be a "):
        tts.stream(**{"text": TEXT, "voice": VOICE} | {name: value})


@pytest.mark.parametrize(("piece", "said"), [(b"Hello.", "b'Hello"), (None, "None")])
def test_a_value_that_is_not_a_text_cannot_be_fed(tts, piece, said):
    stream = tts.stream(text_open=True, voice=VOICE)
    with pytest.raises(UsageError, match=f"text is {said}"):
        stream.feed(piece)
    stream.close()


@pytest.mark.parametrize("value", [0, -1, "ten"])
def test_a_length_of_chunks_that_is_refused_has_the_name_that_was_given(tts, value):
    with pytest.raises(UsageError, match=f"^chunk_frames is {value!r}; it must be "):
        tts.synthesize(TEXT, voice=VOICE, chunk_frames=value)


def test_options_that_do_not_exist_are_named_with_those_that_do(tts):
    with pytest.raises(UsageError, match=r"no option tempo(.|\n)*temperature"):
        tts.stream(TEXT, voice=VOICE, tempo=1.5)


@pytest.mark.parametrize("model", [Path("/nowhere"), "/nowhere", None, "", 5])
def test_a_value_that_is_not_a_model_is_named(model):
    with pytest.raises((UsageError, ModelFilesError), match=str(model) or "model is ''"):
        TTSEngine.from_pretrained(model, backend="torch")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"num_slots": "2"}, "a whole number"),
        ({"num_slots": 2.5}, "a whole number"),
        ({"max_frames": "x"}, "a whole number"),
        ({"num_threads": "2"}, "a whole number"),
        ({"needed_voices": "vivian"}, "a list of names"),
    ],
)
def test_options_of_another_kind_are_refused(options, kind):
    with pytest.raises(UsageError, match=f"it must be {kind}"):
        TTSEngine.from_pretrained("tiny-random", **options)


def test_a_dtype_may_be_torchs_own():
    with tiny_engine(dtype=torch.float32) as tts:
        assert tts.dtype == torch.float32
    with pytest.raises(UsageError, match=r"dtype is torch\.float16; known: float32"):
        TTSEngine.from_pretrained("tiny-random", backend="torch", dtype=torch.float16)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("dtype", "fp16"),
        ("voices", "missing"),
        ("lexicon", "missing"),
        ("normalize", "yes"),
        ("num_slots", 0),
        ("max_frames", -1),
        ("num_threads", 0.5),
    ],
)
def test_an_option_that_no_model_can_have_is_refused_before_a_download(option, value):
    with pytest.raises(UsageError, match=f"{option}.*{value}"):
        TTSEngine.from_pretrained("owner/never-loaded", **{option: value})


@pytest.mark.parametrize("num_read", [1, None])
def test_a_speech_is_not_collected_without_what_was_read(tts, num_read):
    stream = tts.stream(TEXT, voice=VOICE, seed=1, max_frames=8, chunk_frames=2)
    read = sum(chunk.num_frames for chunk in itertools.islice(stream, num_read))
    with pytest.raises(UsageError, match=f"first {read} frames .* were read before"):
        Speech.collect(stream)


def test_numbers_of_any_kind_are_taken(tts, alone):
    """JSON has no integer type, and numpy has types of its own."""
    for seed, sampled in ((1.0, np.bool_(True)), (np.int64(1), 1), (np.uint64(1), True)):
        speech = speak(tts, seed=seed, top_k=50.0, do_sample=sampled, max_frames=np.int32(400))
        assert np.array_equal(speech.codes, alone[1].codes)
        assert isinstance(speech.seed, int)


def test_a_temperature_below_half_of_the_checkpoints_gives_a_warning(tts, caplog):
    def warnings(**sampling):
        caplog.clear()
        with tts.stream("Hello.", max_frames=1, **sampling) as stream:
            found = stream.text.warnings
        assert caplog.messages == [text[0].upper() + text[1:] + "." for text in found]
        return found

    for name in ("temperature", "subtalker_temperature"):
        assert warnings(**{name: 0.45}) == warnings(**{name: 2.0}) == []
        assert warnings(**{name: 0.44}) == [
            f"{name} is 0.44, less than half of the checkpoint's own 0.9: speech may turn into "
            "loops or noise"
        ]
    assert len(warnings(temperature=0.1, subtalker_temperature=0.1)) == 2
    assert warnings(temperature=0.1, do_sample=False) == []  # greedy decoding does not use it


def test_control_characters_do_not_change_the_speech(tts):
    dirty = "\x00Hello\x07 there,\x1b how are you today?\ufeff"
    assert np.array_equal(
        tts.synthesize(dirty, voice=VOICE, seed=1, max_frames=24).codes, speak(tts, seed=1).codes
    )


def test_codes_are_dumped_to_the_file_of_the_variable(tts, tmp_path, monkeypatch):
    """The first utterance replaces an existing file, later ones are appended."""
    path = tmp_path / "codes.tsv"
    path.write_text("left by another run\n")
    monkeypatch.setenv("TTS_DUMP_CODES", str(path))
    spoken = [speak(tts, seed=seed).codes for seed in (1, 2)]
    assert np.array_equal(codes_file.read(path), np.concatenate(spoken))


def test_a_warm_up_is_not_dumped(tmp_path, monkeypatch):
    path = tmp_path / "codes.tsv"
    monkeypatch.setenv("TTS_DUMP_CODES", str(path))
    with TTSEngine.from_pretrained("tiny-random", backend="torch", max_frames=30) as warm:
        assert not path.exists()
        spoken = speak(warm, seed=1, max_frames=3).codes
    assert np.array_equal(codes_file.read(path), spoken)


def test_no_voice_means_the_first_speaker_of_a_custom_voice_model(tts):
    first = tts.default_voice
    assert first in tts.voices
    named = tts.synthesize(TEXT, voice=first, seed=1, max_frames=6)
    assert np.array_equal(tts.synthesize(TEXT, seed=1, max_frames=6).codes, named.codes)


def test_decoding_codes_gives_the_streams_audio(tts, alone):
    pcm = tts.decode(alone[1].codes)
    assert np.abs(pcm - alone[1].audio).max() <= PCM16
    with pytest.raises(UsageError):
        tts.decode(np.full((2, 16), 4000))
    assert len(speak(tts, seed=1, max_frames=3).codes) == 3


@pytest.mark.parametrize(
    ("rtf", "weights", "backend", "is_advised"),
    [
        (1.4, None, "cpu", True),
        (0.9, None, "cpu", False),
        (1.4, "int8", "cpu", False),
        (1.4, None, "torch", False),
    ],
)
def test_a_warm_up_slower_than_real_time_names_int8_weights(
    monkeypatch, caplog, rtf, weights, backend, is_advised
):
    warm_up, clock = TTSEngine._warm_up, time.perf_counter
    # With a slow clock, this machine is never late.
    monkeypatch.setattr(time, "perf_counter", lambda: clock() / 100)

    def slow(engine):
        assert 0 < warm_up(engine) < 10
        return rtf

    monkeypatch.setattr(TTSEngine, "_warm_up", slow)
    TTSEngine.from_pretrained("tiny-random", backend=backend, weights=weights).close()
    assert ("1.4 times as long to make as to play" in caplog.text) == is_advised
    assert ("--weights int8" in caplog.text) == is_advised


def test_the_warm_up_fits_an_engine_of_few_frames():
    """Its sentence has more text rows than a part of this engine has frames."""
    with TTSEngine.from_pretrained("tiny-random-base", backend="torch", max_frames=1) as small:
        assert small.synthesize("Hi", text_feed="full", seed=1).finish_reason == "length"


def test_a_voice_file_may_be_named_by_a_path(tts, tmp_path):
    with pytest.raises(UnknownVoice, match="no voice file"):
        tts.stream(TEXT, voice=tmp_path / "nobody.voice.safetensors")


def test_the_native_decoder_brings_its_vocoder_and_no_second_pool(cache_folder):
    """Torch's threads would spin on the cores that the next native call needs."""
    with tiny_engine(backend="cpu", num_threads=2) as tts:
        stages = tts._loop.stages
        assert isinstance(stages.vocoder, CpuVocoder)
        assert stages.vocoder.pool is stages.decoder.pool
        assert tts._loop.run(torch.get_num_threads) == 1
    with tiny_engine(backend="torch") as tts:
        assert type(tts._loop.stages.vocoder) is Vocoder
