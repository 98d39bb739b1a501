"""--subtitles of the commands that speak to a file."""

import json
from pathlib import Path

import soundfile
from commands import CommandsHere

from qwen_megakernel.cli import main

TEXT = "It is 3:05 pm. Your table is ready."
SPEAK = ("--model", "demo-voice", "--backend", "cpu", "--seed", "1", "--quiet")


def test_speak_writes_the_words_that_the_user_wrote_within_the_sound(tmp_path: Path):
    audio, times = tmp_path / "out.wav", tmp_path / "out.json"
    command = ["speak", TEXT, *SPEAK, "-o", str(audio), "--subtitles", str(times)]
    assert main.main(command) == 0
    facts = json.loads(times.read_text("utf-8"))
    assert [word["word"] for word in facts["words"]] == TEXT.split()
    assert [segment["text"] for segment in facts["segments"]] == [
        "It is 3:05 pm.",
        "Your table is ready.",
    ]
    assert 0 < facts["words"][-1]["end"] <= soundfile.info(audio).duration


def test_the_demo_writes_captions(run_here: CommandsHere, tmp_path: Path):
    captions = tmp_path / "out.srt"
    output = ("--output", tmp_path / "out.wav", "--subtitles", captions)
    done = run_here("demo_tts.py", "Hello there.", *SPEAK, *output)
    assert done.returncode == 0, done.stderr
    assert captions.read_text().startswith("1\n00:00:0") and "Hello there." in captions.read_text()
