"""Reads the list of a folder of recordings, and encodes each into a line of a file (JSONL)."""

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from qwen_megakernel.cloning import recordings
from qwen_megakernel.errors import DatasetError, OutputError
from qwen_megakernel.printable import get_logger

logger = get_logger(__name__)

METADATA = "metadata.csv"
FOLDERS = ("wav", "wavs")  # LJSpeech uses the second name


@dataclass(frozen=True, slots=True)
class Row:
    """A recording of the list: a line of metadata.csv, for example."""

    number: int  # of its line
    id: str
    text: str
    fault: str = ""  # why the row cannot be used; id and text are then invalid
    source: str = METADATA  # the file that has the line
    audio: str = ""  # the path of the recording, where the list has it


@dataclass(slots=True)
class Report:
    """The outcome of all rows."""

    num_added: int = 0
    num_present: int = 0  # rows that the output already had
    seconds: float = 0.0  # seconds of audio that were added
    faults: list[str] = field(default_factory=list)


class EncodedRow(Protocol):
    """What `Encode` returns: a line of the output and its duration."""

    @property
    def seconds(self) -> float:
        """Duration of the recording."""

    def to_json(self) -> str:
        """Return the line of the file, without its end."""


def read_metadata(path: Path, *, is_text: bool) -> list[Row]:
    """Read lines of `id|text`, whose text is the last column, or lines of `id|phonemes`.

    Args:
        path: a file in UTF-8, with or without a byte order mark.
        is_text: whether the lines have text to be phonemised; phonemes may contain "|" (as in IPA).
    Raises:
        DatasetError: the file cannot be read.
    """
    try:
        content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        column = "text" if is_text else "phonemes"
        raise DatasetError(
            f"{path} cannot be read: {error.strerror}.",
            f"A dataset is a folder with {METADATA} (lines of id|{column}) and wav/id.wav.",
        ) from error
    rows: list[Row] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            name, bar, rest = line.decode("utf-8").partition("|")
        except UnicodeDecodeError as error:
            rows.append(Row(number, "", "", f"not UTF-8: {error.reason}"))
            continue
        name, text = name.strip(), (rest.split("|")[-1] if is_text else rest).strip()
        fault = ""
        if not bar:
            fault = 'no "|" between id and text'
        elif not text:
            fault = f"{name} has no text"
        elif not name or "/" in name or "\\" in name:
            fault = f"id {name!r} cannot be the name of a file"
        elif name in seen:
            fault = f"{name} is also on line {seen[name]}"
        seen.setdefault(name, number)
        rows.append(Row(number, name, text, fault))
    return rows


def find_recording(folder: Path, name: str) -> Path:
    """Return the recording `name` of a folder with wav/ or wavs/.

    Raises:
        DatasetError: there is none.
    """
    for place in FOLDERS:
        for suffix in recordings.SUFFIXES:
            path = folder / place / f"{name}{suffix}"
            if path.is_file():
                return path
    raise DatasetError(f"there is no {folder / FOLDERS[0] / name}.wav")


def encode_rows(
    rows: list[Row],
    output: Path,
    encode: Callable[[Row], EncodedRow],
    done: Collection[str],
    progress: Callable[[list[Row]], Iterator[Row]] = iter,
) -> Report:
    """Append every row that can be encoded to the output, as a line each.

    A row that cannot be used is logged with its line number and left out. The output grows by whole
    lines, so an interrupted run can be repeated.

    Args:
        encode: raises a DatasetError for a row that cannot be used.
        done: the ids that the output holds.
        progress: wraps the rows, to show a bar.
    Raises:
        OutputError: the output cannot be written.
    """
    report = Report()
    try:
        with output.open("a", encoding="utf-8") as file:
            for row in progress(rows):
                if row.id in done and not row.fault:
                    report.num_present += 1
                    continue
                try:
                    if row.fault:
                        raise DatasetError(row.fault)
                    encoded = encode(row)
                except DatasetError as error:
                    report.faults.append(f"{row.source}, line {row.number}: {error.what}")
                    logger.warning("%s, line %d: %s", row.source, row.number, error.what)
                    continue
                file.write(encoded.to_json() + "\n")
                file.flush()
                report.num_added += 1
                report.seconds += encoded.seconds
    except OSError as error:
        raise OutputError(f"Cannot write {output}: {error.strerror}.") from error
    return report


def mend(output: Path) -> bool:
    """Remove a last line that was cut off; return whether the file then has lines.

    Raises:
        OutputError: the file cannot be read or cut.
    """
    if not output.exists():
        return False
    try:
        content = output.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(output, whole)
    except OSError as error:
        raise OutputError(f"Cannot read {output}: {error.strerror}.") from error
    return whole > 0
