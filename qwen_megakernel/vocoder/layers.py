"""Layers of the vocoder, which decode a stream in pieces and store the inputs they need again.

Activations are time-major, [num_steps, n, channels]. All rows of one time step lie together, so
the slice that one tap of a convolution reads is one contiguous [num_steps * n, channels] matrix,
for any dilation and number of streams: a convolution is one matrix product for each tap, without
unfolding, and streams share each pass over the weights.

Source: QwenLM/Qwen3-TTS, modeling_qwen3_tts_tokenizer_v2.py (qwen-tts 0.1.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_megakernel.checkpoint.codec_config import CodecDecoderConfig
from qwen_megakernel.checkpoint.weight_reader import WeightReader

# Literals of the official classes; no config file holds them.
CLUSTER_USAGE_MIN = 1e-5  # rows of a codebook that training never used have usage 0
LAYER_NORM_EPS = 1e-6
SNAKE_EPS = 1e-9

# On a CPU, pieces of fewer steps are multiplied row by row. BLAS has one function for vectors and
# another for matrices, which sum in different orders: with this rule the number of streams never
# chooses between them, and a stream's samples are the same alone and beside others. (Zero rows up
# to a matrix would have the same effect, but cost a single stream 6 % of a one-frame chunk.)
MIN_STEPS = 4

# On a GPU, a convolution of this many taps or more is one product, not one for each tap.
MIN_TAPS_AT_ONCE = 3


def is_on_gpu(x: Tensor) -> bool:
    """Return whether operations on x run as GPU kernels, which cost more to start than to run.

    Code for a GPU has few operations; code for a CPU has more, but writes their results in place.
    """
    return x.device.type != "cpu"


class Layout:
    """The layout of a stream's state, in which each layer reserves a part."""

    def __init__(self) -> None:
        self.num_values = 0

    def reserve(self, num_rows: int, width: int) -> History:
        """Reserve the next num_rows * width values."""
        history = History(self.num_values, num_rows, width)
        self.num_values += num_rows * width
        return history


@dataclass(frozen=True, slots=True)
class History:
    """The part of the state that holds the last `num_rows` inputs of one layer, oldest first."""

    start: int
    num_rows: int
    width: int

    def view(self, batch: Tensor) -> Tensor:
        """Return this part of [n, num_values] states as [num_rows, n, width]; shares storage."""
        values = batch[:, self.start : self.start + self.num_rows * self.width]
        return values.unflatten(1, (self.num_rows, self.width)).transpose(0, 1)

    def extend(self, x: Tensor, batch: Tensor, snake: Snake | None = None) -> Tensor:
        """Activate x, put the past inputs in front of it, and store the last inputs in the states.

        Args:
            x: [num_steps, n, width].
            batch: [n, num_values] states; this layer's part is advanced.
            snake: the activation, if there is one.
        Returns:
            [num_rows + num_steps, n, width].
        """
        past = self.view(batch)
        if is_on_gpu(x):
            x = snake.at_once(x) if snake else x
            if not self.num_rows:
                return x
            extended = torch.cat([past, x])
            past.copy_(extended[len(x) :])
            return extended
        extended = x.new_empty(self.num_rows + len(x), *x.shape[1:])
        extended[: self.num_rows] = past
        if snake:
            snake(x, out=extended[self.num_rows :])
        else:
            extended[self.num_rows :] = x
        past.copy_(extended[len(x) :])
        return extended


def _sum_taps(
    x: Tensor, taps: Tensor, bias: Tensor | None, num_steps: int, dilation: int = 1
) -> Tensor:
    """Return bias + the sum over i of x[i * dilation : i * dilation + num_steps] @ taps[i].

    Args:
        x: [num_steps + (num_taps - 1) * dilation, n, in_channels].
        taps: [num_taps, in_channels, out_channels].
        bias: [out_channels], or None.
    Returns:
        [num_steps, n, out_channels].
    """
    if is_on_gpu(x) and len(taps) >= MIN_TAPS_AT_ONCE:
        return sum_taps_at_once(x, taps, bias, num_steps, dilation)
    n = x.shape[1]
    x = x.flatten(0, 1)
    num_rows = num_steps * n
    size = 1 if num_steps < MIN_STEPS and x.device.type == "cpu" else num_rows
    y = x.new_empty(num_rows, taps.shape[2])
    for start in range(0, num_rows, size):
        part = y[start : start + size]
        if bias is None:
            torch.mm(x[start : start + size], taps[0], out=part)
        else:
            torch.addmm(bias, x[start : start + size], taps[0], out=part)
        for i, tap in enumerate(taps[1:], start=1):
            first = start + i * dilation * n
            part.addmm_(x[first : first + size], tap)
    return y.unflatten(0, (num_steps, n))


