"""demo_pipeline.py as a user runs it: the file, the figures, the exit codes, Ctrl-C."""

import json
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from commands import ROOT, CommandsHere, run, start
from tiny_speech import tiny_engine
from tolerances import nearly

from qwen_megakernel.audio import to_int16
from qwen_megakernel.cli import options
from qwen_megakernel.installing import install_command

TEXT = "Hello there, friend. How are you?"
TINY = ("--model", "tiny-random", "--voice", "aiden", "--seed", "3", "--max-frames", "8")
PLAYERS = (("demo_pipeline.py", "--text"), ("-m", "qwen_megakernel", "speak"))


@pytest.fixture
def demo(run_here: CommandsHere, backend: str) -> Callable:
    """demo(*arguments): runs the script in this process; returns exit code, stdout, stderr."""

    def run(*arguments: object, stdin: str = "") -> tuple[int, str, str]:
        done = run_here("demo_pipeline.py", *arguments, "--backend", backend, stdin=stdin)
        return done.returncode, done.stdout, done.stderr

    return run


def test_the_native_decoder_speaks_demo_voice_without_an_underrun(run_here, tmp_path):
    words = ("--text", TEXT, "--model", "demo-voice", "--seed", "3", "--backend", "cpu", "--json")
    for _ in range(3):  # another program may use both cores
        done = run_here("demo_pipeline.py", *words, "--output", tmp_path / "a.wav")
        facts = json.loads(done.stdout)
        assert facts["backend"] == "cpu" and len(facts["chunks"]) >= 3
        if facts["underruns"]["100ms"] == 0:
            break
    else:
        pytest.fail(f"chunks: {facts['chunks']}")
    with tiny_engine("demo-voice", backend="cpu") as engine:
        speech = engine.synthesize(TEXT, seed=3, first_chunk_frames=1)
    samples, _ = soundfile.read(tmp_path / "a.wav", dtype="int16")
    np.testing.assert_array_equal(samples, to_int16(speech.audio))


@pytest.mark.parametrize("backend", ["torch", "emulation"])
def test_the_file_is_what_the_engine_says_and_every_chunk_is_timed(demo, tmp_path):
    code, out, err = demo("--text", TEXT, "--output", tmp_path / "a.wav", *TINY)
    assert code == 0 and not out, err
    with tiny_engine(backend="torch") as engine:  # both backends have this vocoder
        speech = engine.synthesize(TEXT, voice="aiden", seed=3, max_frames=8, first_chunk_frames=1)
    samples, rate = soundfile.read(tmp_path / "a.wav", dtype="int16")
    np.testing.assert_array_equal(samples, to_int16(speech.audio))
    times = [float(at) for at in re.findall(r"^chunk .* at +([\d.]+) ms", err, re.MULTILINE)]
    assert len(times) >= 3 and times == sorted(times) and rate == 24000
    for fact in (
        "RTF",
        "seed 3",
        " ms after the text was complete",
        "first audible sample",
        "underruns: ",
    ):
        assert fact in err


def test_token_mode_dumps_codes_and_prints_one_json_object(demo, tmp_path):
    dump = tmp_path / "codes.tsv"
    arguments = ("--token", "--json", "--dump-codes", dump, "--output", tmp_path / "a.wav", *TINY)
    code, out, err = demo("--text", "-", *arguments, stdin=TEXT)
    assert code == 0, err
    facts = json.loads(out)
    assert (facts["mode"], facts["seeds"], facts["model"]) == ("token", [3], "tiny-random")
    assert facts["is_synthetic"] and "noise, not speech" in facts["banner"]
    assert set(facts["underruns"]) == {"0ms", "100ms"}
    assert 0 < facts["ttfb_ms"] <= facts["first_audible_ms"]
    assert re.fullmatch(r"\d+\.\d{1,4}", str(facts["ttfb_ms"]))
    assert sum(chunk["audio_ms"] for chunk in facts["chunks"]) == nearly(1000 * facts["audio_s"])
    codes = np.loadtxt(dump, dtype=int, ndmin=2)
    assert len(codes) * 1920 == len(soundfile.read(tmp_path / "a.wav")[0])


def test_token_mode_says_how_long_before_the_end_of_the_text_it_is_heard(run_here, tmp_path):
    words = ("--token", "--text", TEXT * 4, "--model", "demo-voice", "--output", tmp_path / "a.wav")
    done = run_here("demo_pipeline.py", *words)
    assert re.search(r"^first byte after \d+ ms, \d+ ms before the text was", done.stderr, re.M)


def test_a_voice_is_cloned_from_a_sample(demo, tmp_path):
    sample = tmp_path / "sample.wav"
    hum = np.sin(np.arange(2 * 24000) / 20) * 0.3
    soundfile.write(sample, hum, 24000)
    common = ("--text", TEXT, "--model", "tiny-random-base", "--seed", "3", "--max-frames", "4")
    code, _, err = demo(*common, "--voice-sample", sample, "--output", tmp_path / "a.wav")
    assert code == 0, err
    code, _, err = demo(*common, "--output", tmp_path / "b.wav")
    assert code == 0, err
    assert (tmp_path / "a.wav").read_bytes() != (tmp_path / "b.wav").read_bytes()


