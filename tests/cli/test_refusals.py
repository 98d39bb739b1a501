"""What commands refuse before a model is loaded or downloaded, without leaving a file."""

import shlex

import pytest
import soundfile
import waveforms

from qwen_megakernel import families
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.cli import main
from qwen_megakernel.sheen import codec as snac

# Words after `speak Hello` and after `serve --port 0`.
OF_SPEECH = [
    ("--speed 0", "speed is 0; it must be in 0.25 .. 4."),
    ("--speed nan", "speed is nan; it must be in 0.25 .. 4."),
    ("--volume 1e9", "volume is 1e+09; it must be in -60 .. 20."),
    ("--sample-rate 7", "sample_rate is 7; it must be in 8000 .. 48000."),
    ("--lexicon no_tab.tsv", "no_tab.tsv, line 2: 'word' has no tab."),
    (
        "--lexicon twice.tsv",
        "twice.tsv, line 2: 'A' is respelled 'c', but line 1 respells 'a' 'b'.",
    ),
    ("--voices no/folder", "There is no voices folder no/folder."),
]
OF_SPEAK = [
    ("--stdout --loudness -16", "--stdout and --loudness cannot be combined."),
    ("--loudness 0", "loudness is 0; it must be in -40 .. -5 (LUFS)."),
    ("--stdout --encoding ulaw", "--stdout and --encoding ulaw cannot be combined"),
    ("-o a.flac --encoding ulaw", "encoding is ulaw, which only wav has."),
    ("-o a.mp3 --sample-rate 9000", "a.mp3: sample_rate is 9000, and mp3 has only 8000, 11025, "),
    ("--subtitles out.txt", "out.txt: unknown extension '.txt'"),
    ("--subtitles out.txt", ".srt, .vtt, .json"),
]
OF_SERVE = [
    ("--max-chars 20001", "the engine takes 20000"),
    ("--max-chars 0", "max_chars is 0"),
    ("--max-queue -1", "max_queue is -1"),
    ("--default-format ogg", "default_format is 'ogg'; known: wav"),
    ("--slots 1025", "--slots is 1025; it must be 1024 or less"),
    ("--allow-upload", "no folder of voices is given"),
    ("--deadline nan", "deadline_s is nan"),
    ("--api-key ' '", "must be ASCII"),
    ("--api-key ''", "must be ASCII text and not empty"),
    ("--api-key ключ", "must be ASCII"),
    ("--allow-host http://a.example", "'http://a.example'; it must be the name"),
    ("--wyoming-host 127.0.0.2", "--wyoming-host needs --wyoming-port"),
    ("--host 256.0.0.1", "Cannot listen on 256.0.0.1"),
    ("--port 65536", "Cannot listen on 127.0.0.1 port 65536"),
    ("--replicas 3", "--replicas needs --ray"),
    ("--max-replicas 3", "--max-replicas needs --ray"),
    ("--replica-gpus 0.5", "--replica-gpus needs --ray"),
    ("--dialects azure", "dialects is 'azure'; known: "),
    ("--voice-alias 21m00", "it must be ID=NAME"),
    ("--voice-alias a=vivian --voice-alias a=aiden", "two voices"),
]
UNWRITABLE = "no/data.jsonl: there is no folder no."
OF_OTHERS = [
    (2, "speak 'One <break time=\"99s\"/>' --text-format ssml", "SSML, line 1, column 5"),
    (2, "speak 'One [pause 99s]' --text-format pauses", "[pause], line 1, column 5"),
    (2, "speak Hello --voice 'an a.wav'", "Use --voice-sample 'an a.wav'\n"),
    (2, "voices show 'an a.wav'", "Make a voice: qwen-megakernel voices create 'an a.wav'\n"),
    (2, "voices create recordings -o 'an a.wav'", "Use -o 'an a.voice.safetensors'\n"),
    (2, "speak Hello --voice-sample absent.wav", "absent.wav cannot be read as audio: no such"),
    (2, "speak Hello --voice-sample recordings", "recordings cannot be read as audio: it is a"),
    (2, "speak Hello --voice-sample b.voice.safetensors", "Use --voice b.voice.safetensors\n"),
    (2, "speak Hello --voice trained", "Use --adapter trained\n"),
    (2, "voices create 'an a.wav'", "an a.wav cannot be read as audio: it is empty."),
    (2, "voices create recordings -o a.voice.safetensors", "a.wav cannot be read as audio: "),
    (5, "voices create tone.wav -o no_tab.tsv/a.voice.safetensors", "no_tab.tsv is no folder"),
    (5, "convert far/away --weights int8 -o no_tab.tsv/model", "no_tab.tsv is no folder"),
    (2, "voices create absent.wav", "absent.wav cannot be read as audio: no such file."),
    (5, "mark new-key none/a", "Cannot write a key to none/a: there is no folder none"),
    (2, "detect recordings", "recordings cannot be read as audio: it is a folder."),
    (2, "speak --batch none.jsonl --output-dir out", "Cannot read none.jsonl: "),
    (2, "speak --batch . --output-dir out", "Cannot read .: "),
    (2, "speak Hello --output-dir b", "--output-dir needs --batch."),
    *(
        (2, f"speak --batch a {words}", "--batch writes files into --output-dir DIR")
        for words in ("", "--output-dir b --subtitles c.srt", "--output-dir b --dump-codes c.tsv")
    ),
    (5, "train prepare recordings -o no/data.jsonl --model far/away", UNWRITABLE),
    (5, "sheen prepare recordings -o no/data.jsonl --snac far/away", UNWRITABLE),
    (5, "download far/away --to no_tab.tsv", "no_tab.tsv: File exists."),
]


@pytest.mark.parametrize(
    ("code", "words", "message"),
    [
        *((2, f"speak Hello {words}", message) for words, message in OF_SPEECH + OF_SPEAK),
        *((2, f"serve --port 0 {words}", message) for words, message in OF_SPEECH + OF_SERVE),
        *OF_OTHERS,
    ],
)
def test_what_cannot_work_is_refused_at_once(code, words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for module, name in ((families, "load_engine"), (loading, "resolve"), (snac, "find_snac")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("loaded"))
    (tmp_path / "recordings").mkdir()
    (tmp_path / "recordings" / "metadata.csv").write_text("a|b")
    (tmp_path / "no_tab.tsv").write_text("a\tb\nword\n")
    (tmp_path / "twice.tsv").write_text("a\tb\nA\tc\n")
    (tmp_path / "an a.wav").touch()
    (tmp_path / "recordings" / "a.wav").touch()
    (tmp_path / "b.voice.safetensors").touch()
    (tmp_path / "trained").mkdir()
    (tmp_path / "trained" / "voice.json").touch()
    soundfile.write(tmp_path / "tone.wav", waveforms.voice_like(1.5, 24000), 24000)
    before = sorted(tmp_path.rglob("*"))
    assert main.main(shlex.split(words)) == code
    assert message in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before
