"""The whole decoder in plain PyTorch: the specification that the tests compare the others with.

It is also the backend `torch`. It decodes slots one after another, so other streams never change a
bit of a stream.

Source: QwenLM/Qwen3-TTS, modeling_qwen3_tts.py (qwen-tts 0.1.1 on transformers 4.57.3). In bf16 the
rounding follows the official order: RMSNorm rounds before its weight, cos and sin are rounded,
softmax stays in float32, logits are rounded once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from qwen_megakernel.checkpoint.config import StackConfig
from qwen_megakernel.decoders import sampling
from qwen_megakernel.decoders.embeddings import Embeddings
from qwen_megakernel.decoders.frame_decoder import FrameDecoder
from qwen_megakernel.decoders.int8 import Int8Matrix, Matrix
from qwen_megakernel.decoders.onednn import without_onednn
from qwen_megakernel.decoders.slots import DecoderSizes, SlotState
from qwen_megakernel.decoders.weights import DecoderModel, Weights, tensor
from qwen_megakernel.records import Sampling, StepResult

# `linear` takes matrix-vector products for up to this many rows; the predictor's first pass has 2.
MAX_VECTOR_ROWS = 2

Tap = Callable[[str, Tensor], None]
Taps = dict[str, Tensor]  # raw logits, as `FrameDecoder.step` fills them


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
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    inv_freq = (1.0 / config.rope_theta**exponents).to(positions.device)
    axis = torch.zeros(config.head_dim // 2, dtype=torch.int64)
    for which in (1, 2):
        if config.mrope_section:
            axis[which : 3 * config.mrope_section[which] : 3] = which
    angles = positions.to(torch.float32)[axis.to(positions.device)].T * inv_freq
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rope_tables(config: StackConfig, num_positions: int) -> tuple[Tensor, Tensor]:
    """Return cos and sin [num_positions, head_dim / 2] float32 of the first positions, on a CPU."""
    cos, sin = rotary(config, torch.arange(num_positions).expand(3, -1), torch.float32)
    half = config.head_dim // 2
    return cos[:, :half].contiguous(), sin[:, :half].contiguous()


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
    if isinstance(weight, Int8Matrix):
        return weight.linear(x)
    if len(x) <= MAX_VECTOR_ROWS:
        return torch.stack([torch.mv(weight, row) for row in x])
    return F.linear(x, weight)


class Stack(Protocol):
    """What `PlainDecoder` calls of the talker's or the code predictor's layers."""

    def new_cache(self, num_positions: int) -> Any:
        """Return an empty KV cache of one stream."""

    def forward(self, x: Tensor, cache: Any, start: int) -> Tensor:
        """Append positions start .. start + n - 1 to `cache`; return hidden states after the norm.

        Args:
            x: [n, hidden_size] input embeddings.
            cache: from `new_cache`; positions below `start` are filled.
        Returns:
            [n or 1, hidden_size], of which the last row is that of the last position.
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
        config: the stack's dimensions.
        weights: tensors whose names begin with `prefix`.
        prefix: "model." or "code_predictor.model.".
        device, dtype: device and dtype of weights, caches and results.
    """

    def __init__(
        self,
        config: StackConfig,
        weights: Weights,
        prefix: str,
        device: torch.device,
        dtype: torch.dtype,
    ):
        self.config, self.name = config, prefix.split(".")[0]
        self.tap: Tap | None = None  # called with (name, hidden) after each layer and the norm

        def vector(name: str) -> Tensor:
            return tensor(weights, f"{prefix}{name}.weight").to(device=device, dtype=dtype)

        def matrix(name: str) -> Matrix:
            return weights[f"{prefix}{name}.weight"].to(device=device, dtype=dtype)

        def layer(index: int) -> _Layer:
            at = f"layers.{index}."
            return _Layer(
                q_proj=matrix(f"{at}self_attn.q_proj"),
                k_proj=matrix(f"{at}self_attn.k_proj"),
                v_proj=matrix(f"{at}self_attn.v_proj"),
                o_proj=matrix(f"{at}self_attn.o_proj"),
                q_norm=vector(f"{at}self_attn.q_norm"),
                k_norm=vector(f"{at}self_attn.k_norm"),
                gate_proj=matrix(f"{at}mlp.gate_proj"),
                up_proj=matrix(f"{at}mlp.up_proj"),
                down_proj=matrix(f"{at}mlp.down_proj"),
                input_layernorm=vector(f"{at}input_layernorm"),
                post_attention_layernorm=vector(f"{at}post_attention_layernorm"),
            )

        self.layers = [layer(index) for index in range(config.num_layers)]
        self.norm = vector("norm")

    def new_cache(self, num_positions: int) -> Tensor:
        """Return zeros [num_layers, 2 (keys, values), num_kv_heads, num_positions, head_dim]."""
        c = self.config
        shape = (c.num_layers, 2, c.num_kv_heads, num_positions, c.head_dim)
        return torch.zeros(shape, dtype=self.norm.dtype, device=self.norm.device)

    def forward(self, x: Tensor, cache: Tensor, start: int) -> Tensor:
        """Append positions start .. start + n - 1 to `cache`; return hidden states after the norm.

        Args:
            x: [n, hidden_size] input embeddings.
            cache: from `new_cache`; positions below `start` are filled.
        Returns:
            [n, hidden_size] in the stack's dtype.
        """
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


def _no_values() -> Tensor:
    return torch.empty(0)


@dataclass(slots=True, kw_only=True)
class PlainState(SlotState):
    """The counts of a stream, with its tensors."""

    seen: Tensor  # [vocab_size] bool: code-0 tokens drawn in this part
    # [hidden_size], after the final norm, of the last position; empty before the prompt has run.
    hidden: Tensor = field(default_factory=_no_values)
    pad_embed: Tensor = field(default_factory=_no_values)  # [hidden_size], empty as long
    codes: Tensor = field(default_factory=_no_values)  # [num_code_groups] of the previous frame
    text: list[Tensor] = field(default_factory=list)  # rows [hidden_size]


class PlainDecoder(FrameDecoder):
    """Talker and code predictor, slot after slot.

    Args:
        model: weights and config.
        sizes: as `FrameDecoder` takes them.
    Raises:
        UsageError: a dtype is neither bfloat16 nor float32.
    """

    talker: Stack
    predictor: Stack

    def __init__(self, model: DecoderModel, sizes: DecoderSizes):
        super().__init__(model.config, sizes)
        self.embeddings = Embeddings(model, sizes.device, sizes.dtype)
        self.codec_head = self._load(model, "codec_head.weight", self.dtype)
        self._load_stacks(model)
        self.caches = [self.talker.new_cache(sizes.max_positions) for _ in range(sizes.num_slots)]
        self._predictor_cache = self.predictor.new_cache(self.config.talker.num_code_groups)
        self._cancelled = False

    def _load(self, model: DecoderModel, name: str, dtype: torch.dtype) -> Matrix:
        return model.talker[name].to(device=self.device, dtype=dtype)

    def _load_stacks(self, model: DecoderModel) -> None:
        """Set talker and code predictor, and the heads and the projection of the latter."""
        config, weights, dtype = self.config, model.talker, self.predictor_dtype
        talker = DecoderStack(config.talker.stack, weights, "model.", self.device, self.dtype)
        talker.name = "talker"
        self.talker = talker
        self.predictor = DecoderStack(
            config.predictor.stack, weights, "code_predictor.model.", self.device, dtype
        )
        self.lm_heads = [
            self._load(model, f"code_predictor.lm_head.{group}.weight", dtype)
            for group in range(config.talker.num_code_groups - 1)
        ]
        self.projection: tuple[Tensor, Tensor] | None = None
        if config.has_projection:
            name = "code_predictor.small_to_mtp_projection."
            weight, bias = (
                tensor(weights, name + part).to(device=self.device, dtype=dtype)
                for part in ("weight", "bias")
            )
            self.projection = weight, bias

    def cancel(self) -> None:
        """End the running `step`, or else the next one, before it begins another frame."""
        self._cancelled = True

    def _new_state(self, slot: int, sampling: Sampling, seed: int, part: int) -> PlainState:
        vocab_size = self.config.talker.vocab_size
        seen = torch.zeros(vocab_size, dtype=torch.bool, device=self.device)
        return PlainState(sampling, seed, part, seen=seen)

    def _state(self, slot: int) -> PlainState:
        state = super()._state(slot)
        assert isinstance(state, PlainState)
        return state

    def _run_prompt(self, slot: int, embeds: Tensor, pad_embed: Tensor) -> None:
        state = self._state(slot)
        state.hidden = self.talker.forward(embeds, self.caches[slot], 0)[-1]
        state.pad_embed = pad_embed

    def _write_text(self, slot: int, rows: Tensor) -> None:
        self._state(slot).text.extend(rows)

    def _step(
        self,
        slots: Sequence[int],
        num_frames: int,
        forced: Tensor | None,
        taps: dict[str, Tensor] | None,
    ) -> StepResult:
        groups = self.config.talker.num_code_groups
        codes = torch.zeros((len(slots), num_frames, groups), dtype=torch.int32)
        counts, ended = [0] * len(slots), [False] * len(slots)
        if taps is not None:
            taps |= self._empty_taps(len(slots), num_frames)
        with without_onednn(self.device, self.dtype, self.predictor_dtype):
            for index in range(num_frames):
                if self._cancelled:
                    break
                for row, slot in enumerate(slots):
                    if ended[row]:
                        continue
                    frame = self._frame(
                        slot,
                        None if forced is None else forced[row, index],
                        taps and {name: logits[row, index] for name, logits in taps.items()},
                    )
                    if frame is None:
                        ended[row] = True
                    else:
                        codes[row, index] = frame
                        counts[row] += 1
                    self._state(slot).advance(int(frame is not None), frame is None)
        self._cancelled = False
        return StepResult(codes.numpy(), tuple(counts), tuple(ended))

    def _empty_taps(self, num_rows: int, num_frames: int) -> Taps:
        """Return tensors for the logits of a step, full of NaN until a frame fills its part."""
        talker, predictor = self.config.talker, self.config.predictor
        codes = (talker.num_code_groups - 1, predictor.vocab_size)
        shapes = {"talker": (talker.vocab_size,), "predictor": codes}
        return {
            name: torch.full((num_rows, num_frames, *shape), torch.nan, device=self.device)
            for name, shape in shapes.items()
        }

    def _frame(self, slot: int, forced: Tensor | None, taps: Taps | None) -> Tensor | None:
        """Draw one frame in the rotated order: talker step on the previous frame, then codes.

        Args:
            forced: [num_code_groups] codes to go on with, if any.
            taps: [vocab_size] and [groups - 1, vocab_size], which this frame's logits fill.
        Returns:
            [num_code_groups] int64 drawn codes; None: EOS was drawn.
        """
        state = self._state(slot)
        if state.frame > 0:
            text_row = state.frame - 1
            x = self.embeddings.frames(state.codes[None])[0]
            x = x + (state.text[text_row] if text_row < len(state.text) else state.pad_embed)
            state.hidden = self.talker.forward(x[None], self.caches[slot], state.position)[0]
        code = self._draw_code_0(state, taps)
        if forced is None and code == self.config.talker.codec_eos_id:
            return None
        codes = self._draw_residual_codes(state, code, forced, taps)
        state.codes = codes if forced is None else forced.to(codes.dtype)
        state.seen[state.codes[0]] = True
        return codes

    def _draw_code_0(self, state: PlainState, taps: Taps | None = None) -> int:
        talker, s = self.config.talker, state.sampling
        logits = linear(state.hidden[None], self.codec_head)[0].float()
        if taps:
            taps["talker"][:] = logits
        logits = sampling.penalize(logits, state.seen, s.repetition_penalty)
        suppressed = torch.zeros_like(state.seen)
        suppressed[talker.suppressed_from :] = True
        suppressed[talker.codec_eos_id] = state.frame < sampling.MIN_FRAMES
        return sampling.draw(
            logits.masked_fill(suppressed, -torch.inf),
            do_sample=s.do_sample,
            temperature=s.temperature,
            top_k=s.top_k,
            top_p=s.top_p,
            seed=state.seed,
            part=state.part,
            frame=state.frame,
            codebook=0,
        )

    def _draw_residual_codes(
        self, state: PlainState, code: int, forced: Tensor | None, taps: Taps | None = None
    ) -> Tensor:
        """Draw codes 1 .. of the frame whose first code is `code`; return all codes, int64."""
        s, tables = state.sampling, self.embeddings.code_tables
        codes = [code]
        given = code if forced is None else int(forced[0])
        x = torch.stack((state.hidden, self.embeddings.codec_table[given]))
        start = 0
        for group in range(1, self.config.talker.num_code_groups):
            logits = self._predict(x, start, group)
            start += len(x)
            if taps:
                taps["predictor"][group - 1] = logits
            code = sampling.draw(
                logits,
                do_sample=s.subtalker_do_sample,
                temperature=s.subtalker_temperature,
                top_k=s.subtalker_top_k,
                top_p=s.subtalker_top_p,
                seed=state.seed,
                part=state.part,
                frame=state.frame,
                codebook=group,
            )
            codes.append(code)
            given = code if forced is None else int(forced[group])
            x = tables[group - 1][given][None]
        return torch.tensor(codes)

    def _predict(self, x: Tensor, start: int, group: int) -> Tensor:
        """Run the predictor on x [n, hidden_size] from position `start`.

        Returns:
            [vocab_size] float32 logits of code `group`, after the last position.
        """
        x = x.to(self.predictor_dtype)
        if self.projection:
            weight, bias = self.projection
            x = linear(x, weight) + bias
        hidden = self.predictor.forward(x, self._predictor_cache, start)[-1]
        return linear(hidden[None], self.lm_heads[group - 1])[0].float()
