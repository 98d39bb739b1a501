"""The vocoder's transformer: attention over a window of frames, exact in streams of any length.

Source: QwenLM/Qwen3-TTS, modeling_qwen3_tts_tokenizer_v2.py (qwen-tts 0.1.1).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_megakernel.checkpoint.codec_config import CodecDecoderConfig
from qwen_megakernel.checkpoint.weight_reader import WeightReader
from qwen_megakernel.vocoder.layers import Layout, linear, stacked


class Transformer:
    """The pre-transformer at the frame rate, with sliding-window attention.

    The state stores keys before their rotation. Rotary embeddings depend on differences of
    positions only, so every pass numbers its keys from 0, the oldest in the window: angles are as
    exact after a day of speech as in its first second, and the state needs no position.
    """

    def __init__(
        self, weights: WeightReader, config: CodecDecoderConfig, layout: Layout, max_frames: int
    ):
        self.num_past = config.sliding_window - 1
        self.input_proj = weights["input_proj.weight"], weights["input_proj.bias"]
        self.output_proj = weights["output_proj.weight"], weights["output_proj.bias"]
        self.norm, self.eps = weights["norm.weight"], config.rms_norm_eps
        self.layers = [
            _TransformerLayer(weights.at(f"layers.{i}"), config, layout)
            for i in range(config.num_layers)
        ]
        positions = torch.arange(self.num_past + max_frames, device=weights.device)
        dims = torch.arange(0, config.head_dim, 2, device=weights.device, dtype=torch.float64)
        angles = torch.outer(positions, config.rope_theta ** (-dims / config.head_dim))
        self.cos, self.signed_sin = (each.to(weights.dtype) for each in rotary_tables(angles))
        age = positions[self.num_past :, None] - positions  # distance of each query from each key
        self.in_window = (age >= 0) & (age <= self.num_past)
        self.positions = positions

    def __call__(self, x: Tensor, batch: Tensor, num_keys: Tensor) -> Tensor:
        """Run the transformer: [num_frames, n, latent_dim] -> [num_frames, n, latent_dim].

        Args:
            batch: [n, num_values] states, which are advanced.
            num_keys: [1, n, 1], a part of `batch`: the number of past frames that were decoded, up
                to the window. Attention ignores the rows before them.
        """
        num_frames = len(x)
        num_positions = self.num_past + num_frames
        is_valid = self.positions[:num_positions] >= self.num_past - num_keys.view(-1, 1, 1, 1)
        is_visible = self.in_window[:num_frames, :num_positions] & is_valid
        mask = x.new_zeros(is_visible.shape).masked_fill_(~is_visible, -math.inf)
        rotary = self.cos[:num_positions], self.signed_sin[:num_positions]
        x = linear(x, *self.input_proj)
        for layer in self.layers:
            x = layer(x, batch, rotary, mask)
        num_keys.add_(num_frames).clamp_(max=self.num_past)
        x = F.rms_norm(x, x.shape[-1:], self.norm, self.eps)
        return linear(x, *self.output_proj)


class _TransformerLayer:
    """Attention and SwiGLU, each after an RMSNorm and scaled before it is added to the residual."""

    def __init__(self, weights: WeightReader, config: CodecDecoderConfig, layout: Layout):
        attention, mlp = weights.at("self_attn"), weights.at("mlp")
        self.input_norm = weights["input_layernorm.weight"]
        self.qkv_proj = stacked([attention[f"{name}_proj.weight"] for name in "qkv"])
        self.o_proj = attention["o_proj.weight"]
        self.attention_scale = weights["self_attn_layer_scale.scale"]
        self.mlp_norm = weights["post_attention_layernorm.weight"]
        self.gate_up_proj = stacked([mlp["gate_proj.weight"], mlp["up_proj.weight"]])
        self.down_proj = mlp["down_proj.weight"]
        self.mlp_scale = weights["mlp_layer_scale.scale"]
        self.eps = config.rms_norm_eps
        self.head_dim = config.head_dim
        self.q_size = config.num_heads * config.head_dim
        self.kv_size = config.num_kv_heads * config.head_dim
        self.history = layout.reserve(config.sliding_window - 1, 2 * self.kv_size)

    def __call__(
        self, x: Tensor, batch: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor
    ) -> Tensor:
        """Run the layer: [num_frames, n, hidden_size] -> [num_frames, n, hidden_size].

        Args:
            batch: [n, num_values] states, which are advanced.
            rotary: from `rotary_tables`, for all positions; the frames of x are the last of them.
            mask: [n, 1, num_frames, num_positions], added to the scores.
        """
        normed = F.rms_norm(x, x.shape[-1:], self.input_norm, self.eps)
        qkv = linear(normed, self.qkv_proj)
        q, kv = qkv[..., : self.q_size], qkv[..., self.q_size :]
        k, v = self.history.extend(kv, batch).split(self.kv_size, dim=-1)
        cos, signed_sin = rotary
        q = rotate(self._heads(q), cos[-len(x) :], signed_sin[-len(x) :])
        k = rotate(self._heads(k), cos, signed_sin)
        heads = F.scaled_dot_product_attention(
            q, k, self._heads(v), attn_mask=mask, enable_gqa=self.q_size != self.kv_size
        )
        attended = linear(heads.permute(2, 0, 1, 3).flatten(2), self.o_proj)
        x = torch.addcmul(x, attended, self.attention_scale)
        normed = F.rms_norm(x, x.shape[-1:], self.mlp_norm, self.eps)
        gate, up = linear(normed, self.gate_up_proj).chunk(2, dim=-1)
        return torch.addcmul(x, linear(F.silu(gate) * up, self.down_proj), self.mlp_scale)

    def _heads(self, x: Tensor) -> Tensor:
        """Split heads: [num_positions, n, heads * head_dim] -> [n, heads, positions, head_dim]."""
        return x.unflatten(-1, (-1, self.head_dim)).permute(1, 2, 0, 3)


def rotary_tables(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cos and sin that `rotate` takes, for angles [num_positions, head_dim / 2].

    Returns:
        Two tensors [num_positions, head_dim]; the first half of the sines is negative.
    """
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], dim=1), torch.cat([-sin, sin], dim=1)


def rotate(x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotate x [..., num_positions, head_dim] in the split-half form."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), signed_sin)
