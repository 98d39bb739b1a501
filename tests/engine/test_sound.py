"""Changed sound in the engine: frames, chunks, threads, ends, errors."""

import asyncio
import contextlib
import gc
import itertools
import threading
import weakref

import numpy as np
import pytest
from fixtures import module_fixture
from spies import watch
from tiny_speech import tiny_engine
from tolerances import LIMITED, LOUDNESS_LU, PCM_STEPS, ROUNDED_COUNT, nearly
from waiting import wait_until

from qwen_megakernel import AudioChunk, TTSEngine
from qwen_megakernel.audio import to_int16
from qwen_megakernel.errors import GenerationError, UsageError
from qwen_megakernel.sound.chain import finish, new_chain, push
from qwen_megakernel.sound.chunks import HeardChunks
from qwen_megakernel.speech_options import SoundOptions

TEXT = "Your table for two is ready."
NUM_FRAMES = 12  # a model with random weights does not end by itself
VOICE = {"voice": "aiden", "seed": 1}
ALL = {"speed": 1.5, "volume": 6, "sample_rate": 16000}
OPTIONS = [{"speed": 2}, {"speed": 0.5}, {"volume": -6}, {"sample_rate": 8000}, ALL]

tts = module_fixture(lambda: tiny_engine(backend="torch", max_frames=NUM_FRAMES, num_slots=3))


def samples_of(chunks: list[AudioChunk]) -> np.ndarray:
    return np.concatenate([chunk.samples for chunk in chunks])


def test_a_sound_that_is_left_as_it_is_costs_nothing(tts: TTSEngine, monkeypatch):
    plain = list(tts.stream(TEXT, **VOICE))
    monkeypatch.setattr(HeardChunks, "__init__", lambda *_: pytest.fail("made"))
    neutral = {"speed": 1.0, "volume": 0, "sample_rate": 24000}
    with tts.stream(TEXT, **VOICE, **neutral) as stream:
        again = list(stream)
    assert stream.sample_rate == 24000
    assert [chunk.samples.tobytes() for chunk in again] == [c.samples.tobytes() for c in plain]
    assert [chunk.start_s for chunk in again] == nearly(
        [0, *np.cumsum([len(chunk.samples) for chunk in again[:-1]]) / 24000]
    )


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_frames_are_the_codecs_and_samples_what_is_heard(tts: TTSEngine, options):
    plain = tts.synthesize(TEXT, **VOICE)
    with tts.stream(TEXT, **VOICE, **options) as stream:
        chunks = list(stream)
    assert stream.codes.tolist() == plain.codes.tolist()
    starts = np.cumsum([0, *(chunk.num_frames for chunk in chunks)])
    assert [chunk.frame_index for chunk in chunks] == starts[:-1].tolist()
    assert all(len(chunk.samples) for chunk in chunks)
    assert {chunk.sample_rate for chunk in chunks} == {stream.sample_rate}
    speed, rate = options.get("speed", 1), options.get("sample_rate", 24000)
    assert stream.sample_rate == rate
    seconds = len(plain.audio) / 24000 / speed
    assert len(samples_of(chunks)) == nearly(round(round(seconds * 24000) * rate / 24000))
    for before, after in itertools.pairwise(chunks):
        assert after.start_s == nearly(before.end_s)


@pytest.mark.parametrize("options", [{"speed": 0.5}, ALL], ids=str)
@pytest.mark.parametrize("chunk_frames", [1, 7])
def test_chunks_hold_the_sound_of_the_whole(tts: TTSEngine, options, chunk_frames: int):
    def spoken(**options) -> np.ndarray:
        sizes = {"first_chunk_frames": 1, "chunk_frames": chunk_frames}
        return samples_of(list(tts.stream(TEXT, **VOICE, **sizes, **options)))

    chain = new_chain(SoundOptions(**options), 24000)
    whole = push(chain, spoken().astype(np.float32) / 32768)
    whole = to_int16(np.concatenate([whole, finish(chain)]))
    heard = spoken(**options).astype(int)
    assert np.abs(heard - whole).max() <= PCM_STEPS


async def test_a_coroutine_hears_what_a_thread_does_and_its_event_loop_is_free(tts, monkeypatch):
    threads = set()
    watch(monkeypatch, HeardChunks, "hear", lambda *_: threads.add(threading.current_thread()))
    awaited = [chunk async for chunk in tts.astream(TEXT, **VOICE, **ALL)]
    assert threads and not threads & {threading.main_thread(), tts._loop._thread}
    threads.clear()
    assert np.array_equal(samples_of(list(tts.stream(TEXT, **VOICE, **ALL))), samples_of(awaited))
    assert threads == {threading.current_thread()}


async def test_a_reader_that_loses_patience_loses_no_sound(tts: TTSEngine):
    whole = samples_of(list(tts.stream(TEXT, **VOICE, **ALL)))
    stream, chunks = tts.stream(TEXT, **VOICE, **ALL), []
    is_over = False
    while not is_over:
        try:
            async with asyncio.timeout(0.0003):
                chunks.append(await anext(stream))
        except TimeoutError:
            await asyncio.sleep(0)
        except StopAsyncIteration:
            is_over = True
    assert np.array_equal(samples_of(chunks), whole)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("goes_on_as", ["coroutine", "thread"])
