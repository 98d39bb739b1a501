"""--speed, --volume and --sample-rate of the commands that speak."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from commands import CommandsHere
from tolerances import LOUDNESS_LU, PEAK_DB, ROUNDED_COUNT

from qwen_megakernel.cli import main

VOICE = ("--model", "demo-voice", "--backend", "cpu", "--seed", "1", "--max-frames", "20")
SPEAK = (*VOICE, "--leading-silence", "60000")  # keeps all silence


def spoken(tmp_path: Path, *options: str) -> tuple[np.ndarray, int]:
    output = tmp_path / "out.wav"
    assert main.main(["speak", "Hello there.", *SPEAK, "-o", str(output), *options]) == 0
    return soundfile.read(output, dtype="float32")


def test_a_file_is_as_fast_as_loud_and_of_the_rate_that_is_asked_for(tmp_path, capsys):
    plain, rate = spoken(tmp_path)
    assert rate == 24000 and f"{len(plain) / 24000:.2f} s" in capsys.readouterr().err
    fast, rate = spoken(tmp_path, "--speed", "2", "--sample-rate", "16000", "--volume", "-20")
    assert rate == 16000
    assert abs(len(fast) - len(plain) / 3) <= ROUNDED_COUNT
    peaks = [20 * np.log10(np.abs(samples).max()) for samples in (plain, fast)]
    assert peaks[0] - peaks[1] == pytest.approx(20, abs=PEAK_DB)
    assert f"{len(fast) / 16000:.2f} s" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["ulaw", "alaw"])
def test_a_wav_file_may_have_the_telephones_samples(tmp_path, encoding: str):
    for more, rate in (((), 8000), (("--sample-rate", "16000"), 16000)):
        spoken(tmp_path, "--encoding", encoding, *more, "--quiet")
        with soundfile.SoundFile(tmp_path / "out.wav") as file:
            assert (file.subtype, file.samplerate) == (encoding.upper(), rate)
            assert len(file) > rate / 2


def test_the_silence_at_the_edges_is_what_is_asked_for(tmp_path: Path):
    stepwise = ("--text-feed", "stepwise", "--quiet")  # a word waits for its letters
    lengths = [
        len(spoken(tmp_path, "--leading-silence", ms, *stepwise)[0]) for ms in ("0", "60", "60000")
    ]
    assert lengths[1] - lengths[0] == 60 * 24 and lengths[2] - lengths[1] > 100 * 24
    output = tmp_path / "default.wav"
    assert main.main(["speak", "Hello there.", *VOICE, "-o", str(output), *stepwise]) == 0
    assert len(soundfile.read(output)[0]) == lengths[1]  # the default of demo-voice's config


def test_a_speech_of_which_nothing_is_heard_is_no_file(tmp_path: Path, capsys):
    output = tmp_path / "out.wav"
    options = ("-o", str(output), "--max-frames", "1", "--leading-silence", "0")
    assert main.main(["speak", "Hello there.", *VOICE, *options]) == 2
    assert f"There is no audio to write to {output}: all of it is silence." in (
        capsys.readouterr().err
    )
    assert not list(tmp_path.iterdir())


def test_a_file_has_the_loudness_that_is_asked_for(tmp_path: Path):
    levels = []
    for loudness in ("-30", "-20"):
        samples, _ = spoken(tmp_path, "--loudness", loudness, "--quiet")
        levels.append(20 * np.log10(np.sqrt(np.mean(samples**2))))
    assert levels[1] - levels[0] == pytest.approx(10, abs=LOUDNESS_LU)


def test_standard_output_has_what_is_heard(tmp_path: Path, capfdbinary):
    samples, _ = spoken(tmp_path, "--speed", "2", "--quiet")
    capfdbinary.readouterr()
    assert main.main(["speak", "Hello there.", *SPEAK, "--stdout", "--speed", "2", "--quiet"]) == 0
    assert len(capfdbinary.readouterr().out) == 2 * len(samples)


@pytest.mark.parametrize("script", ["demo_tts.py", "demo_pipeline.py"])
def test_the_demos_take_the_same_options(run_here: CommandsHere, tmp_path: Path, script: str):
    text = ("Hello there.",) if script == "demo_tts.py" else ("--text", "Hello there.")
    lengths = {}
    for name, sound in {"plain": (), "slow": ("--speed", "0.5", "--sample-rate", "8000")}.items():
        output = tmp_path / f"{name}.wav"
        done = run_here(script, *text, *SPEAK, *sound, "--output", output)
        assert done.returncode == 0, done.stderr
        samples, rate = soundfile.read(output)
        assert rate == (8000 if sound else 24000)
        lengths[name] = len(samples) / rate
        assert f"{lengths[name]:.2f} s of speech" in done.stderr
    assert f"{lengths['slow']:.3f}" == f"{2 * lengths['plain']:.3f}"


def test_the_pipelines_figures_are_of_what_is_heard(run_here: CommandsHere, tmp_path: Path):
    output = tmp_path / "a.wav"
    sound = ("--speed", "2", "--sample-rate", "48000", "--json", "--output", output)
    done = run_here("demo_pipeline.py", "--text", "Hello there.", *SPEAK, *sound)
    facts = json.loads(done.stdout)
    samples, rate = soundfile.read(output)
    assert rate == 48000 and f"{facts['audio_s']:.3f}" == f"{len(samples) / rate:.3f}"
    assert facts["ttfb_ms"] <= facts["first_audible_ms"]
