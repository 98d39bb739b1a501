"""The command `voices`, and cloning from the command line."""

import fcntl
import json
import os
import pty
import shutil
import struct
import sys
import termios
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import waveforms
from tolerances import X_VECTOR_F32

from qwen_megakernel import Voice
from qwen_megakernel.cli import options
from qwen_megakernel.cli.main import main
from qwen_megakernel.engine import codes_file
from qwen_megakernel.voice import save_presets

ROOT = Path(__file__).parents[2]
BASE = ("--model", "tiny-random-base", "--backend", "cpu", "--dtype", "float32", "--quiet")
TRANSCRIPT = "It is cold today, and we are late."


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """mario.wav with its transcript, and luigi.flac without one."""
    folder = tmp_path_factory.mktemp("recordings")
    soundfile.write(folder / "mario.wav", waveforms.voice_like(3, 16000, 1), 16000)
    soundfile.write(folder / "luigi.flac", waveforms.voice_like(2, 44100, 2), 44100)
    (folder / "mario.txt").write_text(f"{TRANSCRIPT}\n", encoding="utf-8")
    return folder


def run(*arguments):
    return main([str(argument) for argument in arguments])


def speak(tmp_path, *arguments):
    """The codes that `speak` dumps for greedy speech."""
    dump = tmp_path / "codes.tsv"
    options = ("--output", tmp_path / "a.wav", "--dump-codes", dump, "--max-frames", 5, "--greedy")
    assert run("speak", "Hello there.", *BASE, *options, *arguments) == 0
    return codes_file.read(dump)


def test_a_folder_becomes_voices(recordings, tmp_path, capsys):
    assert run("voices", "create", recordings, "-o", tmp_path, *BASE) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "luigi.voice.safetensors",
        "mario.voice.safetensors",
    ]
    assert Voice.load(tmp_path / "mario.voice.safetensors").transcript == TRANSCRIPT
    assert not Voice.load(tmp_path / "luigi.voice.safetensors").in_context
    capsys.readouterr()
    assert run("voices", "list", tmp_path, "--json") == 0
    luigi, mario = json.loads(capsys.readouterr().out)
    assert (luigi["mode"], mario["mode"], mario["frames"]) == ("x-vector", "in context", 44)
    assert run("voices", "list", tmp_path) == 0
    assert f'"{TRANSCRIPT}"' in capsys.readouterr().out
    assert run("voices", "show", "mario", "--voices", tmp_path) == 0
    assert run("voices", "show", tmp_path / "luigi.voice.safetensors", "--json") == 0
    shown, rest = capsys.readouterr().out.split("{")
    assert TRANSCRIPT in shown and json.loads("{" + rest)["dim"] == 128
    assert run("voices", "delete", "mario.voice.safetensors", "--voices", tmp_path) == 2
    assert run("voices", "delete", tmp_path / "mario.voice.safetensors") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["luigi.voice.safetensors"]


def test_new_voices_are_for_their_owner_alone(recordings, tmp_path):
    folder = tmp_path / "new" / "voices"
    before = os.umask(0)
    try:
        assert run("voices", "create", recordings, "-o", f"{folder}/", *BASE) == 0
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_an_uploaded_voice_is_shown_with_its_consent_in_printable_lines(tmp_path, capsys):
    path = tmp_path / "mario.voice.safetensors"
    Voice(
        "mario",
        x_vector=np.zeros(4, np.float32),
        codes=np.zeros((1, 16), np.int32),
        transcript="It is \x1b[31mred",
        consent="Mario,\nby letter\u202e",
        is_uploaded=True,
    ).save(path)
    assert run("voices", "show", path) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "consent      Mario,\\nby letter\\u202e" in shown and "uploaded     True" in shown
    assert all(line.isprintable() for line in shown)
    assert run("voices", "list", tmp_path) == 0
    assert "It is \\x1b[31mred" in capsys.readouterr().out


def test_one_recording_becomes_the_file_that_is_named(recordings, tmp_path):
    out = tmp_path / "hero.voice.safetensors"
    source = recordings / "mario.wav"
    assert run("voices", "create", source, "-o", out, "--ref-text", "It is warm today.", *BASE) == 0
    assert Voice.load(out).transcript == "It is warm today." and Voice.load(out).name == "hero"
    assert run("voices", "create", source, "-o", out, "--xvector", "--force", *BASE) == 0
    assert not Voice.load(out).in_context


