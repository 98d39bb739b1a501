"""The decoder in native code, compiled for this CPU's instructions, with a pool of threads.

Arithmetic is float32 for every format of the checkpoint; int8 weights are multiplied with 16-bit
activations, and the sum within a group is exact. A stream's codes depend neither on the number of
threads nor on other streams.
"""

import ctypes
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.checkpoint.config import ModelConfig, StackConfig
from qwen_megakernel.checkpoint.frame_weights import frame_weights
from qwen_megakernel.decoders.cpu import library as native
from qwen_megakernel.decoders.cpu.packing import HINT, pack
from qwen_megakernel.decoders.cpu.prefixes import PrefixCache
from qwen_megakernel.decoders.embeddings import Embeddings
from qwen_megakernel.decoders.frame_decoder import FrameDecoder, Taps
from qwen_megakernel.decoders.layers import rope_tables
from qwen_megakernel.decoders.sampling import MIN_FRAMES, not_finite
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.decoders.weights import DecoderModel, Weights, tensor
from qwen_megakernel.errors import QwenTTSError, UnsupportedModel, UsageError
from qwen_megakernel.native import cpu_library, cpu_threads
from qwen_megakernel.native.cpu_library import open_library
from qwen_megakernel.records import StepResult

HEAD_DIMS = range(32, 257, 16)
# Size of the prefix cache: it holds some 570 positions of the 0.6B model, the beginnings of prompts
# with two in-context voices, or with fifty other voices.
PREFIX_BYTES = 2**27


def check_config(config: ModelConfig) -> None:
    """Raise UnsupportedModel, which names the dimension, if native code cannot run a model."""
    for name, stack in (("talker", config.talker.stack), ("predictor", config.predictor.stack)):
        if stack.head_dim not in HEAD_DIMS:
            raise UnsupportedModel(
                f"The CPU decoder cannot run this model: {name} head_dim {stack.head_dim}.",
                f"It takes multiples of 16 from {HEAD_DIMS[0]} to {HEAD_DIMS[-1]}.",
                "Use --backend torch.",
            )


class CpuDecoder(FrameDecoder):
    """Talker and code predictor in native code; all streams share a pass over the weights.

    Args:
        model: weights, which `quantization.quantize` may have made 8-bit, and config.
        sizes: as `FrameDecoder` takes them; float32 on a CPU.
        num_threads: number of threads that decode, the calling one included; None: chosen by the
            model's size and the cores that the process may use.
    Raises:
        UsageError: the dtype is not float32.
        UnsupportedModel, BuildError, OutOfMemory: the decoder cannot run.
    """

    def __init__(self, model: DecoderModel, sizes: DecoderSizes, num_threads: int | None = None):
        if sizes.dtype != torch.float32:
            raise UsageError(
                f"dtype is {sizes.dtype}; the CPU decoder computes in float32.",
                "It reads bfloat16 weights as they are stored, so float32 costs no time.",
                "Leave --dtype out, or use --backend torch.",
            )
        super().__init__(sizes)
        self.config = model.config
        check_config(self.config)
        self._library = open_library()
        self.instruction_set = self._library.qwen_cpu_instruction_set().decode()
        cpu_library.check_structs(self._library, "qwen_cpu_struct_bytes", native.STRUCTS)
        weights = frame_weights(self.config).total
        self.num_threads = cpu_threads.choose_native(weights, num_threads)
        self.pool = cpu_library.CpuPool(self._library, self.num_threads)
        self.embeddings = Embeddings(model, self.device, self.dtype, as_stored=True)
        handle = ctypes.c_void_p()
        packer, memory = pack(model, self.pool)
        self.packed_sizes = packer.sizes  # bytes of each packed matrix
        source = _Source(model, packer.matrices, self.embeddings, sizes)
        status = self._library.qwen_cpu_decoder_create(
            ctypes.c_void_p(self.pool.handle), ctypes.byref(source.model), ctypes.byref(handle)
        )
        cpu_library.check_status(status, "The model", HINT)
        self._handle = handle
        talker = self.config.talker.stack
        self._kept_floats = 2 * talker.num_layers * talker.kv_size
        self._prefixes = PrefixCache(PREFIX_BYTES, self._kept_floats)
        # Native code reads matrices and tables where they are, and the pool must outlive it.
        held = self.pool, source.tables, memory
        cpu_library.destroy_with(self, self._library.qwen_cpu_decoder_destroy, handle, *held)

    def cancel(self) -> None:
        self._library.qwen_cpu_decoder_cancel(self._handle)

    def _run_prompt(self, slot: int, embeds: Tensor, pad_embed: Tensor) -> None:
        embeds = embeds.float().contiguous()
        copy = partial(self._library.qwen_cpu_decoder_copy_cache, self._handle, slot)

        def read(position: int) -> Tensor:
            values = torch.empty(self._kept_floats)
            copy(position, _address(values), False)
            return values

        kept = self._prefixes.find(embeds[:-1])  # the last position always runs
        for position, values in enumerate(kept):
            copy(position, _address(values), True)
        state = self._state(slot)
        options = native.StreamOptions(part=state.part, seed=state.seed, **state.sampling_params)
        pad = pad_embed.float().contiguous()
        status = self._library.qwen_cpu_decoder_prefill(
            self._handle,
            slot,
            ctypes.byref(options),
            _address(embeds),
            len(embeds),
            len(kept),
            _address(pad),
        )
        cpu_library.check_status(status, f"A prompt of {len(embeds)} positions", HINT)
        self._prefixes.add(embeds, read)

    def _write_text(self, slot: int, rows: Tensor) -> None:
        rows = rows.float().contiguous()
        status = self._library.qwen_cpu_decoder_write_text(
            self._handle, slot, _address(rows), len(rows)
        )
        cpu_library.check_status(status, f"Text of {len(rows)} rows", HINT)

    def _step(
        self, slots: Sequence[int], num_frames: int, forced: Tensor | None, taps: Taps | None
    ) -> StepResult:
        n, groups = len(slots), self.config.talker.num_code_groups
        ids = np.array(slots, dtype=np.int32)
        codes = np.zeros((n, num_frames, groups), dtype=np.int32)
        num_done, ended, bad = (np.zeros(n, dtype=np.int32) for _ in range(3))
        request = native.StepRequest(
            slots=ids.ctypes.data,
            num_streams=n,
            num_frames=num_frames,
            codes=codes.ctypes.data,
            num_done=num_done.ctypes.data,
            ended=ended.ctypes.data,
            bad_codebook=bad.ctypes.data,
        )
        if forced is not None:
            given = forced.to(torch.int32).contiguous()
            request.forced = given.data_ptr()
        if taps is not None:
            request.talker_logits = taps["talker"].data_ptr()
            request.code_logits = taps["predictor"].data_ptr()
        status = self._library.qwen_cpu_decoder_step(self._handle, ctypes.byref(request))
        if status != cpu_library.DONE:
            self._lose(slots)
            cpu_library.check_status(status, "A step", HINT)
        failures: dict[int, QwenTTSError] = {
            row: not_finite(codebook) for row, codebook in enumerate(bad.tolist()) if codebook >= 0
        }
        for row, slot in enumerate(slots):
            if row not in failures:
                self._state(slot).advance(int(num_done[row]), bool(ended[row]))
        counts, ends = tuple(num_done.tolist()), tuple(map(bool, ended))
        return self._settled(slots, StepResult(codes, counts, ends, failures))


