"""Describes, checks and reads one safetensors file."""

import json
import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from qwen_megakernel.checkpoint.tensor_shapes import Shape
from qwen_megakernel.errors import ModelFilesError

# Supported storage dtypes, each with the bits that are all ones in NaN and Inf (the exponent).
EXPONENT_MASKS: dict[str, tuple[np.dtype, int]] = {
    "BF16": (np.dtype("<u2"), 0x7F80),
    "F16": (np.dtype("<u2"), 0x7C00),
    "F32": (np.dtype("<u4"), 0x7F800000),
}
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
SCAN_BYTES = 2**20
NUM_NAMES_SHOWN = 5


class MappedTensors(dict[str, Tensor]):
    """The tensors of a file whose names start with a prefix, by their names without it.

    They are views of the mapped file, whose pages become resident when they are used. The mapping
    keeps the file's contents if the file is deleted or replaced, but not if it is cut short.
    """

    def __init__(self, path: Path, prefix: str):
        with path.open("rb") as file:
            header, start = _read_header(file)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._ranges = {}
        for name, entry in header.items():
            if name.startswith(prefix):
                begin, end = (start + offset for offset in entry["data_offsets"])
                _check_size(path, end, len(self._map))
                dtype = DTYPES[entry["dtype"]]
                count = (end - begin) // dtype.itemsize
                values = torch.frombuffer(self._map, dtype=dtype, count=count, offset=begin)
                self[name.removeprefix(prefix)] = values.view(entry["shape"])
                self._ranges[name.removeprefix(prefix)] = begin, end

    def release(self, names: Iterable[str]) -> None:
        """Give the memory of tensors back to the system; their next use reads the file again."""
        for name in names:
            begin, end = self._ranges[name]
            begin, end = (-(-at // mmap.PAGESIZE) * mmap.PAGESIZE for at in (begin, end))
            end = min(end, len(self._map))
            if begin < end and hasattr(mmap, "MADV_DONTNEED"):
                self._map.madvise(mmap.MADV_DONTNEED, begin, end - begin)


def describe(path: Path) -> dict[str, tuple[str, Shape]]:
    """Return dtype ("BF16", ...) and shape of every tensor in a file, from its header.

    Raises:
        ModelFilesError: the file is cut short or is not a safetensors file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            slices = ((name, file.get_slice(name)) for name in file.keys())  # noqa: SIM118
            return {name: (s.get_dtype(), tuple(s.get_shape())) for name, s in slices}
    except (SafetensorError, OSError) as error:
        raise ModelFilesError(
            f"{path} is damaged: {error}.",
            "It may be a download that was cut short, or a Git LFS pointer.",
            "Delete it and download it again.",
        ) from error


def check(path: Path, expected: dict[str, Shape], layout: str = "its config.json") -> None:
    """Compare a file with the tensors that `layout` implies.

    Every value is checked for NaN and Inf. This takes 0.2 s for the 1.8 GB of a 0.6B model in the
    page cache. Otherwise it takes the time to read the file, which its first use would take anyway.

    Raises:
        ModelFilesError: a tensor is missing, unknown, of another shape, of a dtype other than
            bf16, f16 or f32, or not finite. The error counts them and names the first five.
    """
    found = describe(path)
    missing = [f"{name} {list(expected[name])} missing" for name in expected if name not in found]
    extra = [f"{name} {list(found[name][1])} unknown" for name in found if name not in expected]
    misshaped = [
        f"{name} {list(found[name][1])} should be {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name][1] != shape
    ]
    if missing or extra or misshaped:
        raise ModelFilesError(
            f"{path} does not fit {layout}. Tensors missing: {len(missing)}, "
            f"unknown: {len(extra)}, of another shape: {len(misshaped)}.",
            _first(misshaped + missing + extra),
            "Use the config.json and the weights of one download.",
        )
    unknown = [f"{n} is {dtype}" for n, (dtype, _) in found.items() if dtype not in EXPONENT_MASKS]
    if unknown:
        raise ModelFilesError(
            f"{path}: tensors in a dtype that is not supported: {len(unknown)}.",
            _first(unknown),
            f"Known: {', '.join(EXPONENT_MASKS)}.",
        )
    damaged = list(_non_finite(path))
    if damaged:
        raise ModelFilesError(
            f"{path}: tensors with NaN or Inf: {len(damaged)}.",
            _first(damaged),
            "Download the file again; if the error stays, the checkpoint itself is broken.",
        )


def _read_header(file: BinaryIO) -> tuple[dict[str, Any], int]:
    """Return a header that the library has validated, and the offset of the first tensor."""
    header_bytes = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(header_bytes))
    header.pop("__metadata__", None)
    return header, 8 + header_bytes


def _check_size(path: Path, needed: int, found: int) -> None:
    if found < needed:
        raise ModelFilesError(
            f"{path} has {found} bytes; its tensors end at {needed}.",
            "It was cut short after it had been checked.",
            "Download or convert it again.",
        )


def _first(lines: list[str]) -> str:
    rest = len(lines) - NUM_NAMES_SHOWN
    return "; ".join(lines[:NUM_NAMES_SHOWN]) + (f"; and {rest} more." if rest > 0 else ".")


def _non_finite(path: Path) -> Iterator[str]:
    """Yield the names of the tensors that hold NaN or Inf.

    The data is read with a small buffer instead of through the mapping, because gigabytes of
    touched pages would count as this process's memory. The library has validated the header.
    """
    buffer = bytearray(SCAN_BYTES)
    with path.open("rb", buffering=0) as file:
        header, first = _read_header(file)
        for name, entry in header.items():
            start, end = entry["data_offsets"]
            file.seek(first + start)
            dtype, mask = EXPONENT_MASKS[entry["dtype"]]
            while start < end:
                part = memoryview(buffer)[: min(SCAN_BYTES, end - start)]
                start += file.readinto(part)
                if ((np.frombuffer(part, dtype) & mask) == mask).any():
                    yield name
                    break
