"""From a recording to speech in its voice, compared with the official wrappers; names; the
cache."""

import logging
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import soundfile
import torch
import waveforms
from fixtures import module_fixture, module_value
from tiny_speech import tiny_engine
from tolerances import AUDIO_F32, PCM16, X_VECTOR_F32

from qwen_megakernel import Voice
from qwen_megakernel.cloning.voice_library import ReferenceCache, VoiceLibrary
from qwen_megakernel.errors import (
    QwenTTSError,
    RecordingError,
    TaskError,
    UnknownVoice,
    UsageError,
    VoiceMismatch,
)
from qwen_megakernel.voice import save_presets

TRANSCRIPT = "It is cold today, and we are late."
TEXT = "Hello there, how are you?"
GREEDY = {"do_sample": False, "subtalker_do_sample": False}
SECONDS, RATE, FRAME = 2.31, 44100, 1920


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """A stereo file at another rate than the model's, whose last frame is incomplete."""
    path = tmp_path_factory.mktemp("recordings") / "mario.wav"
    left, right = (waveforms.voice_like(SECONDS, RATE, seed) for seed in (1, 2))
    soundfile.write(path, np.stack([left, right], axis=1), RATE)
    return path


engine = module_fixture(lambda: tiny_engine("tiny-random-base", dtype="float32"))


voices = module_value(lambda load_checkpoint: VoiceLibrary(load_checkpoint("tiny-random-base")))


# ---- cloning -------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("in_context", [False, True])
def test_speech_in_the_voice_of_a_file_is_the_official_one(
    engine, official_model, recording, in_context, full
):
    official = official_model("tiny-random-base")
    text = TRANSCRIPT if in_context else None
    reference = {"ref_audio": str(recording), "ref_text": text}
    options = {"x_vector_only_mode": not in_context, "non_streaming_mode": full}
    options |= {"do_sample": False, "subtalker_dosample": False, "max_new_tokens": 13}
    wavs, _ = official.generate_voice_clone(TEXT, language="english", **reference, **options)
    voice = engine.create_voice(recording, text, silence_tail=0)
    feed = "full" if full else "stepwise"
    speech = engine.synthesize(
        TEXT, voice=voice, language="english", text_feed=feed, max_frames=12, **GREEDY
    )
    assert len(speech.audio) == len(speech.codes) * FRAME
    lost = len(speech.audio) - len(wavs[0])  # the official cut is a float product
    assert 0 <= lost <= in_context
    assert np.abs(speech.audio[lost:] - wavs[0]).max() <= PCM16


def test_a_voice_is_the_official_x_vector_and_codes(engine, official_model, recording):
    item = official_model("tiny-random-base").create_voice_clone_prompt(
        str(recording), ref_text=TRANSCRIPT
    )[0]
    voice = Voice.from_audio(engine, recording, TRANSCRIPT, silence_tail=0)
    assert (voice.name, voice.transcript) == ("mario", TRANSCRIPT)
    assert np.abs(voice.x_vector - item.ref_spk_embedding.numpy()).max() <= X_VECTOR_F32
    assert np.array_equal(voice.codes, item.ref_code.numpy())


