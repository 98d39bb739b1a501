"""Talker and code predictor for training: one static shape, every position at once.

The parameters are those of the official classes, under their names, in a dict. Utterances lie
packed in rows with a block-causal mask, so nothing is padded and `torch.compile` compiles once.

Source: QwenLM/Qwen3-TTS, modeling_qwen3_tts.py; the tests compare it with the plain decoder.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_megakernel.checkpoint.config import ModelConfig, StackConfig
from qwen_megakernel.checkpoint.tensor_shapes import TALKER_PREFIX, model_tensors

Weights = dict[str, Tensor]

INIT_STD = 0.02  # the official initializer_range
HIDDEN = -1e9  # added to the score of a key that a query must not see
IGNORED = -100  # a label that is not learned


def initial_weights(config: ModelConfig, seed: int) -> Weights:
    """Return fresh float32 weights of every tensor of the talker, names without "talker."."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in model_tensors(config).items():
        if name.endswith("norm.weight"):
            value = torch.ones(shape)
        elif name.endswith("bias"):
            value = torch.zeros(shape)
        else:
            value = torch.randn(shape, generator=generator) * INIT_STD
        weights[name.removeprefix(TALKER_PREFIX)] = value
    return weights


def losses(
    weights: Weights, config: ModelConfig, batch: dict[str, Tensor], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cross-entropies of one batch.

    Args:
        weights: float32; matrix products are done in `dtype`.
        batch: a batch of `batches.Packer`.
    Returns:
        Loss of code 0 (the end included), share of code 0 that is the best guess, and the mean
        loss of the other codes, over the frames that `batch["frames"]` names. Scalars, float32.
    """
    labels = batch["labels"].flatten()
    hidden = talker_hidden(weights, config, batch, dtype).flatten(0, 1)
    head = weights["codec_head.weight"][: _num_used_ids(config)]
    logits = F.linear(hidden.to(dtype), head.to(dtype)).float()
    first = F.cross_entropy(logits, labels, ignore_index=IGNORED)
    learned = labels != IGNORED
    accuracy = ((logits.argmax(-1) == labels) & learned).sum() / learned.sum()
    targets = batch["frame_codes"]
    states = predictor_hidden(weights, config, hidden[batch["frames"]], targets[:, :-1], dtype)
    residual = [
        F.cross_entropy(
            F.linear(
                states[:, group].to(dtype),
                weights[f"code_predictor.lm_head.{group - 1}.weight"].to(dtype),
            ).float(),
            targets[:, group],
        )
        for group in range(1, config.talker.num_code_groups)
    ]
    return first, accuracy.detach(), torch.stack(residual).mean()


def talker_hidden(
    weights: Weights, config: ModelConfig, batch: dict[str, Tensor], dtype: torch.dtype
) -> Tensor:
    """Return [num_rows, row_length, hidden_size] after the final norm, float32."""
    tables = _code_tables(weights, config)
    text = F.embedding(batch["text"], _text_table(weights))
    control = F.embedding(batch["control"].clamp(min=0), tables[0])
    frames = sum(F.embedding(batch["codes"][..., i], table) for i, table in enumerate(tables))
    x = text + control * (batch["control"] >= 0)[..., None] + frames * batch["is_frame"][..., None]
    owner = batch["owner"]
    visible = (owner[:, :, None] == owner[:, None, :]).tril()
    mask = torch.where(visible, 0.0, HIDDEN)[:, None]
    return _stack(weights, "model.", config.talker.stack, x, mask, dtype)


def predictor_hidden(
    weights: Weights, config: ModelConfig, hidden: Tensor, codes: Tensor, dtype: torch.dtype
) -> Tensor:
    """Return [n, 1 + num_codes, hidden_size] after the final norm.

    Args:
        hidden: [n, hidden_size] of the talker.
        codes: [n, num_codes], the codes drawn so far.
    """
    tables = _code_tables(weights, config)
    rows = [F.embedding(codes[:, i], tables[i]) for i in range(codes.shape[1])]
    x = torch.stack([hidden, *rows], dim=1)
    n = x.shape[1]
    mask = torch.full((n, n), HIDDEN, device=x.device).triu(1)
    return _stack(weights, "code_predictor.model.", config.predictor.stack, x, mask, dtype)


def _num_used_ids(config: ModelConfig) -> int:
    """Return how many rows of codec_head can be drawn: codes, and control ids up to the end."""
    return config.talker.codec_eos_id + 1


def _text_table(weights: Weights) -> Tensor:
    """Return text_projection(text_embedding) of the whole, small text vocabulary."""
    part = "text_projection.linear_fc"
    rows = weights["model.text_embedding.weight"]
    rows = F.silu(F.linear(rows, weights[f"{part}1.weight"], weights[f"{part}1.bias"]))
    return F.linear(rows, weights[f"{part}2.weight"], weights[f"{part}2.bias"])


def _code_tables(weights: Weights, config: ModelConfig) -> list[Tensor]:
    """Return the embedding of every code of a frame."""
    names = ["model.codec_embedding.weight"]
    names += [
        f"code_predictor.model.codec_embedding.{group}.weight"
        for group in range(config.talker.num_code_groups - 1)
    ]
    return [weights[name] for name in names]


def _stack(
    weights: Weights, prefix: str, stack: StackConfig, x: Tensor, mask: Tensor, dtype: torch.dtype
) -> Tensor:
    """Run every decoder layer and the final norm; the residual stream stays float32."""
    positions = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
    dims = torch.arange(0, stack.head_dim, 2, device=x.device, dtype=torch.float32)
    angles = torch.outer(positions, stack.rope_theta ** (-dims / stack.head_dim))
    angles = torch.cat([angles, angles], dim=-1)
    rotary = angles.cos().to(dtype), angles.sin().to(dtype)
    for layer in range(stack.num_layers):
        x = _layer(weights, f"{prefix}layers.{layer}.", stack, x, rotary, mask, dtype)
    return _rms_norm(x, weights[f"{prefix}norm.weight"], stack)


def _layer(
    weights: Weights,
    prefix: str,
    stack: StackConfig,
    x: Tensor,
    rotary: tuple[Tensor, Tensor],
    mask: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Run one pre-norm Qwen3 block over x [num_rows, row_length, hidden_size]."""

    def fused(*names: str) -> Tensor:
        return torch.cat([weights[f"{prefix}{name}.weight"] for name in names]).to(dtype)

    def heads(values: Tensor, norm: str | None = None) -> Tensor:
        values = values.unflatten(-1, (-1, stack.head_dim))
        if norm:
            values = _rms_norm(values, weights[f"{prefix}self_attn.{norm}.weight"], stack)
        return values.to(dtype).transpose(1, 2)

    y = _rms_norm(x, weights[f"{prefix}input_layernorm.weight"], stack).to(dtype)
    qkv = F.linear(y, fused("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"))
    q, k, v = qkv.split([stack.q_size, stack.kv_size, stack.kv_size], dim=-1)
    q, k, v = _rotate(heads(q, "q_norm"), rotary), _rotate(heads(k, "k_norm"), rotary), heads(v)
    sharing = stack.num_heads // stack.num_kv_heads
    k, v = k.repeat_interleave(sharing, dim=1), v.repeat_interleave(sharing, dim=1)
    scores = (q @ k.mT).float() * stack.head_dim**-0.5 + mask
    mixed = (torch.softmax(scores, dim=-1).to(dtype) @ v).transpose(1, 2).flatten(2)
    x = x + F.linear(mixed, fused("self_attn.o_proj")).float()
    y = _rms_norm(x, weights[f"{prefix}post_attention_layernorm.weight"], stack).to(dtype)
    gate, up = F.linear(y, fused("mlp.gate_proj", "mlp.up_proj")).chunk(2, dim=-1)
    return x + F.linear(F.silu(gate) * up, fused("mlp.down_proj")).float()


def _rms_norm(x: Tensor, weight: Tensor, stack: StackConfig) -> Tensor:
    return F.rms_norm(x.float(), weight.shape, weight, stack.rms_norm_eps)


def _rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Apply split-half rotary embedding to x [..., row_length, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * rotary[0] + torch.cat([-second, first], dim=-1) * rotary[1]