@pytest.mark.parametrize("name", ["a/b/hero.voice.safetensors", "takes.2026/", "a/b"])
def test_folders_on_the_way_to_a_voice_are_made_and_its_file_is_listed(
    recordings, tmp_path, monkeypatch, capsys, name
):
    monkeypatch.chdir(tmp_path)
    assert run("voices", "create", recordings / "luigi.flac", "-o", name, *BASE) == 0
    (file,) = tmp_path.rglob("*.voice.safetensors")
    assert file == tmp_path / name or file == tmp_path / name / "luigi.voice.safetensors"
    assert run("voices", "list", file) == 0
    rest = capsys.readouterr().out.splitlines()
    assert rest[-1].split() == [
        file.name.removesuffix(".voice.safetensors"),
        "x-vector,",
        "128-dim",
    ]


@pytest.mark.parametrize("bare", [(), ("--legacy-bin",)])
def test_a_voice_that_is_there_is_replaced_only_by_force(recordings, tmp_path, capsys, bare):
    folder = tmp_path / "made" / "now"  # which `create` makes
    command = ("voices", "create", recordings / "luigi.flac", "-o", folder, *BASE, *bare)
    assert run(*command) == 0
    (file,) = folder.iterdir()
    before = file.stat().st_mtime_ns
    assert run(*command) == 2 and file.stat().st_mtime_ns == before
    assert f"{file} exists already. Replace with --force" in " ".join(
        capsys.readouterr().err.split()
    )
    assert run(*command, "--force") == 0
    assert capsys.readouterr().out.endswith("(replaced)\n")


@pytest.mark.parametrize("bare", [(), ("--legacy-bin",)])
def test_two_recordings_of_one_name_are_refused_before_a_model_is_loaded(
    tmp_path, monkeypatch, capsys, bare
):
    monkeypatch.setattr(options, "engine_from_args", lambda *_, **__: pytest.fail("loaded"))
    for name in ("a.flac", "a.wav", "b.wav"):
        (tmp_path / name).touch()
    assert run("voices", "create", tmp_path, *bare, *BASE) == 2
    assert "a.flac and a.wav would both become the voice 'a'" in capsys.readouterr().err


def test_the_old_presets_are_written_listed_and_thinned(recordings, tmp_path, capsys):
    assert run("voices", "create", recordings, "--legacy-bin", "-o", tmp_path, *BASE) == 0
    presets = tmp_path / "voice_presets.bin"
    assert presets.stat().st_size == 4 + 2 * (64 + 4 * 128)
    capsys.readouterr()
    assert run("voices", "list", presets) == 0
    assert capsys.readouterr().out.split()[0] == "luigi"
    assert run("voices", "delete", "luigi", "--voices", tmp_path) == 0
    assert list(Voice.load_presets(presets)) == ["mario"]


def test_a_link_to_a_voice_that_is_gone_is_deleted(tmp_path):
    link = tmp_path / "anna.voice.safetensors"
    link.symlink_to("gone.voice.safetensors")
    assert run("voices", "list", tmp_path) == 2
    assert run("voices", "delete", "anna", "--voices", tmp_path) == 0
    assert not link.is_symlink()
    assert run("voices", "list", tmp_path) == 0


def test_a_voice_is_deleted_from_a_file_that_list_and_show_take(tmp_path, capsys):
    voices = [Voice(name, x_vector=np.ones(4, np.float32)) for name in ("anna", "ben")]
    presets = tmp_path / "old.bin"
    save_presets(presets, voices)
    assert run("voices", "show", "ben", "--voices", presets) == 0
    assert run("voices", "delete", "ben", "--voices", presets) == 0
    assert list(Voice.load_presets(presets)) == ["anna"]
    assert run("voices", "delete", "ben", "--voices", presets) == 2
    assert 'Unknown voice "ben". There are: anna.' in capsys.readouterr().err
    own = tmp_path / "anna.voice.safetensors"
    voices[0].save(own)
    assert run("voices", "delete", "ben", "--voices", own) == 2
    assert 'Unknown voice "ben". There are: anna.' in capsys.readouterr().err
    assert run("voices", "delete", "anna", "--voices", own) == 0
    assert not own.exists() and presets.exists()
    save_presets(presets, [replace(voices[0], name=f"voice{index}") for index in range(500)])
    assert run("voices", "show", "voice42", "--voices", presets) == 0
    assert run("voices", "show", "voize42", "--voices", presets) == 2
    lines = capsys.readouterr().err
    assert "There are: voice42, voice4" in lines
    assert " and 490 more.\n" in lines