def test_half_a_second_of_silence_follows_the_reference(engine, official_model, recording):
    """Not in the x-vector: it describes the speaker, not the pause."""
    samples, _ = soundfile.read(recording, dtype="float32")
    with_tail = np.concatenate([samples.mean(axis=1), np.zeros(RATE // 2, np.float32)])
    item = official_model("tiny-random-base").create_voice_clone_prompt(
        (with_tail, RATE), ref_text=TRANSCRIPT
    )[0]
    voice = engine.create_voice(recording, TRANSCRIPT)
    assert voice.codes.shape == item.ref_code.shape == (36, 16)
    # The silence is added after resampling, not before it: the filter rings over the last frames.
    num_equal = int(SECONDS * 12.5) - 1
    assert np.array_equal(voice.codes[:num_equal], item.ref_code.numpy()[:num_equal])
    plain = engine.create_voice(recording)
    assert np.array_equal(voice.x_vector, plain.x_vector) and plain.codes is None


@pytest.mark.parametrize("num_frames", [1, 2, 5])
def test_no_sample_of_the_reference_is_heard_and_none_is_lost(engine, recording, num_frames):
    """The stream plays what remains if reference and speech are decoded together and then cut."""
    voice = engine.create_voice(recording, TRANSCRIPT)
    chunks = list(engine.stream(TEXT, voice=voice, max_frames=num_frames, chunk_frames=2, seed=1))
    speech = np.concatenate([chunk.samples for chunk in chunks]) / 32768
    codes = engine.synthesize(TEXT, voice=voice, max_frames=num_frames, seed=1).codes
    whole = engine.decode(np.concatenate([voice.codes, codes]))
    assert len(speech) == len(codes) * FRAME
    assert np.abs(speech - whole[len(voice.codes) * FRAME :]).max() <= PCM16
    cold = engine.decode(codes)
    assert np.abs(speech - cold).max() > 100 * AUDIO_F32  # so the vocoder did hear the reference


def test_a_recording_encoded_has_the_official_codes(engine, official_model, recording):
    official = official_model("tiny-random-base").model.speech_tokenizer
    expected = official.encode(str(recording)).audio_codes[0].numpy()
    codes = engine.encode(recording)
    assert np.array_equal(codes, expected)
    assert engine.decode(codes).shape == (len(codes) * FRAME,)
    assert len(engine.encode(waveforms.noise(0.3, 8000), 8000)) == 4


@pytest.mark.timeout(60)
def test_a_recording_that_lasts_too_long_is_not_encoded(engine):
    with pytest.raises(RecordingError, match=r"is 61\.0 s long; it must have 0 to 60 s"):
        engine.encode(waveforms.noise(61, 1000), 1000)
    # A second of audio at 24 kHz would become an hour.
    with pytest.raises(RecordingError, match=r"has 7 samples per second; it must have at least"):
        engine.encode(waveforms.noise(1, 24000), 7)


def test_bad_references_leave_the_engine_usable(engine, recording, tmp_path):
    (tmp_path / "junk.wav").write_bytes(b"RIFFjunk")
    bad = [
        (tmp_path / "junk.wav", {}),
        (tmp_path / "absent.wav", {}),
        (recording, {"text": ""}),
        (recording, {"text": TRANSCRIPT * 9}),
        (recording, {"rate": 16000}),
        (waveforms.noise(2, RATE), {}),
        (waveforms.noise(0.2, RATE), {"rate": RATE}),
        (waveforms.noise(61, 8000), {"rate": 8000}),
        (np.zeros(2 * RATE), {"rate": RATE}),
        (np.full(2 * RATE, np.nan), {"rate": RATE}),
        (waveforms.noise(2, RATE), {"rate": 0}),
    ]
    for audio, options in bad:
        with pytest.raises(UsageError):
            engine.create_voice(audio, **options)
    voice = engine.create_voice(recording)
    assert len(engine.synthesize("Hi.", voice=voice, max_frames=2).codes) == 2


def test_models_that_cannot_clone_say_so(load_checkpoint, recording):
    with pytest.raises(TaskError, match="cannot clone") as caught:
        VoiceLibrary(load_checkpoint("tiny-random")).create(recording)
    assert "Qwen3-TTS-12Hz-0.6B-Base" in caught.value.hint
    demo = load_checkpoint("demo-voice")
    with pytest.raises(TaskError, match="cannot clone"):
        VoiceLibrary(demo).create(recording)
    with pytest.raises(TaskError, match="can only decode"):
        VoiceLibrary(replace(demo, has_codec_encoder=False)).encode(recording)


def test_speakers_of_the_checkpoint_take_no_clone(cache_folder, voices, recording):
    with tiny_engine() as tts, pytest.raises(TaskError, match="cannot clone"):
        tts.stream("Hi.", voice=voices.create(recording))


# ---- names and files -----------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, voices, recording):
    voices.create(recording, TRANSCRIPT).save(tmp_path / "mario.voice.safetensors")
    rng = np.random.default_rng(0)
    save_presets(tmp_path / "voice_presets.bin", [Voice("luigi", rng.standard_normal(128))])
    return tmp_path


def test_voices_of_a_folder_are_called_by_name(load_checkpoint, folder, voices, recording):
    named = VoiceLibrary(load_checkpoint("tiny-random-base"), folder)
    assert named.presets == ["luigi", "mario"]
    made, found = voices.create(recording, TRANSCRIPT), named.resolve("mario")
    assert np.array_equal(found.x_vector, made.x_vector) and found.transcript == TRANSCRIPT
    assert len(named.resolve("luigi").x_vector) == 128
    (folder / "mario.voice.safetensors").unlink()
    assert named.presets == ["luigi"]
    with pytest.raises(UsageError, match="no voices folder"):
        VoiceLibrary(load_checkpoint("tiny-random-base"), folder / "absent")


def test_damaged_files_hide_no_other_voice(load_checkpoint, folder, caplog):
    (folder / "torn.voice.safetensors").write_bytes(b"torn")
    (folder / "voice_presets.bin").write_bytes(b"torn")
    named = VoiceLibrary(load_checkpoint("tiny-random-base"), folder)
    for _ in range(2):
        assert named.presets == ["mario", "torn"]
        assert named.resolve("mario").transcript == TRANSCRIPT
    assert caplog.text.count("voice_presets.bin is damaged") == 1
    for name, file in {"torn": "torn.voice.safetensors", "luigi": "voice_presets.bin"}.items():
        with pytest.raises(RecordingError, match=f"{file} is damaged"):
            named.resolve(name)


@pytest.mark.parametrize("looked", ["listed", "listed and seen"])
def test_a_voice_that_goes_while_it_is_looked_up_is_unknown(
    load_checkpoint, folder, monkeypatch, looked
):
    named = VoiceLibrary(load_checkpoint("tiny-random-base"), folder)
    known = named.presets
    monkeypatch.setattr(VoiceLibrary, "presets", property(lambda _: list(known)))
    (folder / "mario.voice.safetensors").unlink()
    if looked == "listed and seen":
        monkeypatch.setattr(Path, "is_file", lambda _: True)
    with pytest.raises(UnknownVoice, match=r'"mario".*Presets: luigi\.'):
        named.resolve("mario")


def test_the_engine_takes_a_name_a_path_and_a_voice(cache_folder, folder):
    path = folder / "mario.voice.safetensors"
    options = {"max_frames": 5, **GREEDY}
    with tiny_engine("tiny-random-base", dtype="float32", voices=folder) as tts:
        assert tts.voices == ["luigi", "mario"]
        by_name, by_path, by_voice, other, none = (
            tts.synthesize(TEXT, voice=voice, **options).codes
            for voice in ("mario", str(path), Voice.load(path), "luigi", None)
        )
    assert np.array_equal(by_name, by_path) and np.array_equal(by_name, by_voice)
    assert not np.array_equal(by_name, other) and not np.array_equal(other, none)


def test_an_unknown_name_lists_some_of_many_presets(load_checkpoint, tmp_path):
    for name in (*(f"voice{index}" for index in range(19)), "mario"):
        (tmp_path / f"{name}.voice.safetensors").touch()
    with pytest.raises(UnknownVoice) as caught:
        VoiceLibrary(load_checkpoint("tiny-random-base"), tmp_path).resolve("marjo")
    assert "Presets: mario, voice0, " in caught.value.what
    assert caught.value.what.endswith(" and 10 more.")


@pytest.mark.parametrize("name", ["alloy", "../mario", "/etc/passwd", "..", "mario/", ""])
def test_unknown_names_list_what_there_is(load_checkpoint, folder, name):
    (folder / "inner").mkdir()
    (folder / "inner" / "peach.voice.safetensors").touch()
    (folder / "daisy.voice.safetensors").mkdir()  # no voice has a folder as its file
    named = VoiceLibrary(load_checkpoint("tiny-random-base"), folder)
    with pytest.raises(UnknownVoice) as caught:
        named.resolve(name)
    assert "This model has: (none). Presets: luigi, mario." in caught.value.what
    custom = VoiceLibrary(load_checkpoint("tiny-random"))
    assert custom.resolve("Ryan") == "ryan"
    with pytest.raises(UnknownVoice, match=r"aiden, dylan.*Presets: \(none\)"):
        custom.resolve(name)


def test_a_name_that_is_nearly_one_or_a_mix_gets_a_hint(load_checkpoint, folder):
    named = VoiceLibrary(load_checkpoint("tiny-random-base"), folder)
    mixed = 'A mix is written as in "anna(2)+ben", with weights of 0 or more.'
    for name, hint in {"luigy": 'Did you mean "luigi"?', "luigi(-1)+mario": mixed}.items():
        with pytest.raises(UnknownVoice) as caught:
            named.resolve(name)
        assert caught.value.hint == hint


def test_voice_files_can_be_mixed_with_and_without_weights(load_checkpoint, folder, tmp_path):
    named = VoiceLibrary(load_checkpoint("tiny-random-base"), folder)
    luigi, file = named.resolve("luigi"), tmp_path / "l.voice.safetensors"
    luigi.save(file)
    for name in (f"luigi(2)+{file}", f"{file}+{file}(2)"):
        assert np.array_equal(named.resolve(name).x_vector, luigi.x_vector)
    odd = tmp_path / "a+b.voice.safetensors"
    luigi.save(odd)
    assert named.resolve(str(odd)) == luigi


def test_samples_may_bring_their_rate(voices, recording):
    samples, rate = soundfile.read(recording, dtype="float32")
    together, apart = voices.create((samples, rate)), voices.create(samples, rate=rate)
    assert np.array_equal(together.x_vector, apart.x_vector)


@pytest.mark.parametrize(
    ("audio", "options", "message"),
    [
        (b"RIFF", {}, r"audio is b'RIFF'; it must be the path of a file"),
        (np.zeros(24000), {}, "need their rate"),
        (np.zeros(24000), {"rate": "24k"}, "rate is '24k'; it must be a whole number"),
        (np.zeros(24000), {"rate": 24000, "text": 5}, "text is 5"),
        (np.zeros(24000), {"rate": 24000, "silence_tail": -1}, "silence_tail is -1.0"),
        ((np.zeros(24000), 24000), {"rate": 16000}, "rate is 16000, but audio is .samples, rate."),
        (np.zeros((2, 24000)), {"rate": 24000}, r"2 samples of 24000 channels(.|\n)*samples\.T"),
        (np.zeros(24000, complex), {"rate": 24000}, "dtype complex128; need .* real numbers"),
        (torch.ones(24000, requires_grad=True), {"rate": 24000}, r"tensor\(.* array: .*detach\(\)"),
        ([[0.0], [0.0, 0.0]], {"rate": 24000}, r"\[\[0.0\], \[0.0, 0.0\]\]; it cannot be an array"),
    ],
)
def test_a_value_that_is_not_a_recording_is_named(voices, audio, options, message):
    with pytest.raises(UsageError, match=message):
        voices.create(audio, **options)


def test_a_path_that_no_file_can_have_is_a_file_that_is_not_there(voices, load_checkpoint):
    name = "a" * 300  # longer than file systems allow
    with pytest.raises(RecordingError, match="no such file"):
        voices.create(f"{name}.wav")
    with pytest.raises(UnknownVoice, match="There is no voice file a"):
        voices.resolve(f"{name}.voice.safetensors")
    with pytest.raises(UsageError, match="There is no voices folder a"):
        VoiceLibrary(load_checkpoint("tiny-random-base"), name)


def test_a_value_that_is_no_folder_is_named(load_checkpoint):
    with pytest.raises(UsageError, match="voices is 5; it must be the path of a folder"):
        VoiceLibrary(load_checkpoint("tiny-random"), 5)


@pytest.mark.parametrize("call", ["create", "encode"])
@pytest.mark.parametrize("rate", [0, -5])
def test_a_rate_that_is_not_above_0_is_refused(voices, call, rate):
    with pytest.raises(RecordingError, match=f"a sample rate of {rate}; it must be above 0"):
        getattr(voices, call)(np.zeros(24000), rate=rate)


def test_a_voice_of_another_checkpoint_is_refused(cache_folder, load_checkpoint, voices, recording):
    voice = voices.create(recording)
    with pytest.raises(VoiceMismatch, match=r"0b6-.*1b7-") as caught:
        VoiceLibrary(load_checkpoint("tiny-random-base-1.7b")).resolve(voice)
    assert "qwen-megakernel voices create" in caught.value.hint
    preset = Voice("mario", voice.x_vector)  # no fingerprint: only the width is checked
    with (
        tiny_engine("tiny-random-base-1.7b") as tts,
        pytest.raises(VoiceMismatch, match=r"128-dim.*192-dim"),
    ):
        tts.stream("Hi.", voice=preset)


def test_presets_beside_the_weights_are_found(tmp_path, model_folder, load_checkpoint):
    from qwen_megakernel.checkpoint import loading

    folder = tmp_path / "model"
    folder.mkdir()
    for path in model_folder("tiny-random-base").iterdir():
        (folder / path.name).symlink_to(path)
    rng = np.random.default_rng(0)
    save_presets(folder / "voice_presets.bin", [Voice("peach", rng.standard_normal(128))])
    assert VoiceLibrary(loading.load(loading.resolve(str(folder)))).presets == ["peach"]
    (folder / "voice_presets.bin").write_bytes(struct.pack("<i", 7))
    with pytest.raises(RecordingError, match="damaged"):
        VoiceLibrary(loading.load(loading.resolve(str(folder)))).resolve("peach")


# ---- the cache -----------------------------------------------------------------------------------


def counting(calls, name):
    return {name: lambda: calls.append(name) or np.zeros(1)}


def test_the_cache_counts_hits_evicts_the_oldest_and_forgets_on_demand():
    cache, calls = ReferenceCache(), []
    clips = [np.full(10, i, np.float32) for i in range(5)]
    for clip in clips[:4]:
        cache.get(clip, 16000, counting(calls, "a"))
    cache.get(clips[0].copy(), 16000, counting(calls, "a"))
    assert (cache.hits, len(cache), len(calls)) == (1, 4, 4)
    cache.get(clips[4], 16000, counting(calls, "a"))  # replaces 1, the least recently used
    cache.get(clips[0], 16000, counting(calls, "a"))
    assert (cache.hits, len(calls)) == (2, 5)
    cache.get(clips[1], 16000, counting(calls, "a"))
    assert (cache.hits, len(calls)) == (2, 6)
    cache.get(clips[1], 24000, counting(calls, "a"))  # the rate is part of the key
    cache.get(clips[1], 24000, counting(calls, "b"))  # and values are kept one by one
    assert (cache.hits, len(calls), len(cache)) == (2, 8, 4)
    cache.clear()
    cache.get(clips[1], 24000, counting(calls, "b"))
    assert (len(cache), len(calls)) == (1, 9)


def test_a_failure_is_not_remembered():
    cache = ReferenceCache()
    with pytest.raises(RecordingError):
        cache.get(np.zeros(3), 1, {"a": Mock(side_effect=RecordingError("planted"))})
    assert cache.get(np.zeros(3), 1, {"a": lambda: np.ones(1)})["a"] == 1


def test_requests_racing_for_one_recording_compute_once():
    cache, calls, started = ReferenceCache(), [], threading.Barrier(8)
    slow = lambda: calls.append(time.sleep(0.05)) or np.ones(1)  # noqa: E731

    def request(_):
        started.wait()
        return cache.get(np.zeros(3), 1, {"a": slow})["a"]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(request, range(8)))
    assert len(calls) == 1 and len(found) == 8 and cache.hits == 7


def test_the_engine_remembers_recordings(engine, recording):
    engine.clear_reference_cache()
    before = engine.reference_cache_hits
    first = engine.create_voice(recording, TRANSCRIPT)
    again = engine.create_voice(recording, TRANSCRIPT)
    samples, rate = soundfile.read(recording, dtype="float32")
    by_samples = engine.create_voice(samples, rate=rate)
    assert engine.reference_cache_hits == before + 2
    assert again.codes is first.codes and by_samples.x_vector is first.x_vector
    engine.clear_reference_cache()
    assert engine.create_voice(recording).x_vector is not first.x_vector
    assert engine.reference_cache_hits == before + 2


def test_errors_are_those_of_the_catalogue():
    for error in (RecordingError, TaskError, UnknownVoice, VoiceMismatch):
        assert issubclass(error, QwenTTSError)
        assert (error.exit_code, error.http_status) == (2, 400)


def test_a_voice_without_fingerprint_is_taken(voices, recording, caplog):
    with caplog.at_level(logging.WARNING):
        voice = Voice("x", voices.create(recording).x_vector)
        assert voices.resolve(voice) is voice
    assert not caplog.records