def sum_taps_at_once(
    x: Tensor, taps: Tensor, bias: Tensor | None, num_steps: int, dilation: int = 1
) -> Tensor:
    """Compute `_sum_taps` as one product, from a copy with the inputs of all taps side by side.

    These are two kernels instead of one for each tap.
    """
    n, channels = x.shape[1:]
    shape, steps = (num_steps * n, len(taps), channels), (channels, dilation * n * channels, 1)
    x = x.contiguous()
    rows = x.as_strided(shape, steps, x.storage_offset()).flatten(1)
    weight = taps.flatten(0, 1)
    y = rows @ weight if bias is None else torch.addmm(bias, rows, weight)
    return y.unflatten(0, (num_steps, n))


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """Return tensors that differ in their first dimension as one.

    For tensors without values, `torch.cat` would import hundreds of modules of PyTorch.
    """
    whole = parts[0].new_empty(sum(map(len, parts)), *parts[0].shape[1:])
    for rows, part in zip(whole.split([len(part) for part in parts]), parts, strict=True):
        rows.copy_(part)
    return whole


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x [num_steps, n, in_features] @ weight [out_features, in_features]^T + bias."""
    return _sum_taps(x, weight.T[None], bias, len(x))


class Snake:
    """The activation x + sin^2(x * e^alpha) / (e^beta + 1e-9), of alpha and beta [channels]."""

    def __init__(self, weights: WeightReader):
        self.frequency = weights["alpha"].exp()
        self.amplitude = 1 / (weights["beta"].exp() + SNAKE_EPS)

    def __call__(self, x: Tensor, out: Tensor) -> None:
        sine_squared = torch.mul(x, self.frequency, out=out).sin_().square_()
        torch.addcmul(x, sine_squared, self.amplitude, out=out)

    def at_once(self, x: Tensor) -> Tensor:
        """Return the activation of x [..., channels], computed by one operation."""
        from qwen_megakernel.vocoder.snake import snake  # adds an operation to PyTorch, in 6 ms

        return snake(x, self.frequency, self.amplitude)


class Conv:
    """A causal convolution, with an optional activation of its input.

    The state stores activated inputs: the official layer pads with zeros after the activation.
    """

    def __init__(
        self, weights: WeightReader, layout: Layout, dilation: int = 1, snake: Snake | None = None
    ):
        weight = weights["weight"]  # [out_channels, in_channels, kernel_size]
        self.taps = weight.permute(2, 1, 0).contiguous()
        self.bias = weights["bias"]
        self.dilation = dilation
        self.snake = snake
        self.num_past, self.stride = (weight.shape[2] - 1) * dilation, 1
        self.history = layout.reserve(self.num_past, weight.shape[1])

    def __call__(self, x: Tensor, batch: Tensor) -> Tensor:
        extended = self.history.extend(x, batch, self.snake)
        return _sum_taps(extended, self.taps, self.bias, len(x), self.dilation)


class TransposedConv:
    """A transposed convolution without its last kernel_size - stride outputs, which look ahead.

    kernel_size is stride or 2 * stride, so output t * stride + j depends on x[t] and x[t - 1]:
    y = W[:, :, j]^T x[t] + W[:, :, stride + j]^T x[t - 1] + b.
    """

    def __init__(
        self, weights: WeightReader, stride: int, layout: Layout, snake: Snake | None = None
    ):
        weight = weights["weight"]  # [in_channels, out_channels, kernel_size]
        in_channels, self.out_channels, kernel_size = weight.shape
        num_taps = kernel_size // stride
        taps = weight.unflatten(2, (num_taps, stride)).permute(2, 0, 3, 1)
        # [num_taps, in_channels, stride * out_channels], with the oldest input first, as in Conv.
        oldest_first = stacked(taps.split(1)[::-1])
        self.taps = oldest_first.reshape(num_taps, in_channels, stride * self.out_channels)
        self.bias = weights["bias"].repeat(stride)
        self.num_past, self.stride = num_taps - 1, stride
        self.snake = snake
        self.history = layout.reserve(self.num_past, in_channels)

    def __call__(self, x: Tensor, batch: Tensor) -> Tensor:
        num_steps, n, _ = x.shape
        extended = self.history.extend(x, batch, self.snake)
        y = _sum_taps(extended, self.taps, self.bias, num_steps)
        y = y.view(num_steps, n, self.stride, self.out_channels).transpose(1, 2)
        return y.reshape(num_steps * self.stride, n, self.out_channels)


class ResidualUnit:
    """The residual unit x + conv1(snake(conv7(snake(x)))), whose wide convolution is dilated."""

    def __init__(self, weights: WeightReader, dilation: int, layout: Layout):
        self.conv1 = Conv(
            weights.at("conv1.conv"), layout, dilation, snake=Snake(weights.at("act1"))
        )
        self.conv2 = Conv(weights.at("conv2.conv"), layout, snake=Snake(weights.at("act2")))
        self.num_past, self.stride = self.conv1.num_past + self.conv2.num_past, 1

    def __call__(self, x: Tensor, batch: Tensor) -> Tensor:
        return self.conv2(self.conv1(x, batch), batch).add_(x)


def _sum_channels(x: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    """Return bias + the sum over i of x[i : i + num_steps] * taps[i], a depthwise convolution.

    Args:
        x: [num_steps + num_taps - 1, n, channels].
        taps: [num_taps, channels].
        bias: [channels].
    Returns:
        [num_steps, n, channels].
    """
    if is_on_gpu(x):
        return sum_channels_at_once(x, taps, bias)
    num_steps = len(x) - len(taps) + 1
    y = bias
    for i, tap in enumerate(taps):
        y = torch.addcmul(y, x[i : i + num_steps], tap)
    return y


def sum_channels_at_once(x: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    """Compute `_sum_channels` with three kernels, instead of one for each tap."""
    return (x.unfold(0, len(taps), 1) * taps.T).sum(3).add_(bias)


class ConvNeXt:
    """The ConvNeXt block x + gamma * pwconv2(gelu(pwconv1(norm(dwconv(x)))))."""

    def __init__(self, weights: WeightReader, layout: Layout):
        depthwise = weights["dwconv.conv.weight"]  # [channels, 1, kernel_size]
        self.taps = depthwise.squeeze(1).T.contiguous()
        self.bias = weights["dwconv.conv.bias"]
        self.norm = weights["norm.weight"], weights["norm.bias"]
        self.pwconv1 = weights["pwconv1.weight"], weights["pwconv1.bias"]
        self.pwconv2 = weights["pwconv2.weight"], weights["pwconv2.bias"]
        self.gamma = weights["gamma"]
        self.num_past, self.stride = len(self.taps) - 1, 1
        self.history = layout.reserve(self.num_past, depthwise.shape[0])

    def __call__(self, x: Tensor, batch: Tensor) -> Tensor:
        y = _sum_channels(self.history.extend(x, batch), self.taps, self.bias)
        y = F.layer_norm(y, y.shape[-1:], *self.norm, eps=LAYER_NORM_EPS)
        y = linear(F.gelu(linear(y, *self.pwconv1)), *self.pwconv2)
        return torch.addcmul(x, y, self.gamma)


# A layer of the chain from frames to samples. `num_past` are the inputs before a frame on which its
# outputs depend, `stride` the outputs of each input. A call with x [num_steps, n, channels] returns
# [num_steps * stride, n, other channels], and advances `batch` [n, num_values], the states.
Layer = Conv | TransposedConv | ResidualUnit | ConvNeXt


class Codebooks:
    """Turns codes into latents: the first codebook and the sum of the others, both projected.

    The projections are not folded into the tables: that would double their size (67 MB instead of
    34 at released shapes) to save a ten-thousandth of a frame's arithmetic.
    """

    def __init__(
        self, weights: WeightReader, config: CodecDecoderConfig, tables: Tensor | None = None
    ):
        if tables is None:
            names = ["rvq_first.vq.layers.0"]
            names += [f"rvq_rest.vq.layers.{i}" for i in range(config.num_quantizers - 1)]
            books = [weights.at(f"{name}._codebook") for name in names]
            usages = [book["cluster_usage"].clamp(min=CLUSTER_USAGE_MIN) for book in books]
            sums = [book["embedding_sum"] for book in books]
            tables = torch.cat([s / usage[:, None] for s, usage in zip(sums, usages, strict=True)])
        self.tables = tables
        first_rows = range(0, len(tables), config.codebook_size)
        self.first_rows = torch.tensor(first_rows, device=weights.device)
        self.first_proj, self.rest_proj = (
            weights[f"{name}.output_proj.weight"].squeeze(2) for name in ("rvq_first", "rvq_rest")
        )

    def __call__(self, codes: Tensor) -> Tensor:
        """Look codes up: [num_frames, n, num_quantizers] int64 -> [num_frames, n, codebook_dim]."""
        entries = F.embedding(codes + self.first_rows, self.tables)
        first, rest = entries[:, :, 0], entries[:, :, 1:].sum(2)
        return linear(first, self.first_proj) + linear(rest, self.rest_proj)