def test_a_folder_becomes_one_voice_with_a_style_for_each_recording(recordings, tmp_path, capsys):
    path = tmp_path / "anna.voice.safetensors"
    assert run("voices", "create", recordings, "-o", path, *BASE) == 0
    assert "styles: luigi, mario" in capsys.readouterr().out
    for recording in sorted(recordings.glob("[lm]*.[wf]*")):
        style = recording.stem
        alone = tmp_path / f"{style}.voice.safetensors"
        assert run("voices", "create", recording, "-o", alone, *BASE) == 0
        ours, theirs = Voice.load(path).in_style(style), Voice.load(alone)
        assert ours.name == "anna" and np.array_equal(ours.x_vector, theirs.x_vector)
        assert ours.transcript == theirs.transcript and ours.in_context == theirs.in_context
    capsys.readouterr()
    assert run("voices", "show", "anna", "--voices", tmp_path) == 0
    assert "styles       luigi, mario" in capsys.readouterr().out


def test_voices_are_mixed_by_names_and_files(tmp_path, capsys):
    vectors = {"anna": np.float32([3, 0]), "ben": np.float32([0, 1])}
    for name, vector in vectors.items():
        Voice(name, vector).save(tmp_path / f"{name}.voice.safetensors")
    new = tmp_path / "made" / "new.voice.safetensors"
    parts = ["anna=1", f"{tmp_path / 'ben.voice.safetensors'}=1"]
    assert run("voices", "mix", *parts, "--voices", tmp_path, "-o", new) == 0
    assert np.abs(Voice.load(new).x_vector - 2**0.5).max() < X_VECTOR_F32
    assert run("voices", "mix", "anna", "ben=0", "--voices", tmp_path, "-o", new) == 2
    assert "exists already" in capsys.readouterr().err
    mixed = run("voices", "mix", "anna", "ben=0", "--voices", tmp_path, "-o", new, "--force")
    assert mixed == 0 and np.array_equal(Voice.load(new).x_vector, vectors["anna"])
    assert run("voices", "mix", "anna=x", "--voices", tmp_path, "-o", new, "--force") == 2
    assert "has the weight 'x'" in capsys.readouterr().err


def test_one_bad_recording_does_not_stop_the_others(recordings, tmp_path, capsys):
    folder = tmp_path / "recordings"
    shutil.copytree(recordings, folder)
    (folder / "noise.wav").write_text("not audio")
    assert run("voices", "create", folder, "-o", tmp_path, *BASE) == 2
    assert "noise.wav" in capsys.readouterr().err
    assert len(list(tmp_path.glob("*.voice.safetensors"))) == 2


def test_a_damaged_file_does_not_hide_the_others(recordings, tmp_path, capsys):
    assert run("voices", "create", recordings / "luigi.flac", "-o", tmp_path, *BASE) == 0
    (tmp_path / "bad.voice.safetensors").write_bytes(b"\0" * 9)
    capsys.readouterr()
    assert run("voices", "list", tmp_path) == 2
    found = capsys.readouterr()
    assert "luigi" in found.out and "bad.voice.safetensors is damaged" in found.err


def test_a_transcript_of_windows_is_the_text_alone(recordings, tmp_path):
    shutil.copy(recordings / "mario.wav", tmp_path)
    said = "\ufeffIt is cold today, my brother.\r\n"
    (tmp_path / "mario.txt").write_bytes(said.encode())
    assert run("voices", "create", tmp_path / "mario.wav", "-o", tmp_path, *BASE) == 0
    made = Voice.load(tmp_path / "mario.voice.safetensors")
    assert made.transcript == "It is cold today, my brother."


