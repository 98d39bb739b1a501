"""The matrices that native code reads, packed one by one into memory, or mapped from a file.

The layout, which csrc/cpu/matrix.h describes, is the same for all instruction sets.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qwen_megakernel.checkpoint.config import ModelConfig
from qwen_megakernel.checkpoint.packed_form import ALIGNMENT, PREFIX
from qwen_megakernel.checkpoint.safetensors_file import MappedTensors
from qwen_megakernel.decoders.cpu import library as native
from qwen_megakernel.decoders.quantization import Matrix, QuantizedMatrix, RoundedWeights
from qwen_megakernel.decoders.weights import DecoderModel, tensor
from qwen_megakernel.errors import ModelFilesError
from qwen_megakernel.native import cpu_threads
from qwen_megakernel.native.cpu_library import CpuPool, check_status
from qwen_megakernel.native.memory import huge_pages

HINT = "Use the 0.6B model, int8 weights, fewer slots, or a smaller max_frames."


@dataclass(frozen=True, slots=True)
class PackedName:
    """A packed matrix: its name, and the names of the checkpoint's matrices that it consists of."""

    name: str
    parts: tuple[str, ...]
    takes_turns: bool = False  # each block of 32 rows has as many rows of each part


def packed_names(config: ModelConfig) -> Iterator[PackedName]:
    """Yield a model's packed matrices in the order in which a frame reads them."""

    def layers(prefix: str, num_layers: int) -> Iterator[PackedName]:
        for index in range(num_layers):
            for name, takes_turns in native.MATRICES_OF_LAYER.items():
                block, _, letters = name.rpartition(".")
                parts = letters.split("+")
                yield PackedName(
                    f"{prefix}layers.{index}.{name}",
                    tuple(f"{prefix}layers.{index}.{block}.{part}_proj.weight" for part in parts),
                    takes_turns,
                )

    predictor = "code_predictor."
    heads = [f"{predictor}lm_head.{i}" for i in range(config.talker.num_code_groups - 1)]
    projection = [f"{predictor}small_to_mtp_projection"] if config.has_projection else []
    yield from layers("model.", config.talker.stack.num_layers)
    for name in ("codec_head", *projection):
        yield PackedName(name, (f"{name}.weight",))
    yield from layers(f"{predictor}model.", config.predictor.stack.num_layers)
    for name in heads:
        yield PackedName(name, (f"{name}.weight",))


class Packer:
    """Packs the matrices of a model one by one.

    Args:
        model: its weights may be those of a file whose matrices are packed already; those have
            shapes and no values.
        pool: the native decoder's threads.
    """

    def __init__(self, model: DecoderModel, pool: CpuPool):
        self._model, self._pool = model, pool
        self.names, weights = list(packed_names(model.config)), model.talker
        shape_of = weights.shape_of if isinstance(weights, RoundedWeights) else weights.__getitem__
        self.matrices = {
            each.name: _describe(list(map(shape_of, each.parts))) for each in self.names
        }
        self.sizes = {
            each.name: pool.library.qwen_cpu_packed_bytes(
                ctypes.byref(self.matrices[each.name]), len(each.parts) if each.takes_turns else 1
            )
            for each in self.names
        }

    def pack(self, name: PackedName, address: int) -> None:
        """Write a packed matrix to an address, and give its parts' memory back to the system."""
        weights, packed = self._model.talker, self.matrices[name.name]
        with cpu_threads.single_threads(torch.get_num_threads()) as threads:
            parts = list(threads.map(weights.__getitem__, name.parts))
        alive: list[tuple[Tensor, Tensor | None]] = []
        sources = []
        for part in parts:
            values, scales = part, None
            if isinstance(part, QuantizedMatrix):
                values, scales = part.values, part.scales.float().contiguous()
            elif packed.format == native.FLOAT32:
                values = part.float()
            assert isinstance(values, Tensor)
            values = values.contiguous()
            alive.append((values, scales))
            scales_address = None if scales is None else scales.data_ptr()
            shape = (*values.shape, packed.format, packed.group)
            sources.append(native.MatrixSource(values.data_ptr(), scales_address, *shape))
        status = self._pool.library.qwen_cpu_pack(
            ctypes.c_void_p(self._pool.handle),
            (native.MatrixSource * len(sources))(*sources),
            len(sources),
            int(name.takes_turns),
            ctypes.c_void_p(address),
        )
        check_status(status, name.name, HINT)
        stored = weights.talker if isinstance(weights, RoundedWeights) else weights
        if isinstance(stored, MappedTensors):
            stored.release(name.parts)


def pack(model: DecoderModel, pool: CpuPool) -> tuple[Packer, Any]:
    """Pack a model's matrices; beside the result there is never more than one of them in memory.

    Matrices that a file holds packed are mapped instead; processes share them.

    Returns:
        The packer, whose `matrices` have their addresses, and the memory that they lie in.
    Raises:
        OutOfMemory: the matrices do not fit into memory.
        ModelFilesError: the file's packed matrices are not those that this program reads.
    """
    packer = Packer(model, pool)
    if PREFIX + packer.names[0].name in model.talker:
        return _mapped(model, packer)
    memory = huge_pages(sum(packer.sizes.values()), HINT)
    address = memory.data_ptr()
    for each in packer.names:
        packer.matrices[each.name].values = address
        packer.pack(each, address)
        address += packer.sizes[each.name]
    return packer, memory


def _mapped(model: DecoderModel, packer: Packer) -> tuple[Packer, Any]:
    names = [name for name in model.talker if name.startswith(PREFIX)]
    stored = {name: tensor(model.talker, name) for name in names}
    found = {name: values.numel() for name, values in stored.items()}
    needed = {PREFIX + name: size for name, size in packer.sizes.items()}
    wrong = [name for name in needed | found if needed.get(name) != found.get(name)]
    wrong += [name for name in names if stored[name].data_ptr() % ALIGNMENT]
    if wrong:
        raise ModelFilesError(
            f"The file's packed matrices are not those of its config: {len(wrong)} of "
            f"{len(needed)} differ, such as {wrong[0]}.",
            hint="Convert the original model again.",
        )
    for name, matrix in packer.matrices.items():
        matrix.values = stored[PREFIX + name].data_ptr()
    return packer, stored


def _describe(parts: list[Matrix]) -> native.MatrixSource:
    """Return the packed matrix of some parts, without its address."""
    values = [part.values if isinstance(part, QuantizedMatrix) else part for part in parts]
    format_, group = native.FLOAT32, 0
    if isinstance(parts[0], QuantizedMatrix):
        format_ = {8: native.INT8, 6: native.INT6, 4: native.INT4}[parts[0].bits]
        group = parts[0].group
    elif all(each.dtype == torch.bfloat16 for each in values):
        format_ = native.BF16
    num_rows = sum(len(each) for each in values)
    return native.MatrixSource(None, None, num_rows, values[0].shape[1], format_, group)
