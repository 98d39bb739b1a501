"""A dataset from a folder of recordings: rows are read, left out, or kept from an earlier run."""

import json
import shutil

import numpy as np
import pytest
import soundfile
import waveforms
from sheen_toys import CODEBOOK_SIZE as SIZE
from sheen_toys import TEXTS, needs_espeak
from tolerances import nearly

from qwen_megakernel.errors import DatasetError, SetupError, UsageError
from qwen_megakernel.sheen import codes, text_input
from qwen_megakernel.sheen.training import dataset
from qwen_megakernel.sheen.training.prepare import prepare
from qwen_megakernel.training.preparing import read_metadata


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "wav").mkdir()
    return tmp_path


def record(folder, name, seconds=0.3, rate=24000, place="wav", **options):
    sound = waveforms.voice_like(seconds, rate)
    soundfile.write(folder / place / name, sound, rate, **options)
    return sound


def write(folder, *lines):
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_a_dataset_is_the_codes_of_its_recordings(recordings, dataset_file, codec):
    lines = [json.loads(line) for line in dataset_file.read_text("utf-8").splitlines()]
    assert [(line["id"], line["text"]) for line in lines] == list(TEXTS.items())
    for line in lines:
        sound, rate = soundfile.read(recordings / "wav" / f"{line['id']}.wav", dtype="float32")
        layers = [layer.tolist() for layer in codes.deinterleave(codec.encode(sound, rate))]
        assert line["snac_codes"] == layers
        assert [len(layer) // len(layers[0]) for layer in layers] == [1, 2, 4]


def test_any_rate_format_and_number_of_channels_is_taken(folder, codec):
    sound = waveforms.voice_like(0.3, 16000)
    soundfile.write(folder / "wav" / "mono.wav", sound, 16000)
    soundfile.write(folder / "wav" / "stereo.wav", np.stack([sound, sound], 1), 16000)
    record(folder, "other.flac", rate=44100)
    write(folder, "mono|a", "stereo|b", "other|c")
    report = prepare(folder, folder / "out.jsonl", codec)
    samples = dataset.read(folder / "out.jsonl", SIZE)
    assert (report.num_added, report.faults) == (3, [])
    assert np.array_equal(samples[0].frames, samples[1].frames)
    assert len(samples[2].frames) == 4 and report.seconds == nearly(12 * 2048 / 24000)


def test_bad_rows_are_reported_by_line_and_left_out(folder, codec):
    record(folder, "good.wav")
    soundfile.write(folder / "wav" / "empty.wav", np.empty(0), 24000)
    (folder / "wav" / "broken.wav").write_bytes(b"RIFFnot audio")
    lines = ["good|ɡʊd", "no bar", "absent|a", "", "good|again", "broken|b", "none|", "../up|x"]
    content = "\n".join([*lines, "empty|e", ""]).encode() + b"latin|\xe9\n"
    (folder / "metadata.csv").write_bytes(b"\xef\xbb\xbf" + content)
    report = prepare(folder, folder / "out.jsonl", codec)
    assert report.num_added == 1
    words = {
        2: 'no "\\|"',
        3: "there is no",
        5: "also on line 1",
        6: "cannot be read as audio",
        7: "none has no text",
        8: "cannot be the name of a file",
        9: "recording is empty",
        10: "not UTF-8",
    }
    assert len(report.faults) == len(words)
    for (number, word), fault in zip(words.items(), report.faults, strict=True):
        assert fault.startswith(f"metadata.csv, line {number}: ")
        assert word.replace("\\", "") in fault


def test_what_was_cut_off_is_taken_up_again(recordings, dataset_file, codec, tmp_path):
    whole = dataset_file.read_bytes()
    output = tmp_path / "out.jsonl"
    output.write_bytes(whole[: whole.index(b"\n") + 40])  # killed while it wrote the second line
    report = prepare(recordings, output, codec)
    assert (report.num_present, report.num_added) == (1, 1)
    assert output.read_bytes() == whole
    report = prepare(recordings, output, codec)
    assert (report.num_present, report.num_added) == (2, 0)
    assert output.read_bytes() == whole


def test_phonemes_may_hold_a_bar_and_text_is_the_last_column(tmp_path):
    path = tmp_path / "metadata.csv"
    path.write_text("1|ə | b\n2|Dr. X|Doctor X\n", encoding="utf-8")
    assert [row.text for row in read_metadata(path, is_text=False)] == ["ə | b", "Dr. X|Doctor X"]
    assert [row.text for row in read_metadata(path, is_text=True)] == ["b", "Doctor X"]


def test_ljspeechs_own_folder_name_is_found(folder, codec):
    (folder / "wavs").mkdir()
    record(folder, "a.wav", place="wavs")
    write(folder, "a|a")
    assert prepare(folder, folder / "out.jsonl", codec).num_added == 1


def test_nothing_usable_is_an_error(folder, codec):
    with pytest.raises(DatasetError, match=r"metadata\.csv cannot be read: No such file"):
        prepare(folder, folder / "out.jsonl", codec)
    write(folder, "absent|a")
    with pytest.raises(DatasetError, match=r"No recording of .* could be used"):
        prepare(folder, folder / "out.jsonl", codec)


@needs_espeak
def test_text_is_phonemised_and_the_voice_is_noted(folder, codec):
    record(folder, "a.wav")
    record(folder, "b.wav")
    write(folder, "a|Hello, world.", "b|...")
    report = prepare(folder, folder / "out.jsonl", codec, espeak="en-us")
    (sample,) = dataset.read(folder / "out.jsonl", SIZE)
    assert (sample.text, sample.espeak) == ("həlˈoʊ, wˈɜːld.", "en-us")
    assert report.faults == ["metadata.csv, line 2: b: nothing in '...' can be spoken"]
    with pytest.raises(
        DatasetError, match="mixes phonemes of different origin: en-us, given phonemes"
    ):
        prepare(folder, folder / "out.jsonl", codec)


@needs_espeak
def test_punctuation_stays_where_it_is_heard():
    say = text_input.phonemise
    phrases = say('"Really?" he asked; 3.5 miles!', "en-us")
    assert [char for char in phrases if char in ',;.?!"'] == ["?", ";", "!"]
    assert [phrase.count(" ") for phrase in phrases.split("; ")] == [2, 3]
    assert "mˈɪstɚ" in say("Mr. Smith", "en-us") and "pɔɪnt" in say("3.5", "en-us")
    assert say("-- ?!", "en-us") == ""
    with pytest.raises(UsageError, match="no voice 'xx-none'"):
        say("a", "xx-none")


def test_without_espeak_it_is_named(folder, codec, monkeypatch):
    monkeypatch.setenv("PATH", str(folder))
    write(folder, "a|text")
    with pytest.raises(SetupError, match="espeak-ng, which is not installed"):
        prepare(folder, folder / "out.jsonl", codec, espeak="en-us")
    assert not (folder / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON: maximum recursion depth"),
        ("[]", "it is not an object with `text`"),
        ('{"text": " ", "snac_codes": [[1], [1, 2], [1, 2, 3, 4]]}', "text is ' '"),
        ('{"text": "a", "snac_codes": [[1], [1, 2], [1, 2, 3]]}', r"have \[1, 2, 3\] codes"),
        ('{"text": "a", "snac_codes": [[1], [1, 2], [1, 2, 3, 4096]]}', "codes are 1 .. 4096"),
        ('{"text": "a", "snac_codes": [[-1], [1, 2], [1, 2, 3, 4]]}', "codes are -1"),
        (f'{{"text": "a", "snac_codes": [[{2**40}], [1, 2], [1, 2, 3, 4]]}}', f"1 .. {2**40}"),
        (
            '{"text": "a", "snac_codes": [[1], [1, 2], [1, 2, 3, 4]], "espeak": ["de"]}',
            r"espeak is \['de'\]",
        ),
        (
            '{"text": "a", "snac_codes": [[1.5], [1, 2], [1, 2, 3, 4]]}',
            "not a list of lists of integers",
        ),
        ('{"text": "a", "snac_codes": [[], [], []]}', "snac_codes is empty"),
    ],
)
def test_damaged_lines_are_refused_by_number(dataset_file, tmp_path, line, words):
    path = tmp_path / "data.jsonl"
    shutil.copy(dataset_file, path)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DatasetError, match=f"line 3: .*{words}"):
        dataset.read(path, SIZE)


def test_the_line_of_the_description_is_read(tmp_path):
    """`text` and `snac_codes` are enough."""
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "həˈloʊ", "snac_codes": [[7], [1, 2], [3, 4, 5, 6]]}\n', "utf-8")
    (sample,) = dataset.read(path, SIZE)
    assert sample.frames.tolist() == [[7, 1, 2, 3, 4, 5, 6]] and sample.espeak is None
    with pytest.raises(DatasetError, match="cannot be read"):
        dataset.read(tmp_path / "none.jsonl", SIZE)
    path.write_text("\n")
    with pytest.raises(DatasetError, match="holds no recordings"):
        dataset.read(path, SIZE)
