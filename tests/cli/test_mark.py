"""`mark new-key`, --mark with the files of each kind, and `detect`."""

import json
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile

from qwen_megakernel import content_credentials, families
from qwen_megakernel.cli import main
from qwen_megakernel.installing import install_command
from qwen_megakernel.marking import COMMENT

TEXT = (
    "Your table for two is ready, and we will meet you at the hotel on Friday evening. Please "
    "bring your ticket, and an umbrella, for it may rain until the morning."
)
SPEAK = ("speak", TEXT, "--model", "demo-voice", "--backend", "cpu", "--seed", "1", "--quiet")


@pytest.fixture
def key(tmp_path: Path) -> str:
    path = str(tmp_path / "mark.key")
    assert main.main(["mark", "new-key", path, "--operator", "515"]) == 0
    return path


def test_speech_names_its_operator_after_opus_and_other_speech_has_no_mark(
    tmp_path: Path, key: str, capsys
):
    output, opus = str(tmp_path / "out.wav"), str(tmp_path / "out.ogg")
    assert main.main([*SPEAK, "-o", output, "--mark-key", key]) == 0
    samples, rate = soundfile.read(output)
    soundfile.write(opus, samples, rate, format="OGG", subtype="OPUS", compression_level=0.9)
    assert main.main(["detect", opus, "--mark-key", key]) == 0
    assert "marked as synthetic, operator 515, chance of a false alarm" in capsys.readouterr().out
    assert main.main(["detect", opus, "--mark-key", key, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["marks"][0]
    assert (found["operator"], found["speed"], found["start_s"]) == (515, 1, 0)

    assert main.main([*SPEAK, "-o", output]) == 0  # with metadata alone
    assert main.main(["detect", output, "--mark-key", key, "--own-speed"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("no watermark of this key found\n") and "\nmetadata" in said

    assert main.main([*SPEAK, "-o", output, "--mark", "none"]) == 0
    for more in ((), ("--json",)):
        assert main.main(["detect", output, "--mark-key", key, "--own-speed", *more]) == 1
        assert "no mark found" in capsys.readouterr().out


def test_a_file_may_come_through_a_pipe(tmp_path: Path, capsys):
    output, pipe = str(tmp_path / "out.wav"), tmp_path / "pipe"
    assert main.main([*SPEAK, "-o", output]) == 0
    os.mkfifo(pipe)
    data = Path(output).read_bytes()
    for sent, code, said in ((data, 0, "metadata, which anyone"), (data[:9], 2, "as audio: ")):
        writer = threading.Thread(target=pipe.write_bytes, args=[sent])
        writer.start()
        assert main.main(["detect", str(pipe)]) == code
        writer.join()
        assert said in "".join(capsys.readouterr())


def test_a_new_key_is_reported_unless_quiet(tmp_path: Path, capsys):
    for more, words in ((), f"{tmp_path / 'a'}: key of operator 0"), (("--quiet",), ""):
        assert main.main(["mark", "new-key", str(tmp_path / ("b" if more else "a")), *more]) == 0
        said = capsys.readouterr().err
        assert said.startswith(words) and bool(said) == bool(words)


def test_a_key_that_exists_is_kept_and_the_error_says_what_to_do(tmp_path: Path, key: str, capsys):
    before = Path(key).read_bytes()
    assert main.main(["mark", "new-key", key]) == 5
    assert capsys.readouterr().err.splitlines()[-2:] == [
        f"error: Cannot write a key to {key}: File exists.",
        "Name a new file: the watermark of this key is found with this key alone.",
    ]
    assert Path(key).read_bytes() == before


@pytest.mark.parametrize("command", [SPEAK, ("serve", "--port", "0"), ("detect", "none.wav")])
def test_a_bad_key_is_refused_before_a_model_is_loaded(
    tmp_path: Path, key: str, monkeypatch, capsys, command: tuple[str, ...]
):
    monkeypatch.setattr(families, "load_engine", lambda *_, **__: pytest.fail("loaded"))
    Path(key).chmod(0o640)
    assert main.main([*command, "--mark-key", key]) == 2
    assert "has mode 640; other users may read it" in capsys.readouterr().err


@pytest.fixture
def signing(tmp_path: Path) -> list[str]:
    pytest.importorskip("c2pa")
    from certificates import new_certificate

    words = []
    for option, data in zip(("cert", "key"), new_certificate(), strict=True):
        path = tmp_path / f"{option}.pem"
        path.write_bytes(data)
        path.chmod(0o600)
        words += [f"--c2pa-{option}", str(path)]
    return words


def test_a_signed_file_says_who_signed_it_and_a_changed_one_that_it_was_changed(
    tmp_path: Path, signing: list[str], capsys
):
    output = tmp_path / "out.mp3"
    assert main.main([*SPEAK, "-o", str(output), *signing]) == 0
    capsys.readouterr()
    assert main.main(["detect", str(output)]) == 0
    told = capsys.readouterr().out
    valid, says = told.splitlines()
    assert valid == "C2PA valid: marked as synthetic, signed by Operator, Voice"
    assert says == f"metadata, which anyone can write or remove: {COMMENT}"
    data = bytearray(output.read_bytes())
    data[-500] ^= 1
    output.write_bytes(data)
    assert main.main(["detect", str(output)]) == 0
    invalid, says = capsys.readouterr().out.splitlines()
    assert invalid.startswith("C2PA invalid: ") and says.endswith(COMMENT)


XMP = (
    '<x:xmpmeta xmlns:x="adobe:ns:meta/"><Iptc4xmpExt:DigitalSourceType>http://cv.iptc.org/newscodes'
    "/digitalsourcetype/compositeWithTrainedAlgorithmicMedia</Iptc4xmpExt:DigitalSourceType>"
    "</x:xmpmeta>"
)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("a.wav", {"format": "WAV"}),
        ("a.mp3", {"format": "MP3"}),
        ("a.flac", {"format": "FLAC"}),
        ("a.ogg", {"format": "OGG", "subtype": "VORBIS"}),
        ("a.opus", {"format": "OGG", "subtype": "OPUS"}),
    ],
)
def test_metadata_of_every_format_is_read(tmp_path: Path, capsys, name: str, how: dict[str, str]):
    file = tmp_path / name
    says = {"Read by an AI-generated voice.": 0, "Not AI-generated.": 1, "For training media.": 1}
    for comment, code in says.items():
        with soundfile.SoundFile(file, "w", 24000, 1, **how) as writer:
            writer.comment = comment
            writer.write(np.zeros(24000))
        assert main.main(["detect", str(file)]) == code, comment
        told = capsys.readouterr().out
        assert ("metadata, " in told, comment in told) == (code == 0, code == 0)
    with file.open("ab") as end:
        end.write(XMP.encode())
    assert main.main(["detect", str(file)]) == 0
    assert "compositeWithTrainedAlgorithmicMedia" in capsys.readouterr().out


def test_without_the_package_a_signature_is_not_checked(tmp_path, capsys, monkeypatch):
    content_credentials._offline.cache_clear()
    monkeypatch.setitem(sys.modules, "c2pa", None)
    output = tmp_path / "out.wav"
    soundfile.write(output, np.zeros(24000), 24000)
    assert main.main(["detect", str(output)]) == 1
    told = capsys.readouterr().out
    assert told.startswith("C2PA not checked: ") and "no mark found; --mark-key finds" in told
    assert install_command("c2pa") in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--mark", "watermark"), "The mark watermark needs --mark-key FILE."),
        (("--mark", "metadata, c2pa"), "The mark c2pa needs --c2pa-cert FILE."),
        (("--mark", "sign"), "mark is 'sign'; known: metadata, watermark, c2pa, none."),
        (("--mark", "none,metadata"), "--mark is none,metadata; none stands alone."),
        (("--mark", "metadata,"), "mark is ''; known: metadata, watermark, c2pa, none."),
        (("--mark", "none", "--mark-key", "KEY"), "--mark is none, which leaves watermark out"),
        (("--c2pa-key", "KEY"), "The mark c2pa needs --c2pa-cert FILE."),
        (("--c2pa-cert", "none.pem", "--c2pa-key", "KEY"), "Cannot read the certificate none.pem"),
        (("--stdout", "SIGN"), "standard output has no place for it"),
        (("-o", "a.ogg", "SIGN"), "ogg has no place for it"),
    ],
)
def test_marks_that_cannot_be_made_are_refused_before_a_model_is_loaded(
    key: str, signing: list[str], monkeypatch, capsys, words: tuple[str, ...], message: str
):
    monkeypatch.setattr(families, "load_engine", lambda *_, **__: pytest.fail("loaded"))
    given = [key if word == "KEY" else word for word in words if word != "SIGN"]
    assert main.main([*SPEAK, *given, *(signing if "SIGN" in words else ())]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_batch_and_a_server_refuse_formats_without_a_place_for_the_signature(
    tmp_path: Path, signing: list[str], monkeypatch, capsys
):
    monkeypatch.setattr(families, "load_engine", lambda *_, **__: pytest.fail("loaded"))
    (tmp_path / "texts.jsonl").write_text('{"text": "Hi.", "output": "a.ogg"}')
    batch = ["speak", "--batch", str(tmp_path / "texts.jsonl"), "--output-dir", str(tmp_path)]
    for command in (batch, ["serve", "--port", "0", "--default-format", "opus"]):
        assert main.main([*command, "--model", "demo-voice", *signing]) == 2
        assert "has no place for it" in capsys.readouterr().err
