"""The vocoder in native code, compiled for this CPU's instructions: codes to samples in one call.

Its weights are packed when it is made, or mapped from a file that holds them packed.
Arithmetic is float32. A stream's samples depend neither on the number of threads nor on other
streams; its division into chunks changes them by rounding only. States have the layout of the
vocoder in PyTorch, value by value.
"""

import ctypes
from collections.abc import Sequence
from itertools import starmap

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.checkpoint.codec_config import CodecConfig
from qwen_megakernel.checkpoint.packed_form import ALIGNMENT, PREFIX
from qwen_megakernel.checkpoint.tensor_shapes import vocoder_tensors
from qwen_megakernel.errors import ModelFilesError, UnsupportedModel
from qwen_megakernel.native.cpu_library import CpuPool, check_status, check_structs, destroy_with
from qwen_megakernel.native.memory import huge_pages
from qwen_megakernel.vocoder.cpu import library as native
from qwen_megakernel.vocoder.layers import (
    LAYER_NORM_EPS,
    Conv,
    ResidualUnit,
    TransposedConv,
    stacked,
)
from qwen_megakernel.vocoder.vocoder import DILATIONS, MAX_FRAMES_PER_PASS, Vocoder

# The names of the packed weights, and of the vectors of all codes, among the codec's tensors.
PACKED, TABLES = f"{PREFIX}vocoder", f"{PREFIX}codebooks"
FIRST_BOOK = "quantizer.rvq_first.vq.layers.0._codebook"
HINT = "Use fewer slots."


def packed_tensors(config: CodecConfig) -> list[str]:
    """Return the names, without "decoder.", of the tensors that are packed: all that are multiplied
    with more than one channel."""
    return [
        name
        for name, shape in vocoder_tensors(config.decoder)
        if name.endswith(".weight") and len(shape) > 1 and ".dwconv." not in name
    ]


def check_model(config: CodecConfig, tensors: dict[str, Tensor]) -> None:
    """Raise a ModelFilesError if a tensor is missing, has another shape, so that native code would
    read past its end, or has no values and is not packed."""
    for name, shape in vocoder_tensors(config.decoder):
        found = tuple(tensors[name].shape) if name in tensors else "missing"
        if found != shape:
            raise ModelFilesError(f"Tensor {name} of the codec is {found}; it must be {shape}.")
    # Native code would read at no address.
    without_values = {name for name, tensor in tensors.items() if tensor.is_meta}
    if without_values != set(packed_tensors(config) if PACKED in tensors else ()):
        raise ModelFilesError(
            "The codec's file does not have the packed tensors that this program reads.",
            hint="Convert the original model again.",
        )


