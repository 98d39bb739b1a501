"""The layers of Qwen3 in plain PyTorch: norm, rotary positions, attention, and a stack of them.

Source: QwenLM/Qwen3-TTS, modeling_qwen3_tts.py (qwen-tts 0.1.1 on transformers 4.57.3). In bf16 the
rounding follows the official order: RMSNorm rounds before its weight, cos and sin are rounded,
softmax stays in float32, logits are rounded once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_megakernel.checkpoint.config import StackConfig
from qwen_megakernel.checkpoint.weight_reader import WeightReader
from qwen_megakernel.decoders import quantization
from qwen_megakernel.decoders.quantization import Matrix

# `linear` takes matrix-vector products for up to this many rows; the predictor's first pass has 2.
MAX_VECTOR_ROWS = 2

Tap = Callable[[str, Tensor], None]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the RMSNorm over the last axis: float32 inside, rounded to x's dtype before weight."""
    x32 = x.float()
    return weight * (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotary(config: StackConfig, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the cos and sin that `rotate` takes for M-RoPE positions (time, height, width).

    Pair i turns by the height position if i % 3 == 1, by the width position if i % 3 == 2, each
    only for the first `mrope_section` pairs of its axis, and else by the time position. For speech
    the three are equal, which is plain RoPE.

    Args:
        positions: [3, num_positions] integers.
    Returns:
        Two tensors [num_positions, head_dim] of `dtype`.
    """
    angles = _angles(config, positions).repeat(1, 2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rope_tables(config: StackConfig, num_positions: int) -> tuple[Tensor, Tensor]:
    """Return cos and sin [num_positions, head_dim / 2] float32 of the first positions, on a CPU."""
    angles = _angles(config, torch.arange(num_positions).expand(3, -1))
    return angles.cos(), angles.sin()


def _angles(config: StackConfig, positions: Tensor) -> Tensor:
    """Return the angles of all pairs, [num_positions, head_dim / 2] float32; see `rotary`."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    inv_freq = (1.0 / config.rope_theta**exponents).to(positions.device)
    axis = torch.zeros(config.head_dim // 2, dtype=torch.int64)
    for which in (1, 2):
        if config.mrope_section:
            axis[which : 3 * config.mrope_section[which] : 3] = which
    return positions.to(torch.float32).T[:, axis.to(positions.device)] * inv_freq


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [num_positions, num_heads, head_dim] in the split-half (NeoX) form."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos[:, None] + turned * sin[:, None]


def linear(x: Tensor, weight: Matrix) -> Tensor:
    """Return x [n, in_features] @ weight^T; a few rows go one by one through torch.mv.

    Reading weights takes most of the time of decoding. On a CPU torch's matrix-vector product reads
    them at the speed of memory; its matrix product of one row does not. A second row finds the
    matrix in the cache.
    """
    if isinstance(weight, Tensor) and len(x) <= MAX_VECTOR_ROWS:
        return torch.stack([torch.mv(weight, row) for row in x])
    return quantization.linear(x, weight)


class Stack(Protocol):
    """The methods of the talker's or the code predictor's layers that `PlainDecoder` calls."""

    def new_cache(self, num_positions: int) -> Any:
        """Return an empty KV cache of one stream."""

    def forward(self, x: Tensor, cache: Any, start: int) -> Tensor:
        """Append positions start .. start + n - 1 to `cache`; return hidden states after the norm.

        Args:
            x: [n, hidden_size] input embeddings.
            cache: from `new_cache`; positions below `start` are filled.
        Returns:
            [n or 1, hidden_size]; the last row belongs to the last position.
        """


@dataclass(frozen=True, slots=True)
class _Layer:
    """The weights of one layer; a matrix is [out_features, in_features]."""

    q_proj: Matrix
    k_proj: Matrix
    v_proj: Matrix
    o_proj: Matrix
    q_norm: Tensor  # [head_dim]
    k_norm: Tensor
    gate_proj: Matrix
    up_proj: Matrix
    down_proj: Matrix
    input_layernorm: Tensor  # [hidden_size]
    post_attention_layernorm: Tensor


class DecoderStack:
    """A stack of Qwen3 decoder layers with its final norm: the talker's or the code predictor's.

    Args:
        read: reads its tensors onto the device and in the dtype of caches and results.
        name: "talker" or "code_predictor", for `tap`.
    """

    def __init__(self, config: StackConfig, read: WeightReader, name: str):
        self.config, self.name = config, name
        self.tap: Tap | None = None  # called with (name, hidden) after each layer and the norm

        def layer(index: int) -> _Layer:
            at = read.at(f"layers.{index}")
            return _Layer(
                q_proj=at.matrix("self_attn.q_proj.weight"),
                k_proj=at.matrix("self_attn.k_proj.weight"),
                v_proj=at.matrix("self_attn.v_proj.weight"),
                o_proj=at.matrix("self_attn.o_proj.weight"),
                q_norm=at["self_attn.q_norm.weight"],
                k_norm=at["self_attn.k_norm.weight"],
                gate_proj=at.matrix("mlp.gate_proj.weight"),
                up_proj=at.matrix("mlp.up_proj.weight"),
                down_proj=at.matrix("mlp.down_proj.weight"),
                input_layernorm=at["input_layernorm.weight"],
                post_attention_layernorm=at["post_attention_layernorm.weight"],
            )

        self.layers = [layer(index) for index in range(config.num_layers)]
        self.norm = read["norm.weight"]

    def new_cache(self, num_positions: int) -> Tensor:
        """Return zeros [num_layers, 2 (keys, values), num_kv_heads, num_positions, head_dim]."""
        c = self.config
        shape = (c.num_layers, 2, c.num_kv_heads, num_positions, c.head_dim)
        return torch.zeros(shape, dtype=self.norm.dtype, device=self.norm.device)

    def forward(self, x: Tensor, cache: Tensor, start: int) -> Tensor:
        n, eps = len(x), self.config.rms_norm_eps
        positions = torch.arange(start, start + n, device=x.device).expand(3, n)
        cos, sin = rotary(self.config, positions, x.dtype)
        mask = None
        if n > 1:
            reach = torch.arange(start + n, device=x.device)
            mask = reach[None, :] > positions[0][:, None]  # True: hidden from this position
        for index, w in enumerate(self.layers):
            y = rms_norm(x, w.input_layernorm, eps)
            x = x + self._attend(y, w, cache[index], start, cos, sin, mask)
            y = rms_norm(x, w.post_attention_layernorm, eps)
            gate, up = linear(y, w.gate_proj), linear(y, w.up_proj)
            x = x + linear(F.silu(gate) * up, w.down_proj)
            if self.tap:
                self.tap(f"{self.name}.layers.{index}", x)
        x = rms_norm(x, self.norm, eps)
        if self.tap:
            self.tap(f"{self.name}.hidden", x)
        return x

    def _attend(
        self,
        y: Tensor,
        w: _Layer,
        cache: Tensor,
        start: int,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | None,
    ) -> Tensor:
        c, n = self.config, len(y)
        q = linear(y, w.q_proj).view(n, c.num_heads, c.head_dim)
        k = linear(y, w.k_proj).view(n, c.num_kv_heads, c.head_dim)
        v = linear(y, w.v_proj).view(n, c.num_kv_heads, c.head_dim)
        q = rotate(rms_norm(q, w.q_norm, c.rms_norm_eps), cos, sin)
        k = rotate(rms_norm(k, w.k_norm, c.rms_norm_eps), cos, sin)
        cache[0, :, start : start + n] = k.transpose(0, 1)
        cache[1, :, start : start + n] = v.transpose(0, 1)
        keys, values = cache[:, :, : start + n].float()
        # The query heads of one kv head, times positions, are the rows of one product.
        q = q.view(n, c.num_kv_heads, -1, c.head_dim).permute(1, 2, 0, 3).float()
        scores = q.flatten(1, 2) @ keys.transpose(1, 2) * c.head_dim**-0.5
        scores = scores.view(c.num_kv_heads, -1, n, start + n)
        if mask is not None:
            scores = scores.masked_fill(mask, -torch.inf)
        mixed = torch.softmax(scores, dim=-1).flatten(1, 2) @ values
        mixed = mixed.view(c.num_kv_heads, -1, n, c.head_dim).permute(2, 0, 1, 3)
        return linear(mixed.reshape(n, c.q_size).to(y.dtype), w.o_proj)