def test_a_transcript_that_is_not_utf_8_is_refused_unless_the_x_vector_is_enough(
    recordings, tmp_path, capsys
):
    shutil.copy(recordings / "mario.wav", tmp_path)
    (tmp_path / "mario.txt").write_bytes("Il fait froid, mon frère.".encode("latin-1"))
    command = ("voices", "create", tmp_path / "mario.wav", "-o", tmp_path, *BASE)
    assert run(*command) == 2
    assert "mario.txt is not UTF-8 text" in capsys.readouterr().err
    assert run(*command, "--xvector") == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("voices", "list", "/no/such"), "/no/such"),
        (("voices", "show", "peach"), "Unknown voice"),
        (("voices", "delete", "peach"), "Unknown voice"),
        (("voices", "delete", "../peach"), "name of a voice"),
        (("voices", "create", "{recordings}", "--ref-text", "Hi."), "one recording"),
        (("voices", "mix", "peach=1", "-o", "a.voice.safetensors"), "Unknown voice"),
        (("voices", "mix", "peach=much", "-o", "a.voice.safetensors"), "has the weight 'much'"),
        (("voices", "create", "{recordings}", "-o", "a.voice.safetensors", "--legacy-bin"), "fit"),
        (("voices", "create", "{recordings}", "-o", "o.wav"), "o.wav is neither a folder nor"),
        (("voices", "list", "{recordings}/mario.txt"), "mario.txt is not a file of voices"),
        (("voices", "show", "{recordings}/mario.wav"), "mario.wav is a recording, not a voice."),
        (("voices", "create", "{empty}"), "no recording"),
        (
            ("voices", "create", "{recordings}/mario.wav", "--model", "tiny-random"),
            "`voices create` needs a model that clones voices; tiny-random cannot.",
        ),
        (
            ("speak", "Hi.", "--voice-sample", "{recordings}/mario.wav", "--model", "tiny-random"),
            "--voice-sample needs a model that clones voices; tiny-random cannot.",
        ),
        (("speak", "Hi.", "--voice", "x", "--voice-sample", "a.wav", *BASE), "cannot be combined"),
        (("speak", "Hi.", "--voice", "{recordings}/mario.wav"), "Use --voice-sample {recordings}"),
        (("speak", "Hi.", "--xvector", *BASE), "--voice-sample"),
        (("speak", "Hi.", "--voice-sample", "{recordings}/mario.txt", *BASE), "cannot be read"),
        (("speak", "Hi.", "--voice", "../mario", *BASE), "Presets: (none)"),
    ],
)
def test_what_cannot_work_ends_with_one_message(
    recordings, tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    names = {"{recordings}": str(recordings), "{empty}": str(empty)}
    for name, path in names.items():
        arguments = tuple(argument.replace(name, path) for argument in arguments)
        message = message.replace(name, path)
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_speaking_with_a_sample_a_file_and_a_name_is_the_same(recordings, tmp_path):
    sample = ("--voice-sample", recordings / "mario.wav")
    in_context = speak(tmp_path, *sample, "--ref-text", TRANSCRIPT)
    x_vector = speak(tmp_path, *sample)
    assert np.array_equal(x_vector, speak(tmp_path, *sample, "--ref-text", TRANSCRIPT, "--xvector"))
    assert not np.array_equal(in_context, x_vector)
    folder = tmp_path / "voices"
    folder.mkdir()
    assert run("voices", "create", recordings / "mario.wav", "-o", folder, *BASE) == 0
    file = folder / "mario.voice.safetensors"
    assert np.array_equal(in_context, speak(tmp_path, "--voice", file))
    assert np.array_equal(in_context, speak(tmp_path, "--voice", "mario", "--voices", folder))


@contextmanager
def piped(file):
    """Yield the path of a pipe that has the contents of a file, which can be read once."""
    data, (ours, theirs) = file.read_bytes(), os.pipe()
    with open(ours, "rb"), open(theirs, "wb") as pipe:
        writer = threading.Thread(target=lambda: (pipe.write(data), pipe.close()))
        writer.start()
        yield f"/dev/fd/{ours}"
        writer.join()


def test_a_recording_may_come_through_a_pipe(recordings, tmp_path):
    mario = recordings / "mario.wav"
    with piped(mario) as pipe:
        heard = speak(tmp_path, "--voice-sample", pipe)
    assert np.array_equal(heard, speak(tmp_path, "--voice-sample", mario))
    output = tmp_path / "a.voice.safetensors"
    with piped(mario) as pipe:
        assert run("voices", "create", pipe, "-o", output, *BASE) == 0
    assert np.array_equal(heard, speak(tmp_path, "--voice", output))


@pytest.mark.parametrize("script", ["demo_tts.py", "demo_pipeline.py"])
def test_the_demos_clone_too(run_here, recordings, tmp_path, script):
    if script == "demo_pipeline.py":
        pytest.importorskip("pipecat")
    text = ["--text"] if script == "demo_pipeline.py" else []
    sample = ("--voice-sample", recordings / "mario.wav", "--ref-text", TRANSCRIPT)
    output = ("--output", tmp_path / "a.wav")
    done = run_here(script, *text, "Hello.", "--max-frames", 3, *BASE[:-1], *sample, *output)
    assert done.returncode == 0, done.stderr
    assert len(soundfile.read(tmp_path / "a.wav")[0]) > 0


def test_a_terminal_sees_a_bar(tmp_path, monkeypatch):
    options = ("--model", "tiny-random", "--backend", "cpu", "--max-frames", 10)
    output = ("--output", tmp_path / "a.wav")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert run("speak", "Hello there, you.", "--seed", 1, *options, *output) == 0
    assert "s of speech in" in os.read(ours, 100_000).decode()