class CpuVocoder(Vocoder):
    """A `Vocoder` in native code.

    Args:
        codec_config, tensors: as `Vocoder` takes them.
        pool: the decoder's threads, which compute here, too, so that two pools never compete for
            the same cores.
        is_direct: leave out the transforms along time, which save products and cost precision.
        is_half: round weights and codebooks to float16; those of a file are as they are stored.
    Raises:
        UnsupportedModel, ModelFilesError, OutOfMemory: the vocoder cannot run.
    """

    def __init__(
        self,
        codec_config: CodecConfig,
        tensors: dict[str, Tensor],
        pool: CpuPool,
        *,
        is_direct: bool = False,
        is_half: bool = False,
    ):
        check_model(codec_config, tensors)
        super().__init__(codec_config, tensors, tables=_stored_tables(codec_config, tensors))
        self.pool, self._library = pool, pool.library
        check_structs(self._library, "qwen_cpu_vocoder_struct_bytes", native.STRUCTS)
        handle = ctypes.c_void_p()
        source = _Source(self, is_direct)
        # In the layout of convolution.h: float16, or uint8 if the weights are float32.
        self.packed = self._packed(tensors, source.vocoder, is_half)
        self.is_half = bool(source.vocoder.is_half)
        tables = self._codebooks.tables.contiguous()
        self.tables = tables.half() if self.is_half else tables
        source.vocoder.tables, source.vocoder.packed = (
            each.data_ptr() for each in (self.tables, self.packed)
        )
        status = self._library.qwen_cpu_vocoder_create(
            ctypes.c_void_p(pool.handle), ctypes.byref(source.vocoder), ctypes.byref(handle)
        )
        check_status(status, "The vocoder", HINT)
        self._handle = handle
        # Native code reads these where they are, and the pool must outlive the vocoder. Everything
        # else was copied.
        destroy_with(
            self, self._library.qwen_cpu_vocoder_destroy, handle, pool, self.tables, self.packed
        )
        del self._codebooks, self._pre_conv, self._transformer, self._tail

    def _packed(
        self, tensors: dict[str, Tensor], source: native.VocoderSource, is_half: bool
    ) -> Tensor:
        """Return the packed weights, those of the file or new ones, and set `source.is_half`."""
        if PACKED in tensors:
            packed = tensors[PACKED]
            source.is_half = packed.dtype == torch.float16
            size = self._packed_bytes(source)
            if packed.nbytes != size or packed.data_ptr() % ALIGNMENT or source.is_direct:
                raise ModelFilesError(
                    f"The file's packed vocoder has {packed.nbytes} bytes at "
                    f"{packed.data_ptr():#x}; its config needs {size}, aligned to {ALIGNMENT}.",
                    hint="Convert the original model again.",
                )
            return packed
        packed = huge_pages(self._packed_bytes(source), HINT)
        status = self._library.qwen_cpu_vocoder_pack(
            ctypes.c_void_p(self.pool.handle),
            ctypes.byref(source),
            ctypes.c_void_p(packed.data_ptr()),
        )
        check_status(status, "The vocoder", HINT)
        if not is_half:
            return packed
        weights, source.is_half = packed.view(torch.float32), True
        extremes = torch.stack([*weights.aminmax(), *self._codebooks.tables.aminmax()])
        if not extremes.half().isfinite().all():
            raise UnsupportedModel(
                f"The vocoder's weights reach {extremes.abs().max():.3g}, too large for float16.",
                hint="Use --vocoder-weights float32.",
            )
        half = huge_pages(self._packed_bytes(source), HINT).view(torch.float16)
        half[: len(weights)] = weights
        return half

    def _packed_bytes(self, source: native.VocoderSource) -> int:
        num_bytes = ctypes.c_int64()
        status = self._library.qwen_cpu_vocoder_packed_bytes(
            ctypes.byref(source), ctypes.byref(num_bytes)
        )
        check_status(status, "The vocoder", HINT)
        return num_bytes.value

    def _step(self, codes: Tensor, states: Sequence[Tensor]) -> Tensor:
        pcm = torch.empty(len(codes), codes.shape[1] * self.samples_per_frame)
        self._run(codes, states, 0, pcm)
        return pcm

    def warm(self, codes: np.ndarray | Tensor, state: Tensor) -> None:
        codes = self._checked(torch.as_tensor(codes)[None])[:, -self._context :]
        self._run(codes, [state], max(0, codes.shape[1] - self._tail_context), None)

    def _run(
        self, codes: Tensor, states: Sequence[Tensor], num_silent: int, pcm: Tensor | None
    ) -> None:
        codes = codes.to(torch.int32).contiguous()
        addresses = (ctypes.c_void_p * len(states))(*(each.data_ptr() for each in states))
        request = native.VocoderRequest(
            codes=codes.data_ptr(),
            states=ctypes.addressof(addresses),
            num_streams=len(states),
            num_frames=codes.shape[1],
            num_silent=num_silent,
            pcm=None if pcm is None else pcm.data_ptr(),
        )
        status = self._library.qwen_cpu_vocoder_step(self._handle, ctypes.byref(request))
        check_status(status, f"A chunk of {codes.shape[1]} frames of {len(states)} streams", HINT)