@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        ([signal.SIGINT, signal.SIGINT, signal.SIGTERM], 130),
        pytest.param([signal.SIGTERM], 143, marks=pytest.mark.ci),
    ],
)
def test_a_signal_leaves_a_whole_file_of_what_was_spoken(tmp_path, numbers, code):
    path = tmp_path / "a.wav"
    text = "This is a long text about a house at the edge of a wood. " * 100
    model = ("--model", "demo-voice", "--backend", "cpu")
    process = start("demo_pipeline.py", "--text", text, "--output", path, *model)
    lines = iter(process.stderr.readline, "")
    assert next(line for line in lines if line.startswith("chunk")).startswith("chunk   1")
    assert next(lines).startswith("chunk   2")
    for number in numbers:
        process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert process.returncode == code and "Traceback" not in err and "interrupted" in err
    assert len(soundfile.read(path)[0]) >= 3 * 1920
    assert [file.name for file in tmp_path.iterdir()] == ["a.wav"]


def test_a_full_disk_is_reported_and_leaves_no_file(demo, tmp_path, monkeypatch):
    def write(file: soundfile.SoundFile, samples: np.ndarray) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(soundfile.SoundFile, "write", write)
    code, out, err = demo("--text", TEXT, "--output", tmp_path / "a.wav", *TINY)
    assert code == 5 and "of speech in" not in out
    assert "No space left on device" in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--text", "...", *TINY), 2, "nothing to speak"),
        (("--text", "Hi.", "--model", "tiny-random", "--voice", "nobody"), 2, "Unknown voice"),
        (("--text", "Hi.", "--language", "Klingon", *TINY), 2, "Unknown language"),
        (("--text", "Hi.", "--temperature", "0", *TINY), 2, "For greedy decoding use --greedy"),
        (("--text", "Hi.", "--model", "/nowhere/at/all"), 4, "/nowhere/at/all"),
        (("--text", "Hi.", "--output", "/nowhere/a.wav", *TINY), 5, "/nowhere/a.wav"),
        (("--text", "Hi.", "--instruct", "x", "--model", "tiny-random-base"), 2, "instruct"),
    ],
)
def test_errors_of_the_catalogue_are_reported_without_a_traceback(
    demo, arguments, code, message, tmp_path
):
    if "--output" not in arguments:
        arguments = (*arguments, "--output", str(tmp_path / "a.wav"))
    returned, _, err = demo(*arguments)
    assert returned == code, err
    assert message in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_missing_package_is_named_with_its_cure(tmp_path):
    blocked = tmp_path / "pipecat.py"
    blocked.write_text("raise ImportError('blocked')")
    process = run("demo_pipeline.py", "--text", "Hi.", *TINY, PYTHONPATH=str(tmp_path))
    assert process.returncode == 3
    assert install_command("pipecat") in process.stderr


@pytest.mark.parametrize("script", PLAYERS)
@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (ModuleNotFoundError("No module named 'sounddevice'"), install_command("play")),
        (OSError("PortAudio library not found"), "Install libportaudio2 (Debian, Ubuntu)"),
    ],
    ids=["no package", "no library"],
)
def test_play_names_what_is_missing_before_a_model_is_loaded(
    run_here, monkeypatch, tmp_path, error, hint, script
):
    class Broken:
        """Finds sounddevice, whose import fails as it does where something is missing."""

        def find_spec(self, name, path=None, target=None):
            if name == "sounddevice":
                raise error

    monkeypatch.delitem(sys.modules, "sounddevice", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    monkeypatch.setattr(options, "engine_from_args", None)
    out = tmp_path / "a.wav"
    done = run_here(*script, TEXT, "--play", "--output", out, *TINY)
    assert done.returncode == 3 and not out.exists()
    assert done.stderr.startswith("error: --play needs ") and str(error) in done.stderr
    assert hint in done.stderr
    page = (ROOT / "docs" / "pipecat.md").read_text(encoding="utf-8")
    assert "libportaudio2" in page and "[play]" in page


def test_play_finds_no_loudspeaker_before_a_model_is_loaded(run_here, monkeypatch, tmp_path):
    class PortAudioError(Exception):
        """The package's error."""

    def query_devices(kind):
        raise PortAudioError(f"no {kind}")

    module = SimpleNamespace(query_devices=query_devices, PortAudioError=PortAudioError)
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    monkeypatch.setattr(options, "engine_from_args", None)
    done = run_here("demo_pipeline.py", "--text", TEXT, "--play", "--output", tmp_path / "a.wav")
    assert done.returncode == 5 and not list(tmp_path.iterdir())
    assert done.stderr == "error: --play finds no loudspeaker: no output.\n"


# ALSA's way to a loudspeaker that is a file.
SOUND_CARD = """</usr/share/alsa/alsa.conf>
pcm.!default {{
  type file
  file "{played}"
  format "raw"
  slave.pcm "null"
}}
"""


@pytest.mark.parametrize("script", PLAYERS)
def test_play_sends_the_loudspeaker_what_the_file_holds(tmp_path, script):
    """In a process of its own: ALSA reads its configuration once."""
    try:
        import sounddevice  # noqa: F401
    except (ImportError, OSError) as error:
        pytest.skip(f"no sounddevice or no PortAudio: {error}")
    if not Path("/usr/share/alsa/alsa.conf").exists():
        pytest.skip("no ALSA to stand in for a sound card")
    played, card, wav = tmp_path / "played.raw", tmp_path / "asound.conf", tmp_path / "a.wav"
    card.write_text(SOUND_CARD.format(played=played))
    arguments = (TEXT, "--play", "--output", wav, *TINY, "--backend", "cpu")
    done = run(*script, *arguments, ALSA_CONFIG_PATH=str(card))
    assert done.returncode == 0, done.stderr
    samples, _ = soundfile.read(wav, dtype="int16")
    np.testing.assert_array_equal(np.fromfile(played, dtype="<i2"), samples)
