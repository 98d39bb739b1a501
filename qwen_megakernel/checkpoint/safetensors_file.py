"""Describes, checks and reads one safetensors file."""

import errno
import json
import math
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "U8": torch.uint8}
SCAN_BYTES = 2**20
SUM_BYTES = 2**26  # summed by one thread at a time
NUM_NAMES_SHOWN = 5
SUM = "qwen_megakernel.sum"  # metadata: 16 hexadecimal digits, the sum of the data's 64-bit words
_NO_SUM = "?" * 16


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
        for name in self._ranges.keys() & set(names):
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
    with _opened(path) as file:
        slices = ((name, file.get_slice(name)) for name in file.keys())  # noqa: SIM118
        return {name: (s.get_dtype(), tuple(s.get_shape())) for name, s in slices}


def write(
    path: Path,
    tensors: Mapping[str, tuple[str, Shape]],
    data: Iterable[np.ndarray],
    metadata: Mapping[str, str],
    *,
    alignment: int = 8,
    summed: bool = False,
) -> None:
    """Write a file piece by piece, without a whole tensor in memory.

    Args:
        tensors: dtype and shape of each tensor, in the order of the file.
        data: the bytes of all tensors one after the other, in pieces of any size.
        metadata: texts for the header.
        alignment: the data begins at a multiple of this number of bytes; 8 or a multiple of it.
        summed: add a sum of the bytes, which `check` compares.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    if summed:
        header["__metadata__"][SUM] = _NO_SUM
    end = 0
    for name, (dtype, shape) in tensors.items():
        start, end = end, end + math.prod(shape) * DTYPES[dtype].itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % alignment)
    with path.open("w+b") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for piece in data:
            file.write(piece.data)
        if summed:
            file.flush()
            file.seek(8)
            file.write(text.replace(_NO_SUM.encode(), _sum_of(path).encode()))


def metadata(path: Path) -> dict[str, str]:
    """Return the metadata of a file's header; the errors are those of `describe`."""
    with _opened(path) as file:
        return file.metadata() or {}


def check(
    path: Path,
    expected: dict[str, Shape],
    layout: str = "its config.json",
    *,
    is_summed: bool = False,
) -> None:
    """Compare a file with the tensors that `layout` implies.

    Every value is checked for NaN and Inf. This takes 0.2 s for the 1.8 GB of a 0.6B model in the
    page cache. Otherwise it takes the time to read the file, which its first use would take anyway.

    Args:
        expected: names and shapes of all of its tensors.
        layout: where the names come from, in the error.
        is_summed: the file was written with a sum of its bytes, which is compared instead, and may
            have tensors of bytes.

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
    known = DTYPES if is_summed else EXPONENT_MASKS
    unknown = [f"{n} is {dtype}" for n, (dtype, _) in found.items() if dtype not in known]
    if unknown:
        raise ModelFilesError(
            f"{path}: tensors in a dtype that is not supported: {len(unknown)}.",
            _first(unknown),
            f"Known: {', '.join(known)}.",
        )
    if is_summed:
        if _sum_of(path) != metadata(path).get(SUM):
            raise ModelFilesError(
                f"{path} is damaged: its bytes are not those that were written.",
                hint="Copy it again, or convert the original model again.",
            )
        return
    damaged = list(_non_finite(path))
    if damaged:
        raise ModelFilesError(
            f"{path}: tensors with NaN or Inf: {len(damaged)}.",
            _first(damaged),
            "Download the file again; if the error stays, the checkpoint itself is broken.",
        )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Yield a file with a valid header, as the library opens it; the errors are of `describe`."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        if not os.access(path, os.R_OK):  # for `safe_open`, there is no such file
            reason = os.strerror(errno.EACCES)
            raise ModelFilesError(f"Cannot read {path}: {reason}.") from error
        raise ModelFilesError(
            f"{path} is damaged: {error}.",
            "It may be a download that was cut short, or a Git LFS pointer.",
            "Delete it and download it again.",
        ) from error


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


def _sum_of(path: Path) -> str:
    """Return the sum of a file's data as `SUM` has it; the last word may be short.

    A sum notices a changed byte anywhere, and is as fast as memory. The data is read as in
    `_non_finite`, by several threads.
    """
    with path.open("rb") as file:
        starts = range(_read_header(file)[1], path.stat().st_size, SUM_BYTES)

    def sum_from(start: int) -> int:
        """Return the sum of the next `SUM_BYTES`; numpy and the system work without Python."""
        buffer, total = bytearray(SCAN_BYTES), 0
        with path.open("rb") as file:
            file.seek(start)
            for _ in range(SUM_BYTES // SCAN_BYTES):
                if not (num_bytes := file.readinto(buffer)):
                    break
                buffer[num_bytes:] = bytes(SCAN_BYTES - num_bytes)  # only at the end
                total += int(np.frombuffer(buffer, "<u8").sum(dtype=np.uint64))
        return total

    with ThreadPoolExecutor() as threads:
        return f"{sum(threads.map(sum_from, starts)) % 2**64:016x}"


def _non_finite(path: Path) -> Iterator[str]:
    """Yield the names of the tensors that hold NaN or Inf.

    The data is read with a small buffer instead of through the mapping, because gigabytes of
    touched pages would count as this process's memory. The library has validated the header.
    """
    buffer = bytearray(SCAN_BYTES)
    with path.open("rb") as file:
        header, first = _read_header(file)
        for name, entry in header.items():
            start, end = entry["data_offsets"]
            file.seek(first + start)
            dtype, mask = EXPONENT_MASKS[entry["dtype"]]
            while start < end:
                part = memoryview(buffer)[: min(SCAN_BYTES, end - start)]
                if (num_bytes := file.readinto(part)) < len(part):
                    _check_size(path, first + end, first + start + num_bytes)
                start += num_bytes
                if ((np.frombuffer(part, dtype) & mask) == mask).any():
                    yield name
                    break
