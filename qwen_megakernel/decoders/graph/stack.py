"""A stack of decoder layers whose passes have static shapes, so that a CUDA graph can record them.

It is the network of `layers.DecoderStack` in fewer kernels: slots are rows of one batch, positions
are tensors, keys and values lie in one fixed cache, projections that read the same input are one
matrix, and norms and attention are PyTorch's fused ones. In float32 it differs from `plain` by
rounding only; in bf16 it rounds less often.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_megakernel.checkpoint.config import StackConfig
from qwen_megakernel.checkpoint.weight_reader import WeightReader
from qwen_megakernel.decoders.layers import rotary
from qwen_megakernel.decoders.quantization import Matrix, cat, linear

# attend(layer, q [n, T, num_heads, head_dim], kv [n, T, 2, num_kv_heads, head_dim]) -> like q
Attend = Callable[[int, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class _Layer:
    """The weights of one layer."""

    input_norm: Tensor
    qkv: Matrix  # [q_size + 2 * kv_size, hidden_size]
    qk_norm: Tensor  # [num_heads + num_kv_heads, head_dim], one row for each head
    o: Matrix
    mlp_norm: Tensor
    gate_up: Matrix  # [2 * intermediate_size, hidden_size]
    down: Matrix


class GraphStack:
    """Layers, final norm, rotary tables and the cache of `num_slots` streams.

    The cache has one position more than streams may have: inactive slots write there in a step, and
    no pass reads it.
    """

    def __init__(
        self, config: StackConfig, read: WeightReader, *, num_slots: int, num_positions: int
    ):
        self.config, self.unused_position = config, num_positions

        def layer(index: int) -> _Layer:
            at = read.at(f"layers.{index}")
            heads = [
                at[f"self_attn.{which}_norm.weight"].expand(count, -1)
                for which, count in (("q", config.num_heads), ("k", config.num_kv_heads))
            ]
            return _Layer(
                at["input_layernorm.weight"],
                cat([at.matrix(f"self_attn.{which}_proj.weight") for which in "qkv"]),
                torch.cat(heads),
                at.matrix("self_attn.o_proj.weight"),
                at["post_attention_layernorm.weight"],
                cat([at.matrix(f"mlp.{which}_proj.weight") for which in ("gate", "up")]),
                at.matrix("mlp.down_proj.weight"),
            )

        self.layers = [layer(index) for index in range(config.num_layers)]
        self.norm = read["norm.weight"]
        device, dtype = read.device, read.dtype
        shape = (num_slots, num_positions + 1, 2, config.num_kv_heads, config.head_dim)
        self.cache = torch.zeros((config.num_layers, *shape), device=device, dtype=dtype)
        self._slots = torch.arange(num_slots, device=device)
        self._places = torch.arange(num_positions + 1, device=device)
        self._cos, sin = rotary(config, self._places.expand(3, -1), dtype)
        half = config.head_dim // 2
        self._signed_sin = torch.cat((-sin[:, :half], sin[:, half:]), dim=1)

    def step(self, x: Tensor, position: Tensor, place: Tensor, reach: int) -> Tensor:
        """Run one position of every slot.

        Args:
            x: [num_slots, hidden_size] input embeddings.
            position: [num_slots] int64, the position of x; earlier ones are filled.
            place: [num_slots] int64: `position`, or `unused_position` to leave the slot as it is.
            reach: attention reads positions below this; `position` is below it, too.
        Returns:
            [num_slots, hidden_size] after the final norm.
        """
        is_visible = self._places[:reach] <= position[:, None]
        mask = is_visible[:, None, None]  # [num_slots, 1, 1, reach]

        def attend(layer: int, q: Tensor, kv: Tensor) -> Tensor:
            cache = self.cache[layer]
            cache.index_put_((self._slots, place), kv[:, 0])
            return self._attend_past(q, cache[:, :reach], mask)

        tables = self._cos[position][:, None, None], self._signed_sin[position][:, None, None]
        return self._forward(x[:, None], tables, attend)[:, 0]

    def append(self, x: Tensor, start: int) -> Tensor:
        """Run positions start .. start + T - 1 of every slot.

        Args:
            x: [num_slots, T, hidden_size] input embeddings.
        Returns:
            [num_slots, T, hidden_size] after the final norm.
        """
        end = start + x.shape[1]
        mask = None
        if x.shape[1] > 1:  # query heads of one kv head lie side by side within a position
            mask = self._places[:end] <= self._places[start:end, None]
            mask = mask.repeat_interleave(self.config.num_heads // self.config.num_kv_heads, dim=0)

        def attend(layer: int, q: Tensor, kv: Tensor) -> Tensor:
            cache = self.cache[layer]
            cache[:, start:end] = kv
            return self._attend_past(q, cache[:, :end], mask)

        tables = self._cos[start:end, None], self._signed_sin[start:end, None]
        return self._forward(x, tables, attend)

    def prompt(self, x: Tensor, slot: Tensor) -> Tensor:
        """Run the first positions of one slot.

        Args:
            x: [T, hidden_size] input embeddings; rows past the prompt's end change only positions
                of the cache that no pass reads.
            slot: [1] int64.
        Returns:
            [T, hidden_size] after the final norm.
        """
        count = len(x)

        def attend(layer: int, q: Tensor, kv: Tensor) -> Tensor:
            self.cache[layer, :, :count].index_copy_(0, slot, kv)
            k, v = (each.transpose(1, 2) for each in kv.unbind(2))
            grouped = self.config.num_heads != self.config.num_kv_heads
            return F.scaled_dot_product_attention(
                q.transpose(1, 2), k, v, is_causal=True, enable_gqa=grouped
            ).transpose(1, 2)

        tables = self._cos[:count, None], self._signed_sin[:count, None]
        return self._forward(x[None], tables, attend)[0]

    def _attend_past(self, q: Tensor, cache: Tensor, mask: Tensor | None) -> Tensor:
        """Attend with q [n, T, num_heads, head_dim].

        The query heads of one kv head, times T, are the rows of one product.

        Args:
            cache: [n, positions, 2, num_kv_heads, head_dim] keys and values.
            mask: True where a row attends to a position; broadcast over [n, num_kv_heads, rows,
                positions].
        Returns:
            [n, T, num_heads, head_dim].
        """
        length = q.shape[1]
        q = q.unflatten(2, (self.config.num_kv_heads, -1)).permute(0, 2, 1, 3, 4)
        k, v = (each.transpose(1, 2) for each in cache.unbind(2))
        mixed = F.scaled_dot_product_attention(q.flatten(2, 3), k, v, attn_mask=mask)
        return mixed.unflatten(2, (length, -1)).permute(0, 2, 1, 3, 4).flatten(2, 3)

    def _forward(self, x: Tensor, tables: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Run the layers and the final norm on x [n, T, hidden_size]; the tables, cos and signed
        sin, are broadcast over [n, T, heads, head_dim]."""
        config, (cos, signed_sin) = self.config, tables
        num_rotated, eps = config.num_heads + config.num_kv_heads, config.rms_norm_eps
        for index, w in enumerate(self.layers):
            y = F.rms_norm(x, x.shape[-1:], w.input_norm, eps)
            heads = linear(y, w.qkv).unflatten(-1, (-1, config.head_dim))
            qk = F.rms_norm(heads[:, :, :num_rotated], (config.head_dim,), None, eps) * w.qk_norm
            qk = torch.addcmul(qk * cos, qk.roll(config.head_dim // 2, -1), signed_sin)
            q, k = qk[:, :, : config.num_heads], qk[:, :, config.num_heads :]
            kv = torch.stack((k, heads[:, :, num_rotated:]), dim=2)
            x = x + linear(attend(index, q, kv).flatten(2), w.o)
            y = F.rms_norm(x, x.shape[-1:], w.mlp_norm, eps)
            gate, up = linear(y, w.gate_up).chunk(2, dim=-1)
            x = x + linear(F.silu(gate) * up, w.down)
        return F.rms_norm(x, x.shape[-1:], self.norm, eps)