class _Source:
    """A `ModelSource`, and the tensors at its addresses, which native code reads once."""

    def __init__(
        self,
        model: DecoderModel,
        packed: dict[str, native.MatrixSource],
        embeddings: Embeddings,
        sizes: DecoderSizes,
    ):
        self._alive: list[Any] = []
        self._packed = packed
        config, weights = model.config, model.talker
        talker, groups = config.talker, config.talker.num_code_groups
        predictor = "code_predictor."
        self.model = native.ModelSource(
            self._stack(talker.stack, weights, "model.", sizes.max_positions),
            self._stack(config.predictor.stack, weights, f"{predictor}model.", groups),
            *(groups, talker.codec_eos_id, talker.suppressed_from, MIN_FRAMES, sizes.num_slots),
            self._packed["codec_head"],
        )
        if config.has_projection:
            name = f"{predictor}small_to_mtp_projection"
            self.model.projection = self._packed[name]
            self.model.projection_bias = self._vector(tensor(weights, f"{name}.bias"))
        self.model.lm_heads = self._matrices(
            self._packed[f"{predictor}lm_head.{group}"] for group in range(groups - 1)
        )
        # Native code reads these tables where they are, as long as the decoder lives.
        self.tables = [embeddings.codec_table, *embeddings.code_tables]
        assert all(table.is_contiguous() for table in self.tables)
        kinds = {torch.float32: native.FLOAT32, torch.bfloat16: native.BF16}
        self.model.code_tables = self._matrices(
            native.MatrixSource(table.data_ptr(), None, *table.shape, kinds[table.dtype], 0)
            for table in self.tables
        )

    def _stack(
        self, config: StackConfig, weights: Weights, prefix: str, num_positions: int
    ) -> native.StackSource:
        layers = [f"{prefix}layers.{index}." for index in range(config.num_layers)]
        matrices = self._matrices(
            self._packed[f"{layer}{name}"] for layer in layers for name in native.MATRICES_OF_LAYER
        )
        names = [f"{layer}{name}" for layer in layers for name in native.VECTORS_OF_LAYER]
        vectors = [
            self._vector(tensor(weights, name)) if name in weights else None for name in names
        ]
        return native.StackSource(
            *(config.hidden_size, config.intermediate_size, config.num_layers),
            *(config.num_heads, config.num_kv_heads, config.head_dim, num_positions),
            config.rms_norm_eps,
            *(self._vector(table) for table in rope_tables(config, num_positions)),
            matrices,
            self._keep((ctypes.c_void_p * len(vectors))(*vectors)),
            self._vector(tensor(weights, f"{prefix}norm.weight")),
        )

    def _keep(self, value: Any) -> Any:
        self._alive.append(value)
        return value

    def _vector(self, values: Tensor) -> int:
        return self._keep(values.float().contiguous()).data_ptr()

    def _matrices(self, matrices: Iterable[native.MatrixSource]) -> Any:
        sources = list(matrices)
        return self._keep((native.MatrixSource * len(sources))(*sources))


def _address(values: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.data_ptr())
