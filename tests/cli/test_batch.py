"""`speak --batch`: many texts to a folder, again without those that are there, failures listed."""

import errno
import json
import os
import subprocess
import sys
import threading
from unittest.mock import Mock

import pytest
import soundfile
from commands import ROOT

from qwen_megakernel.cli import options
from qwen_megakernel.engine.speech import Speech
from qwen_megakernel.tts_engine import TTSEngine

SPEAK = ("-m", "qwen_megakernel", "speak", "--model", "tiny-random", "--max-frames", "3")


@pytest.fixture
def batch(run_here, tmp_path):
    """batch(*lines): speaks objects, or lines of text or bytes, into the folder `out`."""

    def run(*lines, more=()):
        rows = [json.dumps(line) if isinstance(line, dict) else line for line in lines]
        rows = [row if isinstance(row, bytes) else row.encode() for row in rows]
        (tmp_path / "a.jsonl").write_bytes(b"\n".join(rows))
        words = ("--batch", tmp_path / "a.jsonl", "--output-dir", tmp_path / "out", *more)
        return run_here(*SPEAK, "--backend", "cpu", *words)

    return run


def test_lines_become_files_and_those_that_are_there_stay(batch, tmp_path):
    lines = (
        {"text": "Hello.", "seed": 3},
        "",
        {"text": "Hi.", "output": "b.flac", "sample_rate": 8000},
        {"text": "🙂"},
    )
    done = batch(*lines)
    assert done.returncode == 2 and "\nout" not in done.stderr
    assert "0004.wav: Text" in done.stderr and "2 spoken, 0 there already, 1 failed" in done.stderr
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"0001.wav", "b.flac"}
    assert soundfile.info(tmp_path / "out" / "b.flac").samplerate == 8000
    (tmp_path / "out" / "b.flac").write_text("kept")
    assert "0 spoken, 2 there already, 1 failed" in batch(*lines).stderr
    assert (tmp_path / "out" / "b.flac").read_text() == "kept"


def test_every_slot_speaks_at_the_same_time(batch, monkeypatch):
    together = threading.Barrier(4, timeout=20)  # broken unless four texts are spoken at once
    synthesize = TTSEngine.synthesize

    def meet(self, text, **how):
        if text == "Hi.":
            together.wait()
        return synthesize(self, text, **how)

    monkeypatch.setattr(TTSEngine, "synthesize", meet)
    assert "4 spoken" in batch(*[{"text": "Hi."}] * 4).stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"text": "a", "sped": 2}, "line 2: There is no option sped."),
        ({"text": "a", "speed": 9}, "line 2: speed is 9"),
        (
            {"text": "a", "output": "../b.wav"},
            "output '../b.wav'; both must be strings, and output the",
        ),
        ({"output": "b.wav"}, "line 2: text is None and output 'b.wav'; both must be strings"),
        ({"text": "a", "output": "0001.wav"}, "line 2: 0001.wav is the output of another line"),
        ("{", "line 2: Expecting"),
        ("3", "line 2: 3 is no JSON object."),
        ('[["text", "a"]]', "line 2: [['text', 'a']] is no JSON object."),
        ({"text": "a", "output": "b\0.wav"}, "output 'b\\x00.wav'; both must be strings"),
        ({"text": "a", "output": "b\ud800.wav"}, "line 2: output is 'b\\ud800.wav'; names"),
        ("[" * 100_000, "line 2: maximum recursion depth exceeded"),
        (b'{"text": "caf\xe9"}', "line 2: 'utf-8' codec can't decode byte 0xe9"),
        ({"text": "a", "output": ""}, "line 2: text is 'a' and output ''; both"),
        ({"text": "a", "output": ".."}, "line 2: text is 'a' and output '..'; both"),
        ({"text": "a", "output": "b.aiff"}, "no audio format is called '.aiff'"),
        ({"text": "a", "output": "b.mp3", "sample_rate": 9000}, "sample_rate is 9000, and mp3 has"),
    ],
)
def test_a_faulty_line_is_refused_before_a_model_is_loaded(batch, monkeypatch, line, words):
    monkeypatch.setattr(options, "engine_from_args", lambda *_, **__: pytest.fail("loaded"))
    done = batch({"text": "a"}, line)
    assert done.returncode == 2 and words in done.stderr


def test_a_name_that_the_locale_lacks_is_refused_in_words(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "Hi.", "output": "sch\u00f6n.wav"}', "utf-8")
    words = [*SPEAK, "--batch", tmp_path / "a.jsonl", "--output-dir", tmp_path / "out"]
    ascii = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, *words], env=os.environ | ascii, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert r"line 1: output is 'sch\xf6n.wav'; names of files are ascii here." in done.stderr
    assert "LC_ALL=C.UTF-8" in done.stderr


def test_a_file_without_a_line_is_refused(batch, monkeypatch):
    monkeypatch.setattr(options, "engine_from_args", lambda *_, **__: pytest.fail("loaded"))
    done = batch("", "")
    assert done.returncode == 2 and "a.jsonl has no line" in done.stderr


def test_a_line_ends_where_json_ends_it(batch, tmp_path):
    row = json.dumps({"text": "One.\u2028Two.\x85"}, ensure_ascii=False)
    assert "2 spoken" in batch(b"\xef\xbb\xbf" + row.encode(), row + "\r").stderr


@pytest.mark.parametrize("more", [(), ("--quiet",)])
def test_an_error_of_another_package_ends_the_command(batch, monkeypatch, more):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(Speech, "save", Mock(side_effect=full))
    done = batch({"text": "Hi."}, more=more)
    assert done.returncode == 5 and "No space left" in done.stderr
