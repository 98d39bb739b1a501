"""X-vectors against the official encoder, from any recording."""

import subprocess
import sys

import numpy as np
import pytest
import torch
import waveforms
from tolerances import X_VECTOR_F32

from qwen_megakernel.checkpoint.config import parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.cloning import recordings
from qwen_megakernel.cloning.speaker_encoder import FFT_SIZE, MAX_HZ, SpeakerEncoder, mel_filters
from qwen_megakernel.errors import RecordingError

RATE = 24000


@pytest.fixture(scope="module")
def encoder(load_checkpoint):
    loaded = load_checkpoint("tiny-random-base")
    return SpeakerEncoder(loaded.config.speaker_encoder, loaded.load_prefix("speaker_encoder."))


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 24000, 44100, 48000])
@pytest.mark.parametrize("kind", ["noise", "voice", "stereo"])
def test_any_recording_gives_the_official_x_vector(encoder, official_model, kind, rate):
    recording = {
        "noise": lambda: waveforms.noise(1.2, rate),
        "voice": lambda: waveforms.voice_like(1.2, rate),
        "stereo": lambda: waveforms.noise(1.2, rate, channels=2),
    }[kind]()
    mono = recordings.to_mono(recording)
    ours = encoder.encode(recordings.resample(mono, rate, RATE))
    # The official wrapper takes stereo from files only, as the mean of the channels.
    official = official_model("tiny-random-base")
    item = official.create_voice_clone_prompt(
        (recording if recording.ndim == 1 else recording.mean(axis=1), rate),
        x_vector_only_mode=True,
    )[0]
    assert ours.dtype == np.float32 and ours.shape == (128,)
    assert np.abs(ours - item.ref_spk_embedding.numpy()).max() <= X_VECTOR_F32
    assert np.abs(ours).max() > 100 * X_VECTOR_F32


def test_two_speakers_differ(encoder):
    a, b = (encoder.encode(waveforms.voice_like(1, RATE, seed)) for seed in (1, 2))
    assert np.abs(a - b).max() > 100 * X_VECTOR_F32


def test_released_shapes(official_package):
    from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSSpeakerEncoderConfig
    from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSSpeakerEncoder, mel_spectrogram

    torch.manual_seed(0)
    config = parse_model_config(model_config("random-1.7b-base")).speaker_encoder
    official = Qwen3TTSSpeakerEncoder(Qwen3TTSSpeakerEncoderConfig(enc_dim=config.enc_dim)).eval()
    ours = SpeakerEncoder(config, official.state_dict())
    samples = waveforms.voice_like(1, RATE)
    mel = mel_spectrogram(torch.from_numpy(samples)[None], 1024, 128, RATE, 256, 1024, 0, 12000)
    assert (ours.mel_spectrogram(torch.from_numpy(samples)) - mel[0]).abs().max() <= X_VECTOR_F32
    with torch.inference_mode():
        expected = official(mel.transpose(1, 2))[0].numpy()
    assert expected.shape == (2048,)
    assert np.abs(ours.encode(samples) - expected).max() <= X_VECTOR_F32


def test_too_few_samples_are_refused(encoder):
    with pytest.raises(RecordingError, match="too few"):
        encoder.encode(np.zeros(1000, dtype=np.float32))
    assert np.isfinite(encoder.encode(waveforms.noise(0.2, RATE))).all()


def test_mel_filters_are_those_of_transformers():
    from transformers.audio_utils import mel_filter_bank

    bins = FFT_SIZE // 2 + 1
    for num_filters in (128, 80):
        official = mel_filter_bank(
            bins, num_filters, 0.0, MAX_HZ, RATE, norm="slaney", mel_scale="slaney"
        )
        assert np.array_equal(mel_filters(num_filters, RATE), official.T)


def test_an_encoder_is_made_without_transformers_whose_import_takes_seconds():
    code = (
        "import sys\n"
        "from qwen_megakernel.checkpoint.config import parse_model_config\n"
        "from qwen_megakernel.checkpoint.random_configs import model_config\n"
        "from qwen_megakernel.cloning.speaker_encoder import SpeakerEncoder\n"
        "config = parse_model_config(model_config('tiny-random-base'))\n"
        "SpeakerEncoder(config.speaker_encoder, {})\n"
        "print('transformers' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
