"""Turns a folder of recordings (`metadata.csv` and `wav/`) into a dataset of SNAC codes (JSONL)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from qwen_megakernel.cloning import recordings
from qwen_megakernel.errors import DatasetError
from qwen_megakernel.sheen.text_input import phonemise
from qwen_megakernel.sheen.training import dataset
from qwen_megakernel.sheen.training.dataset import Sample
from qwen_megakernel.training import preparing
from qwen_megakernel.training.preparing import METADATA, Report, Row

if TYPE_CHECKING:
    from qwen_megakernel.sheen.codec import SnacCodec


def prepare(
    folder: Path,
    output: Path,
    codec: SnacCodec,
    *,
    espeak: str | None = None,
    progress: Callable[[list[Row]], Iterator[Row]] = iter,
    workers: int | None = None,
) -> Report:
    """Encode every recording that the output does not hold yet.

    Args:
        output: the JSONL file; its lines are kept.
        espeak: the espeak-ng voice that phonemises the texts; None: the texts are phonemes.
        progress, workers: as `encode_rows` takes them.
    Raises:
        DatasetError: metadata.csv cannot be read, the output is damaged or was phonemised in
            another way, or no row could be used.
        OutputError: the output cannot be written.
        SetupError, UsageError: espeak-ng, or its voice, is not installed.
    """
    if espeak:
        phonemise("one", espeak)  # raises before any work if program or voice is missing
    rows = preparing.read_metadata(folder / METADATA, is_text=espeak is not None)

    def encode(row: Row) -> tuple[Sample, float]:
        text = phonemise(row.text, espeak) if espeak else row.text
        if not text:
            raise DatasetError(f"nothing in {row.text[:40]!r} can be spoken")
        samples, rate = recordings.read(preparing.find_recording(folder, row.id))
        sample = Sample(row.id, text, codec.encode(samples, rate), espeak)
        return sample, len(sample.frames) * codec.seconds_per_frame

    parse = partial(dataset.parse, codebook_size=codec.codebook_size)
    with preparing.growing(output, dataset.PREPARE, parse) as has_lines:
        samples = dataset.read(output, codec.codebook_size) if has_lines else []
        dataset.check_one_phonemiser(output, {espeak, *(sample.espeak for sample in samples)})
        done = {sample.id for sample in samples}
        return preparing.encode_rows(
            folder / METADATA, rows, output, encode, done, progress, workers=workers
        )
