"""Talker, code predictor and embeddings as modules that become Core ML models.

Tensors are [1, channels, 1, positions] and every product is a 1x1 convolution, the form for which
Apple's Neural Engine is made ("Deploying Transformers on the Apple Neural Engine", Apple, 2022).
A pass has one position, which is data, not shape: a mask puts keys and values into their place in a
cache of fixed size, and selects the rotation angles from a table. The caches are states of the
model, which Core ML stores in float16 for either precision of the computation.

The network is that of `layers.DecoderStack` for speech, where the three axes of M-RoPE are equal,
which is plain RoPE.
"""

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qwen_megakernel.checkpoint.config import StackConfig
from qwen_megakernel.checkpoint.loading import Checkpoint
from qwen_megakernel.decoders.layers import rotary

HIDDEN_SCORE = -3e4  # score of positions that do not exist yet; float16 ends at 65504
conv1x1 = F.conv2d  # of weights [out_channels, in_channels, 1, 1]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the RMSNorm over axis 1.

    x is first divided by its largest magnitude, because in float16 the square of a number above 255
    is infinite.
    """
    largest = x.abs().amax(1, keepdim=True).clamp(min=1e-4)
    y = x / largest
    small = x.new_tensor([eps**0.5]) / largest  # its square is eps / largest^2
    return y * torch.rsqrt(y.square().mean(1, keepdim=True) + small.square()) * weight


class Module(nn.Module):
    """A module whose tensors become constants of a Core ML model, which has no bfloat16."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def keep(self, name: str, value: Tensor) -> None:
        value = value.float() if value.is_floating_point() else value
        self.register_buffer(name.replace(".", "_"), value, persistent=False)


class Stack(Module):
    """Decoder layers and the final norm, for one position of one stream at a time.

    Args:
        config: the stack's dimensions; as in Qwen3, it has normalized heads and no bias.
        tensors: tensors whose names begin with `prefix`.
    """

    def __init__(
        self, config: StackConfig, tensors: dict[str, Tensor], prefix: str, num_positions: int
    ):
        super().__init__()
        assert config.qk_norm and not config.qkv_bias
        self.config = config
        for layer in range(config.num_layers):
            at = f"{prefix}layers.{layer}."
            matrices = [("self_attn", name) for name in "qkvo"]
            matrices += [("mlp", name) for name in ("gate", "up", "down")]
            for block, name in matrices:
                weight = tensors[f"{at}{block}.{name}_proj.weight"]
                self.keep(f"{name}_proj_{layer}", weight[:, :, None, None])
            for name in ("q", "k"):
                weight = tensors[f"{at}self_attn.{name}_norm.weight"]
                self.keep(f"{name}_norm_{layer}", weight[:, None])
            for name in ("input", "post_attention"):
                weight = tensors[f"{at}{name}_layernorm.weight"]
                self.keep(f"{name}_norm_{layer}", weight[:, None, None])
        self.keep("norm", tensors[f"{prefix}norm.weight"][:, None, None])
        places = torch.arange(num_positions)
        cos, sin = rotary(config, places.expand(3, -1), torch.float32)
        self.keep("cos", cos.T)  # [head_dim, num_positions]
        self.keep("sin", sin.T)
        self.keep("places", places.to(torch.int32))
        for name in ("keys", "values"):
            shape = (1, config.num_layers * config.kv_size, 1, num_positions)
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float16))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """Append one position to the caches.

        Args:
            x: [1, hidden_size, 1, 1] input embedding.
            position: [1] int32; the positions below it are filled.
        Returns:
            [1, hidden_size, 1, 1] after the final norm.
        """
        config, eps = self.config, self.config.rms_norm_eps
        is_here = self.places == position
        here = is_here.to(x.dtype)
        scores_there = torch.where(self.places <= position, 0.0, HIDDEN_SCORE)
        cos, sin = ((each * here).sum(-1, keepdim=True) for each in (self.cos, self.sin))

        def heads(layer: int, name: str, y: Tensor) -> Tensor:
            """Return heads [heads, head_dim, 1]; those of q and k are normalized and rotated."""
            rows = conv1x1(y, getattr(self, f"{name}_proj_{layer}")).view(-1, config.head_dim, 1)
            if name == "v":
                return rows
            rows = rms_norm(rows, getattr(self, f"{name}_norm_{layer}"), eps)
            half = config.head_dim // 2
            turned = torch.cat((-rows[:, half:], rows[:, :half]), dim=1)
            return rows * cos + turned * sin

        for layer in range(config.num_layers):
            y = rms_norm(x, getattr(self, f"input_norm_{layer}"), eps)
            first = layer * config.kv_size

            def filled(name: str, row: Tensor, first: int = first) -> Tensor:
                """Put `row` into this layer's cache; return it, [num_kv_heads, head_dim, T]."""
                cache = getattr(self, name)
                part = slice(first, first + config.kv_size)
                row = row.reshape(1, config.kv_size, 1, 1)
                rows = torch.where(is_here, row, cache[:, part].to(row.dtype))
                cache[:, part] = rows.half()
                return rows.view(config.num_kv_heads, config.head_dim, -1)

            keys = filled("keys", heads(layer, "k", y))
            values = filled("values", heads(layer, "v", y))
            q = heads(layer, "q", y).view(config.num_kv_heads, -1, config.head_dim)
            scores = (q * config.head_dim**-0.5) @ keys + scores_there
            mixed = torch.softmax(scores, dim=-1) @ values.transpose(1, 2)
            x = x + conv1x1(mixed.reshape(1, config.q_size, 1, 1), getattr(self, f"o_proj_{layer}"))
            y = rms_norm(x, getattr(self, f"post_attention_norm_{layer}"), eps)
            gate, up = (
                conv1x1(y, getattr(self, f"{which}_proj_{layer}")) for which in ("gate", "up")
            )
            x = x + conv1x1(F.silu(gate) * up, getattr(self, f"down_proj_{layer}"))
        return rms_norm(x, self.norm, eps)


