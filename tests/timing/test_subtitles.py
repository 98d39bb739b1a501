"""Files of captions, read back by their rules."""

import json
import re
from pathlib import Path

import pytest

from qwen_megakernel.errors import OutputError, UsageError
from qwen_megakernel.timing import subtitles
from qwen_megakernel.timing.words import Segment, TimedWord

TEXT = "Your table is ready. We <meet> at 3 & not later — 😀\n\nthan that!"
CLOCK = r"(\d\d):(\d\d):(\d\d)[,.](\d\d\d)"


def timed(
    text: str, sentences: list[str], word_s: float = 0.25
) -> tuple[list[TimedWord], list[Segment]]:
    words, place = [], 0
    for index, word in enumerate(text.split()):
        place = text.index(word, place)
        words.append(TimedWord(word, index * word_s, (index + 1) * word_s, place))
        place += len(word)
    segments, begin = [], 0
    for index, sentence in enumerate(sentences):
        count = len(sentence.split())
        mine = words[begin : begin + count]
        segments.append(Segment(index, mine[0].start, mine[-1].end, sentence))
        begin += count
    return words, segments


SENTENCES = ["Your table is ready.", "We <meet> at 3 & not later — 😀\n\nthan that!"]
WORDS, SEGMENTS = timed(TEXT, SENTENCES)


def seconds(*fields: str) -> float:
    hours, minutes, whole, rest = map(int, fields)
    return 3600 * hours + 60 * minutes + whole + rest / 1000


def test_subrip_has_numbered_captions_with_commas_in_their_times(tmp_path: Path):
    path = tmp_path / "out.srt"
    subtitles.write(path, WORDS, SEGMENTS)
    blocks = path.read_text("utf-8").strip().split("\n\n")
    assert len(blocks) == 2
    for number, (block, segment) in enumerate(zip(blocks, SEGMENTS, strict=True), start=1):
        head, times, *lines = block.split("\n")
        assert head == str(number)
        found = re.fullmatch(f"{CLOCK} --> {CLOCK}", times)
        assert times.count(",") == 2
        assert seconds(*found.groups()[:4]) == segment.start
        assert seconds(*found.groups()[4:]) == segment.end
        assert " ".join(lines) == " ".join(segment.text.split())


def test_webvtt_has_its_head_and_escapes(tmp_path: Path):
    path = tmp_path / "out.VTT"
    subtitles.write(path, WORDS, SEGMENTS)
    head, *blocks = path.read_text("utf-8").strip().split("\n\n")
    assert head == "WEBVTT" and len(blocks) == 2
    assert all(re.match(f"{CLOCK} --> {CLOCK}\n", block) and "," not in block for block in blocks)
    assert "We &lt;meet&gt; at 3 &amp; not" in blocks[1]


def test_json_has_every_word_and_sentence(tmp_path: Path):
    path = tmp_path / "out.json"
    subtitles.write(path, WORDS, SEGMENTS)
    facts = json.loads(path.read_text("utf-8"))
    assert [word["word"] for word in facts["words"]] == TEXT.split()
    assert facts["words"][1] == {"word": "table", "start": 0.25, "end": 0.5}
    assert facts["segments"][0] == {"id": 0, "start": 0.0, "end": 1.0, "text": SENTENCES[0]}


def test_a_long_sentence_is_cut_between_words_into_captions_of_two_lines():
    sentence = "This is a sentence that goes on for a while, " * 6 + "and then it ends."
    words, segments = timed(sentence, [sentence])
    found = subtitles.captions(words, segments)
    assert " ".join(each.text for each in found) == sentence
    assert len(found) > 3 and all(len(each.text) <= 95 for each in found)
    assert all(each.start_ms < each.end_ms for each in found)
    assert [each.start_ms for each in found[1:]] == [each.end_ms for each in found[:-1]]


def test_a_slow_sentence_is_cut_by_its_seconds():
    words, segments = timed("one two three four", ["one two three four"], word_s=5.0)
    found = subtitles.captions(words, segments)
    assert len(found) >= 3 and max(each.end_ms - each.start_ms for each in found) <= 10_000


def test_a_mark_that_is_not_heard_joins_the_caption_before():
    words = [TimedWord("Hello.", 0.0, 0.5, 0), TimedWord("😀", 0.5, 0.5, 7)]
    segments = [Segment(0, 0.0, 0.5, "Hello."), Segment(1, 0.5, 0.5, "😀")]
    (caption,) = subtitles.captions(words, segments)
    assert (caption.start_ms, caption.end_ms, caption.text) == (0, 500, "Hello. 😀")


@pytest.mark.parametrize("name", ["out.srt", "out.vtt", "out.json"])
def test_a_speech_without_a_word_has_a_file_without_a_caption(name: str, tmp_path: Path):
    path = tmp_path / name
    subtitles.write(path, [], [])
    assert "-->" not in path.read_text("utf-8")


@pytest.mark.parametrize("name", ["out.txt", "out", "out.srt.gz"])
def test_another_ending_is_refused_with_those_that_are_known(name: str, tmp_path: Path):
    for work in (subtitles.check_path, lambda path: subtitles.write(path, WORDS, SEGMENTS)):
        with pytest.raises(UsageError, match=r"\.srt, \.vtt, \.json"):
            work(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_path_that_cannot_be_written_is_refused_and_an_existing_file_kept(tmp_path: Path):
    with pytest.raises(OutputError, match="there is no folder"):
        subtitles.check_path(tmp_path / "none" / "out.srt")
    old = tmp_path / "old.srt"
    old.write_text("old")
    subtitles.check_path(old)
    assert old.read_text() == "old"


def test_captions_name_the_speaker_of_a_cast(tmp_path):
    words = [TimedWord("Hi & bye.", 0.0, 0.5, 0, "an<na"), TimedWord("Now.", 0.5, 1.0, 10)]
    segments = [Segment(0, 0.0, 0.5, "Hi & bye.", "an<na"), Segment(1, 0.5, 1.0, "Now.")]
    for name, first, second in (
        ("a.srt", "\nan<na: Hi & bye.\n", "\nNow.\n"),
        ("a.vtt", "\n<v an&lt;na>Hi &amp; bye.\n", "\nNow.\n"),
    ):
        subtitles.write(tmp_path / name, words, segments)
        text = (tmp_path / name).read_text()
        assert first in text and second in text
    subtitles.write(tmp_path / "a.json", words, segments)
    facts = json.loads((tmp_path / "a.json").read_text())
    assert facts["words"][0]["speaker"] == facts["segments"][0]["speaker"] == "an<na"
    assert "speaker" not in facts["words"][1] | facts["segments"][1]
