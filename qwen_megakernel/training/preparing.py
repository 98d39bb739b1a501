"""Reads the list of a folder of recordings, and encodes each into a line of a file (JSONL)."""

import os
import shlex
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from qwen_megakernel.cloning import recordings
from qwen_megakernel.errors import DatasetError, QwenTTSError
from qwen_megakernel.native.cpu_threads import available_cores, single_threads
from qwen_megakernel.output_files import held, writing
from qwen_megakernel.printable import get_logger

logger = get_logger(__name__)

S = TypeVar("S")

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


class Sample(Protocol):
    """A recording, ready to be trained on."""

    def to_json(self) -> str:
        """Return the line of the file, without its end."""


Encoded = TypeVar("Encoded", bound=Sample)


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
    place: Path,
    rows: list[Row],
    output: Path,
    encode: Callable[[Row], tuple[Encoded, float]],
    done: Collection[str],
    progress: Callable[[list[Row]], Iterator[Row]] = iter,
    *,
    workers: int | None = None,
    fault_of: Callable[[Encoded], str] = lambda sample: "",
) -> Report:
    """Append every row that can be encoded to the output, as a line each, in order.

    A row that cannot be used is logged with its line number and left out. The output grows by whole
    lines, so an interrupted run can be repeated.

    Args:
        place: where the rows are from, for the error.
        encode: returns a sample and its seconds; raises an error for a row that cannot be used.
        done: the ids that the output holds.
        progress: wraps the rows, to show a bar.
        workers: threads that encode; None: one for each core. Each computes on one core, so their
            number changes no bit of the output.
        fault_of: returns why a sample is left out, or ""; called in the order of the rows.
    Raises:
        DatasetError: no row could be used.
    """
    report = Report()

    def attempt(row: Row) -> tuple[Encoded, float] | str | None:
        try:
            return row.fault or (None if row.id in done else encode(row))
        except QwenTTSError as error:
            return f"{row.id}: {error.what}"

    pool = single_threads(workers or available_cores())
    try:
        with output.open("a", encoding="utf-8") as file:
            for row, found in zip(progress(rows), pool.map(attempt, rows), strict=True):
                if found is None:
                    report.num_present += 1
                    continue
                fault = found if isinstance(found, str) else fault_of(found[0])
                if isinstance(found, str) or fault:
                    report.faults.append(f"{row.source}, line {row.number}: {fault}")
                    logger.warning("%s", report.faults[-1])
                    continue
                file.write(found[0].to_json() + "\n")
                file.flush()
                report.num_added += 1
                report.seconds += found[1]
    finally:
        pool.shutdown(cancel_futures=True)
    if not report.num_added + report.num_present:
        why = report.faults[0] if report.faults else "It is empty."
        raise DatasetError(f"No recording of {place} could be used.", why)
    return report


def lines(path: Path, made_by: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a JSONL file that are not blank, each with its number.

    Args:
        made_by: the command that writes such a file; empty: the user does.
    Raises:
        DatasetError: the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except (OSError, UnicodeDecodeError) as error:
        raise DatasetError(
            f"{path} cannot be read: {why_no_text(error)}.",
            hint=f"Make it with: python -m qwen_megakernel {made_by}" if made_by else "",
        ) from error


def why_no_text(error: OSError | UnicodeDecodeError) -> str | None:
    """Return why a file of text could not be read."""
    return error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"


def read_samples(path: Path, parse: Callable[[str], S], made_by: str, verify: str) -> list[S]:
    """Return what `parse` makes of the lines of a dataset.

    Args:
        made_by, verify: the commands that write such a file, and that show the faults of all lines.
    Raises:
        DatasetError: a line is damaged (the error has its number), or there are no lines.
    """
    samples = []
    for number, line in lines(path, made_by):
        try:
            samples.append(parse(line))
        except DatasetError as error:
            raise DatasetError(
                f"{path}, line {number}: {error.what}",
                error.why,
                f"See all faults with: python -m qwen_megakernel {verify} {shlex.quote(str(path))}",
            ) from error
    if not samples:
        raise DatasetError(f"{path} holds no recordings.")
    return samples


@contextmanager
def growing(output: Path, made_by: str, parse: Callable[[str], object]) -> Iterator[bool]:
    """Hold a file of recordings to be added to, and remove a last line that was cut off, or add
    the line's end if nothing else is missing.

    Yields whether the file has lines; at the end, one that has none is removed.

    Args:
        made_by: the command that writes such a file.
        parse: raises a DatasetError for a text that is no whole line.
    Raises:
        DatasetError: the file is of something else, and stays as it is.
        OutputError: the file cannot be read or cut, or another process writes it.
    """
    with writing(output):
        output.touch()
        with held(output):
            content = output.read_bytes()
            with suppress(DatasetError, UnicodeDecodeError):
                parse(content.rpartition(b"\n")[2].decode())
                content += b"\n"
                with output.open("ab") as file:
                    file.write(b"\n")
            if not b'{"'.startswith(content[:2]) or content.endswith(b"}"):
                raise DatasetError(
                    f"{output} is no file of `{made_by}`, or its last line has no end.",
                    hint="Name a new file: what this one holds is kept.",
                )
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                os.truncate(output, whole)
            try:
                yield whole > 0
            finally:
                if not output.stat().st_size:
                    output.unlink()