class CodeDecoder(Module):
    """The talker: it turns an embedding into the logits of code 0 and the hidden state."""

    def __init__(self, checkpoint: Checkpoint, num_positions: int):
        super().__init__()
        self.stack = Stack(
            checkpoint.config.talker.stack, checkpoint.talker, "model.", num_positions
        )
        self.keep("head", checkpoint.talker["codec_head.weight"][:, :, None, None])

    def forward(self, x: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Return one position's logits [1, vocab_size] and hidden state [1, hidden_size, 1, 1]."""
        hidden = self.stack(x, position)
        return conv1x1(hidden, self.head).flatten(1), hidden


class MultiCodeDecoder(Module):
    """The code predictor, after the projection and before all heads."""

    def __init__(self, checkpoint: Checkpoint):
        super().__init__()
        config, tensors = checkpoint.config, checkpoint.talker
        self.num_heads = config.talker.num_code_groups - 1
        self.stack = Stack(
            config.predictor.stack, tensors, "code_predictor.model.", config.talker.num_code_groups
        )
        heads = [tensors[f"code_predictor.lm_head.{i}.weight"] for i in range(self.num_heads)]
        self.keep("heads", torch.cat(heads)[:, :, None, None])
        self.has_projection = config.has_projection
        if self.has_projection:
            name = "code_predictor.small_to_mtp_projection."
            weight, bias = (tensors[name + part] for part in ("weight", "bias"))
            self.keep("projection", weight[:, :, None, None])
            self.keep("projection_bias", bias)

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        """Run one position.

        Args:
            x: [1, talker hidden_size, 1, 1]: at position 0 the talker's hidden state, at position i
                the embedding of code i - 1.
            position: [1] int32.
        Returns:
            Logits [num_code_groups - 1, vocab_size]; at position i > 0, row i - 1 is for code i.
        """
        if self.has_projection:
            x = conv1x1(x, self.projection, self.projection_bias)
        return conv1x1(self.stack(x, position), self.heads).view(self.num_heads, -1)


class TextProjector(Module):
    """The text embedding T(text id): the text table and its projection."""

    def __init__(self, checkpoint: Checkpoint):
        super().__init__()
        tensors = checkpoint.talker
        self.keep("table", tensors["model.text_embedding.weight"])
        for name in ("fc1", "fc2"):
            weight, bias = (
                tensors[f"text_projection.linear_{name}.{p}"] for p in ("weight", "bias")
            )
            self.keep(name, weight[:, :, None, None])
            self.keep(f"{name}_bias", bias)

    def forward(self, token: Tensor) -> Tensor:
        """Return the embedding of a text id: [1] int32 -> [1, hidden_size, 1, 1]."""
        row = F.embedding(token, self.table)[:, :, None, None]
        return conv1x1(F.silu(conv1x1(row, self.fc1, self.fc1_bias)), self.fc2, self.fc2_bias)


class CodeEmbedder(Module):
    """The rows of one table, or of several that are concatenated."""

    def __init__(self, tables: list[Tensor]):
        super().__init__()
        self.keep("table", torch.cat(tables))

    def forward(self, token: Tensor) -> Tensor:
        """Return a row: [1] int32 -> [1, hidden_size, 1, 1]."""
        return F.embedding(token, self.table)[:, :, None, None]
