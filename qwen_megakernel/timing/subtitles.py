"""Writes subtitles: SubRip and WebVTT captions, or JSON with every word."""

import json
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from qwen_megakernel.errors import UsageError
from qwen_megakernel.output_files import check_writable, writing
from qwen_megakernel.timing.words import Segment, TimedWord

FORMATS = (".srt", ".vtt", ".json")

_LINE_CHARS = 42  # for each of the two lines of a caption
_CAPTION_CHARS, _CAPTION_S = 2 * _LINE_CHARS, 7.0


@dataclass(frozen=True, slots=True)
class Caption:
    """A text that is shown for a period of time."""

    start_ms: int
    end_ms: int
    text: str
    speaker: str | None = None


def check_path(path: Path) -> None:
    """Raise the error that `write` would raise for this path; no file is left there."""
    if path.suffix.lower() not in FORMATS:
        what = f"unknown extension {path.suffix!r}" if path.suffix else "it has no extension"
        raise UsageError(
            f"Cannot write subtitles to {path}: {what}.",
            hint=f"Use one of these extensions: {', '.join(FORMATS)}.",
        )
    check_writable(path, "subtitles")


def write(path: Path, words: Sequence[TimedWord], segments: Sequence[Segment]) -> None:
    """Write subtitles to a file whose extension decides the format."""
    check_path(path)
    formats = {".srt": _srt, ".vtt": _vtt, ".json": _json}
    with writing(f"subtitles to {path}"):
        path.write_text(formats[path.suffix.lower()](words, segments), encoding="utf-8")


def captions(words: Sequence[TimedWord], segments: Sequence[Segment]) -> list[Caption]:
    """Return the captions: one for each sentence, or several for a long one, divided at words."""
    found: list[Caption] = []
    place = 0
    for segment in segments:
        first = place
        while place < len(words) and words[place].offset < words[first].offset + len(segment.text):
            place += 1
        for begin, end in _cuts(words[first:place], segment):
            said = words[first + begin : first + end]
            offset = words[first].offset
            stop = said[-1].offset + len(said[-1].word)
            text = " ".join(segment.text[said[0].offset - offset : stop - offset].split())
            start_ms, end_ms = round(1000 * said[0].start), round(1000 * said[-1].end)
            speaker = segment.speaker
            if found and end_ms <= start_ms:  # a mark or an emoji, which is not heard
                last = found.pop()
                start_ms, end_ms, text = last.start_ms, last.end_ms, f"{last.text} {text}"
                speaker = last.speaker
            found.append(Caption(start_ms, max(end_ms, start_ms + 1), text, speaker))
    return found


def _cuts(words: Sequence[TimedWord], segment: Segment) -> Iterator[tuple[int, int]]:
    """Divide the words of a sentence among captions of about equal length."""
    seconds, length = segment.end - segment.start, len(segment.text)
    count = max(math.ceil(length / _CAPTION_CHARS), math.ceil(seconds / _CAPTION_S), 1)
    begin, most = 0, length / count + min(_LINE_CHARS, 2 * length / count) / 4
    for index, word in enumerate(words):
        end = word.offset + len(word.word) - words[begin].offset
        if index > begin and end > most:
            yield begin, index
            begin = index
    yield begin, len(words)


def _srt(words: Sequence[TimedWord], segments: Sequence[Segment]) -> str:
    blocks = [
        f"{number}\n{_clock(each.start_ms, ',')} --> {_clock(each.end_ms, ',')}\n"
        f"{textwrap.fill(_named(each), _LINE_CHARS)}\n"
        for number, each in enumerate(captions(words, segments), start=1)
    ]
    return "\n".join(blocks)


def _vtt(words: Sequence[TimedWord], segments: Sequence[Segment]) -> str:
    blocks = [
        f"{_clock(each.start_ms, '.')} --> {_clock(each.end_ms, '.')}\n"
        f"{_voice_tag(each)}{escape(textwrap.fill(each.text, _LINE_CHARS), quote=False)}\n"
        for each in captions(words, segments)
    ]
    return "\n".join(["WEBVTT\n", *blocks])


def _named(caption: Caption) -> str:
    return caption.text if caption.speaker is None else f"{caption.speaker}: {caption.text}"


def _voice_tag(caption: Caption) -> str:
    return "" if caption.speaker is None else f"<v {escape(caption.speaker, quote=False)}>"


def _json(words: Sequence[TimedWord], segments: Sequence[Segment]) -> str:
    facts = {
        "words": [word.facts() for word in words],
        "segments": [segment.facts() for segment in segments],
    }
    return json.dumps(facts, ensure_ascii=False, indent=1) + "\n"


def _clock(milliseconds: int, mark: str) -> str:
    seconds, rest = divmod(milliseconds, 1000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{mark}{rest:03}"
