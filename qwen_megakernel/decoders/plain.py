"""The whole decoder in plain PyTorch: the specification of all decoders, to which tests compare.

It is also the backend `torch`.

Source: QwenLM/Qwen3-TTS, modeling_qwen3_tts.py (qwen-tts 0.1.1), whose layers are in `layers`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from qwen_megakernel.checkpoint.weight_reader import WeightReader
from qwen_megakernel.decoders import sampling
from qwen_megakernel.decoders.embeddings import Embeddings
from qwen_megakernel.decoders.frame_decoder import OneByOneDecoder, Taps
from qwen_megakernel.decoders.layers import DecoderStack, Stack, linear
from qwen_megakernel.decoders.onednn import without_onednn
from qwen_megakernel.decoders.slots import DecoderSizes, SlotState
from qwen_megakernel.decoders.weights import DecoderModel
from qwen_megakernel.records import StepResult
from qwen_megakernel.speech_options import Draw, Sampling

_NO_VALUES = torch.empty(0)


@dataclass(slots=True, kw_only=True)
class PlainState(SlotState):
    """The counts of a stream, with its tensors."""

    seen: Tensor  # [vocab_size] bool: code-0 tokens drawn in this part
    # [hidden_size], after the final norm, of the last position; empty before the prompt has run.
    hidden: Tensor = _NO_VALUES
    pad_embed: Tensor = _NO_VALUES  # [hidden_size], empty until then
    codes: Tensor = _NO_VALUES  # [num_code_groups] of the previous frame
    text: list[Tensor] = field(default_factory=list)  # rows [hidden_size]


class PlainDecoder(OneByOneDecoder[PlainState]):
    """The talker and the code predictor in PyTorch, which decode one slot after another."""

    talker: Stack
    predictor: Stack

    def __init__(self, model: DecoderModel, sizes: DecoderSizes):
        super().__init__(sizes)
        self.config = model.config
        self.num_code_groups = model.config.talker.num_code_groups
        self.embeddings = Embeddings(model, sizes.device, sizes.dtype)
        read = WeightReader(model.talker, self.device, self.dtype)
        self.codec_head = read.matrix("codec_head.weight")
        self._load_stacks(model)
        self.caches = [self.talker.new_cache(sizes.max_positions) for _ in range(sizes.num_slots)]
        self._predictor_cache = self.predictor.new_cache(self.num_code_groups)

    def _load_stacks(self, model: DecoderModel) -> None:
        config, weights = self.config, model.talker
        read = WeightReader(weights, self.device, self.dtype, "model.")
        self.talker = DecoderStack(config.talker.stack, read, "talker")
        read = WeightReader(weights, self.device, self.predictor_dtype, "code_predictor.")
        predictor = read.at("model")
        self.predictor = DecoderStack(config.predictor.stack, predictor, "code_predictor")
        self.lm_heads = [
            read.matrix(f"lm_head.{group}.weight") for group in range(self.num_code_groups - 1)
        ]
        self.projection: tuple[Tensor, Tensor] | None = None
        if config.has_projection:
            at = read.at("small_to_mtp_projection")
            self.projection = at["weight"], at["bias"]

    def _new_state(self, slot: int, sampling: Sampling, seed: int, part: int) -> PlainState:
        vocab_size = self.config.talker.vocab_size
        seen = torch.zeros(vocab_size, dtype=torch.bool, device=self.device)
        return PlainState(sampling, seed, part, seen=seen)

    def _run_prompt(self, slot: int, embeds: Tensor, pad_embed: Tensor) -> None:
        state = self._state(slot)
        state.hidden = self.talker.forward(embeds, self.caches[slot], 0)[-1]
        state.pad_embed = pad_embed

    def _write_text(self, slot: int, rows: Tensor) -> None:
        self._state(slot).text.extend(rows)

    def _step(
        self, slots: Sequence[int], num_frames: int, forced: Tensor | None, taps: Taps | None
    ) -> StepResult:
        with without_onednn(self.device, self.dtype, self.predictor_dtype):
            return super()._step(slots, num_frames, forced, taps)

    def _frame(self, slot: int, forced: Tensor | None, taps: Taps | None) -> Tensor | None:
        state = self._state(slot)
        if state.frame > 0:  # a frame begins with the talker's step on the one before it
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
        talker, how = self.config.talker, state.sampling.talker
        logits = linear(state.hidden[None], self.codec_head)[0].float()
        if taps:
            taps["talker"][:] = logits
        logits = sampling.penalized(logits, state.seen, how.repetition_penalty)
        suppressed = torch.zeros_like(state.seen)
        suppressed[talker.suppressed_from :] = True
        suppressed[talker.codec_eos_id] = state.frame < sampling.MIN_FRAMES
        return self._draw(state, logits.masked_fill(suppressed, -torch.inf), how, 0)

    def _draw_residual_codes(
        self, state: PlainState, code: int, forced: Tensor | None, taps: Taps | None = None
    ) -> Tensor:
        """Draw codes 1 .. of the frame whose first code is `code`; return all codes, int64."""
        tables = self.embeddings.code_tables
        codes = [code]
        given = code if forced is None else int(forced[0])
        x = torch.stack((state.hidden, self.embeddings.codec_table[given]))
        start = 0
        for group in range(1, self.num_code_groups):
            logits = self._predict(x, start, group)
            start += len(x)
            if taps:
                taps["predictor"][group - 1] = logits
            code = self._draw(state, logits, state.sampling.predictor, group)
            codes.append(code)
            given = code if forced is None else int(forced[group])
            x = tables[group - 1][given][None]
        return torch.tensor(codes)

    def _draw(self, state: PlainState, logits: Tensor, how: Draw, codebook: int) -> int:
        address = {"seed": state.seed, "part": state.part, "frame": state.frame}
        return sampling.draw(logits, how, **address, codebook=codebook)

    def _predict(self, x: Tensor, start: int, group: int) -> Tensor:
        """Run x [n, hidden_size] from position `start`; returns code `group`'s float32 logits."""
        x = x.to(self.predictor_dtype)
        if self.projection:
            weight, bias = self.projection
            x = linear(x, weight) + bias
        hidden = self.predictor.forward(x, self._predictor_cache, start)[-1]
        return linear(hidden[None], self.lm_heads[group - 1])[0].float()
