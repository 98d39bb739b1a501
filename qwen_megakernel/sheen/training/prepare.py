"""Turns a folder of recordings (`metadata.csv` and `wav/`) into a dataset of SNAC codes (JSONL)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from qwen_megakernel.cloning import recordings
from qwen_megakernel.errors import DatasetError, OutputError, RecordingError
from qwen_megakernel.printable import get_logger
from qwen_megakernel.sheen.phonemes import phonemise
from qwen_megakernel.sheen.training import dataset
from qwen_megakernel.sheen.training.dataset import Sample

if TYPE_CHECKING:
    from qwen_megakernel.sheen.codec import SnacCodec

logger = get_logger(__name__)

METADATA = "metadata.csv"
FOLDERS = ("wav", "wavs")  # LJSpeech uses the second name


@dataclass(frozen=True, slots=True)
class Row:
    """A line of metadata.csv."""

    number: int
    id: str
    text: str
    fault: str = ""  # why the row cannot be used; id and text are then invalid


@dataclass(slots=True)
class Report:
    """The outcome of all rows."""

    num_added: int = 0
    num_present: int = 0  # rows that the output already had
    seconds: float = 0.0  # seconds of audio that were added
    faults: list[str] = field(default_factory=list)


def read_metadata(path: Path, *, is_text: bool) -> list[Row]:
    """Read lines of `id|phonemes`, or lines of `id|text`, whose text is the last column.

    Args:
        path: a file in UTF-8, with or without a byte order mark.
        is_text: whether the lines have text to be phonemised; phonemes may contain "|" (as in IPA).
    Raises:
        DatasetError: the file cannot be read.
    """
    try:
        content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise DatasetError(
            f"{path} cannot be read: {error.strerror}.",
            f"A dataset is a folder with {METADATA} (lines of id|phonemes) and wav/id.wav.",
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


def prepare(
    folder: Path,
    output: Path,
    codec: SnacCodec,
    *,
    espeak: str | None = None,
    progress: Callable[[list[Row]], Iterator[Row]] = iter,
) -> Report:
    """Encode every recording that the output does not hold yet.

    A row that cannot be used is logged with its line number and left out. The output grows by whole
    lines, so an interrupted run can be repeated.

    Args:
        folder: the recordings.
        output: the JSONL file; its lines are kept.
        codec: the SNAC.
        espeak: the espeak-ng voice that phonemises the texts; None: the texts are phonemes.
        progress: wraps the rows, to show a bar.
    Raises:
        DatasetError: metadata.csv cannot be read, the output is damaged or was phonemised in
            another way, or no row could be used.
        OutputError: the output cannot be written.
        SetupError, UsageError: espeak-ng, or its voice, is not installed.
    """
    if espeak:
        phonemise("one", espeak)  # raises before any work if program or voice is missing
    rows = read_metadata(folder / METADATA, is_text=espeak is not None)
    report = Report()
    done = _done(output, codec.codebook_size, espeak)
    try:
        with output.open("a", encoding="utf-8") as file:
            for row in progress(rows):
                if row.id in done and not row.fault:
                    report.num_present += 1
                    continue
                try:
                    sample = _encode(folder, row, codec, espeak)
                except DatasetError as error:
                    report.faults.append(f"line {row.number}: {error.what}")
                    logger.warning("%s, line %d: %s", METADATA, row.number, error.what)
                    continue
                file.write(sample.to_json() + "\n")
                file.flush()
                report.num_added += 1
                report.seconds += len(sample.frames) * codec.seconds_per_frame
    except OSError as error:
        raise OutputError(f"Cannot write {output}: {error.strerror}.") from error
    if not report.num_added + report.num_present:
        raise DatasetError(
            f"No row of {folder / METADATA} could be used.",
            report.faults[0] if report.faults else "It is empty.",
        )
    return report


def _encode(folder: Path, row: Row, codec: SnacCodec, espeak: str | None) -> Sample:
    if row.fault:
        raise DatasetError(row.fault)
    text = phonemise(row.text, espeak) if espeak else row.text
    if not text:
        raise DatasetError(f"{row.id}: nothing in {row.text[:40]!r} can be spoken")
    try:
        samples, rate = recordings.read(_recording(folder, row.id))
        return Sample(row.id, text, codec.encode(samples, rate), espeak)
    except (DatasetError, RecordingError) as error:
        raise DatasetError(f"{row.id}: {error.what}") from error


def _recording(folder: Path, name: str) -> Path:
    for place in FOLDERS:
        for suffix in recordings.SUFFIXES:
            path = folder / place / f"{name}{suffix}"
            if path.is_file():
                return path
    raise DatasetError(f"there is no {folder / FOLDERS[0] / name}.wav")


def _done(output: Path, codebook_size: int, espeak: str | None) -> set[str]:
    """Return the ids that the output holds, after removing a last line that was cut off."""
    if not output.exists():
        return set()
    try:
        content = output.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(output, whole)
    except OSError as error:
        raise OutputError(f"Cannot read {output}: {error.strerror}.") from error
    if not whole:
        return set()
    samples = dataset.read(output, codebook_size)
    dataset.check_one_phonemiser(output, {espeak, *(sample.espeak for sample in samples)})
    return {sample.id for sample in samples}