def _stored_tables(config: CodecConfig, tensors: dict[str, Tensor]) -> Tensor | None:
    """Return the vectors of all codes that a file holds; None: they are computed."""
    if PACKED not in tensors:
        return None
    rows, width = dict(vocoder_tensors(config.decoder))[f"{FIRST_BOOK}.embedding_sum"]
    dtype = torch.float16 if tensors[PACKED].dtype == torch.float16 else torch.float32
    num_bytes = config.decoder.num_quantizers * rows * width * dtype.itemsize
    stored = tensors.get(TABLES)
    if stored is None or stored.numel() != num_bytes or stored.data_ptr() % ALIGNMENT:
        found = "none" if stored is None else f"{stored.numel()} at {stored.data_ptr():#x}"
        raise ModelFilesError(
            f"The file's config needs {num_bytes} bytes of codebooks, aligned to {ALIGNMENT}; "
            f"it has {found}.",
            hint="Convert the original model again.",
        )
    return stored.view(dtype).view(-1, width)


class _Source:
    """A `VocoderSource`, and the tensors at its addresses, which native code reads once."""

    def __init__(self, vocoder: Vocoder, is_direct: bool):
        self._alive: list[Tensor] = []
        config, transformer = vocoder.config, vocoder._transformer
        books = vocoder._codebooks
        projections = stacked([books.first_proj.T, books.rest_proj.T])
        convolutions = [
            self._matrix(projections.T),
            self._conv(vocoder._pre_conv),
            self._matrix(*transformer.input_proj),
        ]
        vectors: list[Tensor] = []
        for layer in transformer.layers:
            convolutions += [
                self._matrix(layer.qkv_proj, history=layer.history.start),
                self._matrix(layer.o_proj),
                self._matrix(layer.gate_up_proj, stride=2),
                self._matrix(layer.down_proj),
            ]
            vectors += [layer.input_norm, layer.attention_scale, layer.mlp_norm, layer.mlp_scale]
        convolutions.append(self._matrix(*transformer.output_proj))
        vectors.append(transformer.norm)
        for each in vocoder._tail:
            if isinstance(each, Conv | TransposedConv):
                convolutions.append(self._conv(each))
            elif isinstance(each, ResidualUnit):
                convolutions += [self._conv(each.conv1), self._conv(each.conv2)]
            else:
                depthwise = native.ConvolutionSource(
                    *(self._address(each.taps), self._address(each.bias), None, None),
                    *(*each.taps.shape, 0, 1, 1, each.history.start),
                )
                convolutions += [depthwise, *starmap(self._matrix, (each.pwconv1, each.pwconv2))]
                vectors += [*each.norm, each.gamma]
        self._convolutions = (native.ConvolutionSource * len(convolutions))(*convolutions)
        addresses = [self._address(each) for each in vectors]
        self._vectors = (ctypes.c_void_p * len(addresses))(*addresses)
        self.vocoder = native.VocoderSource(
            *(config.num_quantizers, config.codebook_size, books.tables.shape[1]),
            vocoder.samples_per_frame,
            None,  # the tables, which may have to be rounded first
            *(config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim),
            *(transformer.num_past, MAX_FRAMES_PER_PASS, config.rms_norm_eps, LAYER_NORM_EPS),
            *(self._address(transformer.cos), self._address(transformer.signed_sin)),
            vocoder._num_keys.start,
            *(len(config.upsampling_ratios), len(config.upsample_rates), len(DILATIONS)),
            *(False, is_direct),
            self._convolutions,
            self._vectors,
        )

    def _address(self, tensor: Tensor | None) -> int | None:
        if tensor is None or tensor.is_meta:
            return None
        self._alive.append(tensor.contiguous())
        return self._alive[-1].data_ptr()

    def _matrix(
        self, weight: Tensor, bias: Tensor | None = None, stride: int = 1, history: int = 0
    ) -> native.ConvolutionSource:
        """Return a matrix [stride * out_channels, in_channels] as a convolution of one tap."""
        rows, columns = weight.shape
        return native.ConvolutionSource(
            *(self._address(weight.T), self._address(bias), None, None),
            *(1, columns, rows // stride, stride, 1, history),
        )

    def _conv(self, conv: Conv | TransposedConv) -> native.ConvolutionSource:
        snake = conv.snake
        num_taps, in_channels, columns = conv.taps.shape
        return native.ConvolutionSource(
            *(self._address(conv.taps), self._address(conv.bias)),
            self._address(snake.frequency if snake else None),
            self._address(snake.amplitude if snake else None),
            *(num_taps, in_channels, columns // conv.stride, conv.stride),
            *(getattr(conv, "dilation", 1), conv.history.start),
        )
