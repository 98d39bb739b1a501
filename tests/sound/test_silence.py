"""Silence at the edges of a speech, and a constant offset, which is not sound."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tolerances import HIGH_PASSED_TONE, OFFSET, ROUNDING_F32, TICK, nearly

from benchmarks.playback import leading_silence_ms
from qwen_megakernel import TTSEngine
from qwen_megakernel.sound.chain import finish, new_chain, push
from qwen_megakernel.sound.silence import FADE_S, Edges, HighPass
from qwen_megakernel.speech_options import MAX_SILENCE, SoundOptions

RATE = 24000
MS = RATE // 1000
TEXT = "Your table for two is ready."


def hum(ms: float, level: float = 0.1) -> np.ndarray:
    return (level * np.sin(np.arange(round(ms * MS)) / 9)).astype(np.float32)


def hiss(ms: float, seed: int = 0) -> np.ndarray:
    """Noise at -70 dBFS, which counts as silence."""
    noise = np.random.default_rng(seed).standard_normal(round(ms * MS))
    return (10 ** (-70 / 20) * noise).astype(np.float32)


def heard(step: Edges | HighPass, samples: np.ndarray, sizes: list[int] | None = None):
    pieces = np.split(samples, np.cumsum(sizes)) if sizes else [samples]
    return np.concatenate([*map(step.push, pieces), step.finish()])


@pytest.mark.parametrize("leading", [0, 10, 60, 200])
def test_so_much_silence_is_left_before_the_first_sound_and_fades_in(leading: int):
    silence, sound = hiss(400), hum(300)
    samples = heard(Edges(leading / 1000, None, RATE), np.concatenate([silence, sound]))
    assert len(samples) == (leading + 300) * MS
    assert np.array_equal(samples[leading * MS :], sound)
    fade = min(round(FADE_S * RATE), leading * MS)
    kept = silence[len(silence) - leading * MS :]
    assert np.array_equal(samples[fade : leading * MS], kept[fade:])
    ramp = np.arange(fade) / max(1, fade)
    assert samples[:fade] == pytest.approx(ramp * kept[:fade], abs=ROUNDING_F32)


def test_a_speech_that_begins_at_once_is_left_as_it_is():
    samples = np.concatenate([hiss(50), hum(100)])
    assert np.array_equal(heard(Edges(0.06, None, RATE), samples), samples)


def test_silence_between_sounds_stays_and_behind_the_last_one_it_ends():
    samples = np.concatenate([hum(100), hiss(700), hum(100), hiss(500)])
    for trailing, left in ((0.0, 0), (0.1, 100), (10.0, 500)):
        found = heard(Edges(None, trailing, RATE), samples)
        assert np.array_equal(found, samples[: (900 + left) * MS])


def test_silence_is_held_back_no_longer_than_it_must_be():
    edges = Edges(0.06, 0.1, RATE)
    assert not len(edges.push(hiss(400)))
    assert len(edges.push(hum(50))) == (60 + 50) * MS
    assert len(edges.push(hiss(300))) == 100 * MS
    assert not len(edges.push(hiss(300)))
    assert len(edges.push(hum(20))) == (500 + 20) * MS
    assert not len(edges.finish())


@pytest.mark.parametrize(
    ("leading", "trailing", "left"), [(60, None, 60), (60, 20, 20), (None, 30, 30)]
)
def test_a_speech_without_a_sound_has_the_silence_of_its_edges(leading, trailing, left):
    seconds = [None if ms is None else ms / 1000 for ms in (leading, trailing)]
    assert len(heard(Edges(*seconds, RATE), hiss(400))) == left * MS


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 120)), min_size=1, max_size=8),
    st.lists(st.integers(0, 4000), max_size=8),
    st.sampled_from([None, 0.0, 0.03, 0.2]),
    st.sampled_from([None, 0.0, 0.03, 0.2]),
)
def test_chunks_make_no_difference_and_no_sound_is_lost(parts, sizes, leading, trailing):
    samples = np.concatenate([hum(30 + ms) if loud else hiss(ms) for loud, ms in parts])
    whole = heard(Edges(leading, trailing, RATE), samples)
    assert np.array_equal(heard(Edges(leading, trailing, RATE), samples, sizes), whole)
    filtered = heard(HighPass(20, RATE), samples)
    assert np.array_equal(heard(HighPass(20, RATE), samples, sizes), filtered)
    loud = np.flatnonzero(np.abs(samples) > 0.05)
    if len(loud):
        sound = samples[loud[0] + 10 * MS : loud[-1] - 10 * MS]  # without incomplete blocks
        assert sound.tobytes() in whole.tobytes()


def test_a_soft_beginning_is_heard_before_what_is_loud():
    soft = hum(40, level=0.007)  # -46 dBFS
    samples = heard(Edges(0, None, RATE), np.concatenate([hiss(200), soft, hum(100)]))
    assert len(samples) == 140 * MS


def test_a_tick_is_no_sound_and_a_short_sound_is():
    tick = hiss(200)
    tick[: 2 * MS] += 0.05
    edges = Edges(0.0, 0.0, RATE)
    assert np.array_equal(heard(edges, np.concatenate([tick, hum(20), hiss(100)])), hum(20))


def test_a_sound_that_begins_with_the_last_block_of_a_chunk_is_heard_from_there():
    sound = hum(100)
    samples = np.concatenate([hiss(100), sound])
    assert np.array_equal(heard(Edges(0.0, None, RATE), samples, [110 * MS]), sound)


def test_an_offset_is_taken_away_and_a_voice_is_not():
    voice = hum(1000)
    filtered = heard(HighPass(20, RATE), voice + np.float32(0.2))
    assert len(filtered) == len(voice)
    late = slice(300 * MS, None)
    assert abs(float(filtered[late].mean())) < OFFSET
    assert np.abs(filtered[late] - voice[late]).max() < HIGH_PASSED_TONE


@pytest.mark.parametrize("chunk", [7, 20, 1000])  # ms
def test_a_tick_before_the_first_sound_is_faded_and_the_sound_is_kept(chunk: int):
    samples = np.concatenate([hiss(40), hum(500)])
    ticking = samples.copy()
    ticking[: 20 * MS] += 0.05 * np.float32(0.5) ** (np.arange(20 * MS) / (2 * MS))
    ends = range(chunk * MS, len(samples), chunk * MS)
    found = [heard(HighPass(20, RATE), sound, list(ends)) for sound in (samples, ticking)]
    assert np.abs(ticking[:MS]).max() > 20 * TICK
    assert np.abs(found[1][: 15 * MS]).max() == 0
    assert np.abs(found[1] - found[0]).max() < TICK
    assert np.abs(found[0][300 * MS :] - samples[300 * MS :]).max() < HIGH_PASSED_TONE


def test_all_of_a_silence_can_be_asked_for():
    assert not new_chain(SoundOptions(leading_silence=MAX_SILENCE), RATE)


def test_the_silence_is_what_is_heard_of_it_at_every_speed():
    samples = np.concatenate([np.zeros(400 * MS, np.float32), hum(400)])
    for speed in (0.5, 1, 2):
        chain = new_chain(SoundOptions(speed=speed, leading_silence=60), RATE)
        found = np.concatenate([push(chain, samples), finish(chain)])
        assert len(found) == nearly(round((60 + 400 / speed) * MS))


def test_the_demonstration_voice_begins_to_sound_at_once_and_loses_nothing():
    with TTSEngine.from_pretrained("demo-voice", backend="cpu", warmup=False) as tts:
        for text in (TEXT, "Hello.", "She said so."):
            request = {"seed": 1, "text_feed": "stepwise"}  # a word waits for its letters
            speech = tts.synthesize(text, **request)
            whole = tts.synthesize(text, **request, leading_silence=MAX_SILENCE)
            assert leading_silence_ms(whole.audio, RATE) > 150
            assert 20 <= leading_silence_ms(speech.audio, RATE) <= 80
            assert np.abs(speech.audio[: 2 * MS]).max() < TICK
            assert abs(float(speech.audio.mean())) < OFFSET
            kept = len(speech.audio) - round(FADE_S * RATE)
            assert np.array_equal(whole.audio[-kept:], speech.audio[-kept:])
            assert speech.codes.tolist() == whole.codes.tolist()
