"""The vocoder: the decoder half of the speech tokenizer, which turns codec frames into PCM.

The network is strictly causal. A stream's state has the last inputs of every layer, so chunks of
any length give the samples that decoding the whole at once gives. The layers are in `layers` and
`transformer`.

A state is [num_values] in the vocoder's dtype, on its device: the number of frames whose keys are
valid, then the last inputs of each layer that looks back. It is one tensor, always with the same
storage, so that one copy reads the state of a stream and one writes it.

Source: QwenLM/Qwen3-TTS, modeling_qwen3_tts_tokenizer_v2.py, Qwen3TTSTokenizerV2Decoder
(qwen-tts 0.1.1).
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.checkpoint.codec_config import CodecConfig, CodecDecoderConfig
from qwen_megakernel.checkpoint.weight_reader import WeightReader
from qwen_megakernel.errors import UsageError
from qwen_megakernel.vocoder.layers import (
    Codebooks,
    Conv,
    ConvNeXt,
    Layer,
    Layout,
    ResidualUnit,
    Snake,
    TransposedConv,
)
from qwen_megakernel.vocoder.transformer import Transformer

# A literal of the official residual units; no config file holds it.
DILATIONS = (1, 3, 9)

# Maximum number of frames that go through the frame-rate layers, and through the others, at once.
# Longer chunks are cut into pieces that do not depend on the number of streams. This bounds the
# working set: each frame of each stream takes about 4 MB in the tail at released shapes, most of it
# at the sample rate.
MAX_FRAMES_PER_PASS = 32
MAX_TAIL_FRAMES_PER_PASS = 8


class Vocoder:
    """The speech tokenizer's decoder.

    It holds weights and tables only; everything that changes while streams run is in their states.
    Between the check of the codes and the PCM it reads nothing back from the device, its shapes
    depend on (n, num_frames) alone, and it updates states in place.
    """

    lookahead = 0  # strictly causal: no later frame changes a chunk

    def __init__(
        self,
        codec_config: CodecConfig,
        tensors: dict[str, Tensor],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        tables: Tensor | None = None,
    ):
        """Arrange the weights for decoding.

        Args:
            codec_config: every dimension is read from it or from the tensors.
            tensors: `Checkpoint.codec_decoder`, the official names without "decoder.".
            device: the device of weights, states and PCM.
            dtype: float32, or float64 to prove exactness.
            tables: the vectors of all codes; None: computed from `tensors`.
        Raises:
            UsageError: the dtype is neither float32 nor float64.
        """
        if dtype not in (torch.float32, torch.float64):
            raise UsageError(
                f"The vocoder cannot run in {dtype}.",
                "Its snake activations lose the waveform in 16 bits (25 dB SNR in bf16).",
                "Use float32.",
            )
        config = codec_config.decoder
        weights = WeightReader(tensors, torch.device(device), dtype)
        layout = Layout()
        self.config = config
        self.samples_per_frame = codec_config.samples_per_frame
        self.device, self.dtype = weights.device, dtype
        self._num_keys = layout.reserve(1, 1)
        self._codebooks = Codebooks(weights.at("quantizer"), config, tables)
        self._pre_conv = Conv(weights.at("pre_conv.conv"), layout)
        self._transformer = Transformer(
            weights.at("pre_transformer"), config, layout, MAX_FRAMES_PER_PASS
        )
        self._tail = _tail_layers(weights, config, layout)
        self._num_values = layout.num_values
        self._tail_context = 0  # number of past frames on which the tail's next samples depend
        for layer in reversed(self._tail):
            self._tail_context = math.ceil(self._tail_context / layer.stride) + layer.num_past
        self._context = (
            self._tail_context
            + config.num_layers * (config.sliding_window - 1)
            + self._pre_conv.num_past
        )

    def new_state(self) -> Tensor:
        """Return the state of a stream that has not decoded a frame yet: [num_values] zeros."""
        return torch.zeros(self._num_values, device=self.device, dtype=self.dtype)

    def step(self, codes: Tensor, states: Sequence[Tensor]) -> Tensor:
        """Decode the next frames of n streams, which may have decoded different numbers of frames.

        Other streams, and a stream's division into chunks, change its samples by rounding only:
        PyTorch may sum rows in another order when there are more of them.

        Args:
            codes: [n, num_frames, num_quantizers] integers. The check of their range waits for the
                device if they are not on the CPU.
            states: one for each row, all different; advanced by num_frames.
        Returns:
            [n, num_frames * samples_per_frame] PCM in [-1, 1], in the vocoder's dtype, on its
            device.
        Raises:
            UsageError: the codes have another shape, or are outside 0 .. codebook_size - 1.
        """
        codes = self._checked(codes)
        assert len(states) == len(codes) == len({id(state) for state in states})
        return self._step(codes, states)

    @torch.inference_mode()
    def _step(self, codes: Tensor, states: Sequence[Tensor]) -> Tensor:
        """Compute `step` for codes and states that were checked."""
        batch = _gather(states)
        pcm = self._decode_tail(self._decode_front(codes.to(self.device), batch), batch)
        if len(states) > 1:
            for values, state in zip(batch, states, strict=True):
                state.copy_(values)
        return pcm.T.contiguous()

    def decode(self, codes: np.ndarray | Tensor) -> np.ndarray:
        """Decode a whole utterance, [num_frames, num_quantizers] integers.

        Returns:
            [num_frames * samples_per_frame] PCM in [-1, 1], in the vocoder's dtype.
        """
        try:
            frames = torch.as_tensor(codes)
        except (TypeError, ValueError, RuntimeError) as error:  # strings, rows of several lengths
            raise UsageError(
                f"Codes are {getattr(codes, 'dtype', None) or reprlib.repr(codes)}; "
                f"they must be integers, {self.config.num_quantizers} for each frame."
            ) from error
        pcm = self.step(frames[None], [self.new_state()])
        return pcm[0].cpu().numpy()

    @torch.inference_mode()
    def warm(self, codes: np.ndarray | Tensor, state: Tensor) -> None:
        """Advance a stream over frames without returning their samples (an in-context voice's
        codes).

        The new state equals that after `step`, up to rounding. Only frames on which later samples
        depend are decoded, and the convolutions, nearly all of the work, run over the last few.

        Args:
            codes: [num_frames, num_quantizers] integers.
            state: advanced by num_frames.
        """
        codes = self._checked(torch.as_tensor(codes)[None])[:, -self._context :]
        batch = _gather([state])
        hidden = self._decode_front(codes.to(self.device), batch)
        self._decode_tail(hidden[-self._tail_context :], batch)

    def _checked(self, codes: Tensor) -> Tensor:
        """Return the codes as int64, on their device, or raise UsageError."""
        groups, size = self.config.num_quantizers, self.config.codebook_size
        if codes.ndim != 3 or codes.shape[2] != groups or not codes.numel():
            raise UsageError(
                f"Codes have shape {list(codes.shape)}; they must be frames of {groups} codes each."
            )
        if codes.is_floating_point() or codes.dtype == torch.bool:
            raise UsageError(f"Codes are {codes.dtype}; they must be integers.")
        codes = codes.to(torch.int64)
        low, high = codes.min().item(), codes.max().item()
        if low < 0 or high >= size:
            raise UsageError(
                f"Code {low if low < 0 else high} is outside 0 .. {size - 1}.",
                f"This checkpoint's codebooks have {size} entries each.",
            )
        return codes

    def _decode_front(self, codes: Tensor, batch: Tensor) -> Tensor:
        """Run the frame-rate layers: [n, frames, num_quantizers] -> [frames, n, latent_dim]."""
        pieces = []
        for piece in codes.transpose(0, 1).split(MAX_FRAMES_PER_PASS):
            hidden = self._pre_conv(self._codebooks(piece), batch)
            pieces.append(self._transformer(hidden, batch, self._num_keys.view(batch)))
        return torch.cat(pieces)

    def _decode_tail(self, hidden: Tensor, batch: Tensor) -> Tensor:
        """Run the other layers: [num_frames, n, latent_dim] -> [num_samples, n]."""
        pieces = []
        for piece in hidden.split(MAX_TAIL_FRAMES_PER_PASS):
            for layer in self._tail:
                piece = layer(piece, batch)
            pieces.append(piece.squeeze(2).clamp_(-1, 1))
        return torch.cat(pieces)


def _gather(states: Sequence[Tensor]) -> Tensor:
    """Return states as [n, num_values]; a single stream's state is a view, not a copy."""
    if len(states) == 1:
        return states[0][None]
    return torch.stack(list(states))


def _tail_layers(weights: WeightReader, config: CodecDecoderConfig, layout: Layout) -> list[Layer]:
    """Return the layers from the frame rate to the sample rate, all of them convolutional."""
    layers: list[Layer] = []
    for i, ratio in enumerate(config.upsampling_ratios):
        stage = weights.at(f"upsample.{i}")
        layers.append(TransposedConv(stage.at("0.conv"), ratio, layout))
        layers.append(ConvNeXt(stage.at("1"), layout))
    layers.append(Conv(weights.at("decoder.0.conv"), layout))
    for i, rate in enumerate(config.upsample_rates, start=1):
        block = weights.at(f"decoder.{i}.block")
        snake = Snake(block.at("0"))
        layers.append(TransposedConv(block.at("1.conv"), rate, layout, snake))
        for j, dilation in enumerate(DILATIONS, start=2):
            layers.append(ResidualUnit(block.at(f"{j}"), dilation, layout))
    last = len(config.upsample_rates) + 1
    snake = Snake(weights.at(f"decoder.{last}"))
    layers.append(Conv(weights.at(f"decoder.{last + 1}.conv"), layout, snake=snake))
    return layers