def test_a_reader_goes_on_elsewhere_and_loses_no_sound(tts, monkeypatch, is_done, goes_on_as):
    """Its first event loop ends while a thread changes the sound."""
    whole = samples_of(list(tts.stream(TEXT, **VOICE, **ALL)))
    begun, done, let_go, hear = *(threading.Event() for _ in range(3)), HeardChunks.hear

    def gated_hear(heard, chunk):
        begun.set()
        assert let_go.wait(20)
        chunks = hear(heard, chunk)
        done.set()
        return chunks

    stream, chunks = tts.stream(TEXT, **VOICE, **ALL), []

    async def begin():
        chunks.append(await anext(stream))
        monkeypatch.setattr(HeardChunks, "hear", gated_hear)
        reading = asyncio.ensure_future(anext(stream))
        assert await asyncio.to_thread(begun.wait, 20)
        reading.cancel()

    async def go_on():
        chunks.extend([chunk async for chunk in stream])

    asyncio.run(begin())
    if is_done:
        let_go.set()
        assert done.wait(20)
    else:
        threading.Timer(0.1, let_go.set).start()
    if goes_on_as == "coroutine":
        asyncio.run(go_on())
    else:
        chunks += stream
    assert np.array_equal(samples_of(chunks), whole)


async def test_a_reader_that_goes_away_leaves_nothing_behind(tts: TTSEngine, monkeypatch):
    made = []
    watch(monkeypatch, HeardChunks, "__init__", lambda heard, *_: made.append(weakref.ref(heard)))
    async with contextlib.aclosing(tts.astream(TEXT, **VOICE, **ALL)) as chunks:
        await anext(chunks)
    for _ in range(3):  # cancelled before or while a thread changes the sound
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.003):
                await anext(tts.stream(TEXT, **VOICE, **ALL))
    await asyncio.to_thread(next, tts.stream(TEXT, **VOICE, **ALL))
    del chunks

    def is_gone() -> bool:
        gc.collect()
        return not tts.num_active and not any(heard() for heard in made)

    await asyncio.to_thread(wait_until, is_gone)
    assert len(made) == 5


def test_a_closed_stream_ends_with_what_was_made_of_it(tts: TTSEngine):
    with tts.stream(TEXT, **VOICE, speed=0.5, chunk_frames=1) as stream:  # 10 may wait
        next(stream)
        stream.close()
        rest = list(stream)
    assert stream.finish_reason == "cancelled"
    heard = rest[-1].end_s * 24000
    assert heard == nearly(2 * 1920 * len(stream.codes))


def test_a_stream_that_fails_is_heard_to_where_it_failed(tts: TTSEngine, monkeypatch):
    vocoder = tts._loop.stages.vocoder
    step, calls = vocoder.step, []

    def failing_step(*arguments):
        calls.append(arguments)
        if len(calls) == 3:
            raise GenerationError("planted")
        return step(*arguments)

    monkeypatch.setattr(vocoder, "step", failing_step)
    heard = []
    with pytest.raises(GenerationError, match="planted"):
        for chunk in tts.stream(TEXT, **VOICE, speed=0.5):
            heard.append(chunk)
    num_frames = sum(chunk.num_frames for chunk in heard)
    assert num_frames and len(samples_of(heard)) == 2 * 1920 * num_frames
    monkeypatch.undo()
    assert len(tts.synthesize("Hello.", speed=2, **VOICE).audio)


def test_what_is_made_louder_does_not_clip(tts: TTSEngine):
    speech = tts.synthesize(TEXT, **VOICE, volume=20)
    plain = tts.synthesize(TEXT, **VOICE)
    assert np.abs(speech.audio).max() <= LIMITED < 1
    rms = [float(np.sqrt(np.mean(each.audio**2))) for each in (plain, speech)]
    assert rms[1] > 2 * rms[0]
    quiet = tts.synthesize(TEXT, **VOICE, volume=-20).audio
    assert np.abs(to_int16(quiet) - to_int16(plain.audio / 10)).max() <= PCM_STEPS


def test_a_whole_speech_has_the_loudness_that_is_asked_for(tts: TTSEngine):
    levels = []
    for loudness in (-30, -20):
        speech = tts.synthesize(TEXT, **VOICE, loudness=loudness)
        levels.append(20 * np.log10(np.sqrt(np.mean(speech.audio**2))))
    assert levels[1] - levels[0] == pytest.approx(10, abs=LOUDNESS_LU)
    with pytest.raises(UsageError, match=r"A stream has no option loudness.(.|\n)*volume="):
        tts.stream(TEXT, loudness=-16)


def test_a_text_of_many_parts_is_one_sound(tts: TTSEngine):
    text = "It is cold today. We will meet you at the hotel, and then we go on. " * 12
    plain = tts.synthesize(text, **VOICE)
    heard = tts.synthesize(text, **VOICE, speed=2)
    assert plain.parts == heard.parts > 1
    assert abs(len(heard.audio) - len(plain.audio) / 2) <= ROUNDED_COUNT


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speed": 0}, "speed is 0; it must be in 0.25 .. 4."),
        ({"speed": "2"}, "speed is '2'; it must be a number."),
        ({"volume": float("nan")}, "volume is nan; it must be in -60 .. 20."),
        ({"sample_rate": 7999}, "sample_rate is 7999; it must be in 8000 .. 48000."),
    ],
)
def test_what_can_never_work_is_refused_before_anything_is_spoken(tts, options, message):
    before = tts.spent_ms
    with pytest.raises(UsageError, match=message):
        tts.stream(TEXT, voice="aiden", **options)
    assert tts.spent_ms == before and tts.num_active == 0
