"""Frames and prompts of all slots as functions of static tensors, which `decoder` records.

A CUDA graph can record these functions because they never read a value back to the host, and no
shape depends on a value.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from qwen_megakernel.checkpoint.weight_reader import WeightReader
from qwen_megakernel.decoders.embeddings import Embeddings
from qwen_megakernel.decoders.graph import sampling
from qwen_megakernel.decoders.graph.sampling import Knobs
from qwen_megakernel.decoders.graph.stack import GraphStack
from qwen_megakernel.decoders.sampling import MASK, MIN_FRAMES, penalized
from qwen_megakernel.decoders.slots import DecoderSizes, SlotState
from qwen_megakernel.decoders.weights import DecoderModel

MAX_FRAMES_PER_LAUNCH = 4  # number of frames that one copy brings to the host

# Every attention except cuDNN's, which PyTorch prefers on sm_90 and sm_100. There it has silently
# returned wrong values in bf16 with a mask (pytorch/pytorch#193893, torch 2.11 to 2.13), and it
# compiles code for each of some twenty shapes in a frame, which takes time.
ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_choosing = threading.Lock()


def without_cudnn_attention(run: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method that graphs record, so that it runs without cuDNN's attention.

    The switch applies to the whole process, so one thread at a time sets it. A CPU has no such
    attention, and needs no switch.
    """

    @functools.wraps(run)
    def chosen(self: "GraphModel", *arguments: Any) -> Any:
        if self.device.type == "cpu":
            return run(self, *arguments)
        with _choosing, sdpa_kernel(ATTENTION):
            return run(self, *arguments)

    return chosen


DRAWS = ("talker", "predictor")  # the fields of `Sampling`: for code 0, and for the others

# Rows of the control, [num_slots] each: the integers are int32, the rows after them float32.
# Those of the draws are named after their places in `Sampling`.
_INTEGER_KNOBS = tuple(f"{of}.{name}" for of in DRAWS for name in ("do_sample", "top_k"))
INTEGERS = (
    *("active", "position", "frame", "num_text", "seed_low", "seed_high", "part"),
    *_INTEGER_KNOBS,
)
FLOATS = (
    "talker.repetition_penalty",
    *(f"{of}.{name}" for of in DRAWS for name in ("temperature", "top_p")),
)


class GraphModel:
    """Weights, caches and per-slot state of `num_slots` streams, all of them rows of every pass.

    Attributes:
        control_rows: [rows, num_slots] int32, from `control_of`; a launch begins by filling it.
        forced: [MAX_FRAMES_PER_LAUNCH, num_slots, num_code_groups] int64 codes to continue with.
        index: [1] int64, index of the frame within its launch.
        result: the result of a launch, see `split_result`.
        seen: [num_slots, vocab_size] bool, code-0 tokens drawn by the slot's stream.
        text: [num_slots, max_frames, hidden_size]; pad: [num_slots, hidden_size].
        prompt: [max_positions, hidden_size]; prompt_control: [2] int64, slot and last position.
    """

    def __init__(self, model: DecoderModel, sizes: DecoderSizes):
        self.config, self.device, self.dtype = model.config, sizes.device, sizes.dtype
        self.predictor_dtype = sizes.predictor_dtype or sizes.dtype
        self.num_slots, self.max_positions = sizes.num_slots, sizes.max_positions
        self._load(model)
        self._allocate(sizes.most_frames)

    def _load(self, model: DecoderModel) -> None:
        weights, talker, slots = model.talker, self.config.talker, self.num_slots
        predictor, groups = self.config.predictor.stack, talker.num_code_groups
        read = WeightReader(weights, self.device, self.dtype)
        of_predictor = WeightReader(weights, self.device, self.predictor_dtype, "code_predictor.")
        self.embeddings = Embeddings(model, self.device, self.dtype)
        self._frame_table = self.embeddings.join_tables()
        tables = [self.embeddings.codec_table, *self.embeddings.code_tables]
        first_rows = list(accumulate(map(len, tables[:-1]), initial=0))
        self._first_rows = torch.tensor(first_rows).to(self.device)
        layers = read.at("model")
        self.talker = GraphStack(
            talker.stack, layers, num_slots=slots, num_positions=self.max_positions
        )
        layers = of_predictor.at("model")
        self.predictor = GraphStack(predictor, layers, num_slots=slots, num_positions=groups)
        self._codec_head = read["codec_head.weight"]
        self._lm_heads = [of_predictor[f"lm_head.{group}.weight"] for group in range(groups - 1)]
        self._projection: tuple[Tensor, Tensor] | None = None
        if self.config.has_projection:
            at = of_predictor.at("small_to_mtp_projection")
            self._projection = at["weight"], at["bias"]

    def _allocate(self, max_frames: int) -> None:
        """Allocate every tensor that a graph reads or writes, except the weights."""
        talker, slots = self.config.talker, self.num_slots
        groups, width = talker.num_code_groups, talker.stack.hidden_size

        def zeros(*shape: int, dtype: torch.dtype = self.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        rows = zeros(len(INTEGERS) + len(FLOATS), slots, dtype=torch.int32)
        self.control_rows = rows
        self._control = dict(zip(INTEGERS, rows, strict=False))
        self._control |= dict(zip(FLOATS, rows[len(INTEGERS) :].view(torch.float32), strict=True))
        self.index = zeros(1, dtype=torch.int64)
        self.forced = zeros(MAX_FRAMES_PER_LAUNCH, slots, groups, dtype=torch.int64)
        self.result = zeros((MAX_FRAMES_PER_LAUNCH * groups + 3) * slots, dtype=torch.int32)
        self._out_codes, (self._counts, self._ended, self._bad) = self.split_result(self.result)
        self.hidden, self._codes = zeros(slots, width), zeros(slots, groups, dtype=torch.int64)
        self.seen = zeros(slots, talker.vocab_size, dtype=torch.bool)
        self.text, self.pad = zeros(slots, max_frames, width), zeros(slots, width)
        self.prompt = zeros(self.max_positions, width)
        self.prompt_control = zeros(2, dtype=torch.int64)
        self._rows = torch.arange(slots, device=self.device)
        tokens = torch.arange(talker.vocab_size, device=self.device)
        self._is_eos = tokens == talker.codec_eos_id
        self._is_suppressed = (tokens >= talker.suppressed_from) & ~self._is_eos

    # ---- the host's side of the tensors

    def control_of(self, slots: dict[int, SlotState]) -> Tensor:
        """Return the control of a launch, on the host; all slots but `slots` are inactive."""
        rows = np.zeros(self.control_rows.shape, dtype=np.int32)
        floats = rows[len(INTEGERS) :].view(np.float32)
        floats[:] = 1.0  # with a temperature of 0 the inactive rows would become NaN
        for slot, state in slots.items():
            seed = np.array([state.seed], dtype=np.uint64).view(np.uint32).view(np.int32)
            rows[: len(INTEGERS), slot] = (
                *(True, state.position, state.frame, state.num_text_rows, *seed, state.part),
                *attrgetter(*_INTEGER_KNOBS)(state.sampling),
            )
            floats[:, slot] = attrgetter(*FLOATS)(state.sampling)
        return torch.from_numpy(rows)

    def split_result(self, result: Tensor) -> tuple[Tensor, Tensor]:
        """Split the result of a launch into its codes and its counts; both are views.

        Returns:
            Codes [MAX_FRAMES_PER_LAUNCH, num_slots, num_code_groups], and [3, num_slots]: number of
            frames drawn, whether EOS was drawn, and 1 + the codebook whose logits were not finite
            (0: all were finite).
        """
        shape = (MAX_FRAMES_PER_LAUNCH, self.num_slots, self.config.talker.num_code_groups)
        return result[: -3 * self.num_slots].view(shape), result[-3 * self.num_slots :].view(3, -1)

    def forget(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.hidden[slot] = 0
            for stack in (self.talker, self.predictor):
                stack.cache[:, slot].zero_()

    # ---- what graphs record

    @without_cudnn_attention
    def run_prompt(self, count: int) -> None:
        """Run the prompt's first `count` rows; its last hidden state becomes the slot's."""
        slot, last = self.prompt_control.split(1)
        hidden = self.talker.prompt(self.prompt[:count], slot)
        self.hidden.index_copy_(0, slot, hidden.index_select(0, last))

    @without_cudnn_attention
    def run_frame(self, reach: int, is_forced: bool, use_top_p: bool) -> tuple[Tensor, Tensor]:
        """Draw one frame of every active slot: first the talker's step, then the codes.

        Args:
            reach: number of positions that the talker's attention reads; 0: no talker step.
            is_forced: whether streams continue with the codes in `forced`.
            use_top_p: whether any slot limits the probability mass.
        Returns:
            The raw logits: [num_slots, vocab_size] and [num_slots, num_code_groups - 1,
            vocab_size], float32.
        """
        control = self._control
        active, frame = control["active"] > 0, control["frame"]
        if reach:
            self._step_talker(active, reach)
        noise = sampling.gumbel(
            *(control[name].long() & MASK for name in ("seed_low", "seed_high", "part", "frame")),
            num_codebooks=self.config.talker.num_code_groups,
            vocab_size=self.config.talker.vocab_size,
        )
        given = self.forced.index_select(0, self.index)[0] if is_forced else None
        talker_logits = F.linear(self.hidden, self._codec_head).float()
        code = self._draw_code_0(talker_logits, noise[:, 0], active, use_top_p)
        if not is_forced:
            ended = active & (code == self.config.talker.codec_eos_id)
            self._ended.add_(ended)
            active = active & ~ended
        codes, predictor_logits = self._draw_residual_codes(code, given, noise, active, use_top_p)
        kept = codes if given is None else given
        self._codes.copy_(torch.where(active[:, None], kept, self._codes))
        self.seen.scatter_(
            1, self._codes[:, :1], self.seen.gather(1, self._codes[:, :1]) | active[:, None]
        )
        drawn = (codes * active[:, None]).to(torch.int32)
        self._out_codes.index_copy_(0, self.index, drawn[None])
        self.index.add_(1)
        self._counts.add_(active)
        frame.add_(active)
        control["active"].copy_(active)
        return talker_logits, predictor_logits

    def _step_talker(self, active: Tensor, reach: int) -> None:
        """Run the talker's step on the previous frame, for slots that have one."""
        control, talker = self._control, self.talker
        steps = active & (control["frame"] > 0)
        x = F.embedding(self._codes + self._first_rows, self._frame_table).sum(1)
        text_row = control["frame"].long() - 1
        text = self.text[self._rows, text_row.clamp(min=0) % self.text.shape[1]]
        x = x + torch.where((text_row < control["num_text"])[:, None], text, self.pad)
        position = control["position"].long()
        place = torch.where(steps, position, talker.unused_position)
        hidden = talker.step(x, position, place, reach)
        self.hidden.copy_(torch.where(steps[:, None], hidden, self.hidden))
        control["position"].add_(steps)

    def _draw_code_0(
        self, logits: Tensor, noise: Tensor, active: Tensor, use_top_p: bool
    ) -> Tensor:
        """Draw code 0 [num_slots] from the talker's logits [num_slots, vocab_size]."""
        control = self._control
        logits = penalized(logits, self.seen, control["talker.repetition_penalty"][:, None])
        is_early = (control["frame"] < MIN_FRAMES)[:, None]
        logits = logits.masked_fill(self._is_suppressed | (self._is_eos & is_early), -torch.inf)
        return self._draw(logits, noise, active, 0, use_top_p)

    def _draw_residual_codes(
        self, code: Tensor, given: Tensor | None, noise: Tensor, active: Tensor, use_top_p: bool
    ) -> tuple[Tensor, Tensor]:
        """Draw codes 1 .. of the frames that begin with `code` [num_slots].

        Returns:
            All codes [num_slots, num_code_groups], and logits [num_slots, groups - 1, vocab_size].
        """
        embeddings, vocab_size = self.embeddings, self.config.predictor.vocab_size
        codes = [code]
        logits: list[Tensor] = []
        first = code if given is None else given[:, 0]
        x = torch.stack((self.hidden, F.embedding(first, embeddings.codec_table)), dim=1)
        start = 0
        for group, head in enumerate(self._lm_heads, start=1):
            x = x.to(self.predictor_dtype)
            if self._projection:
                x = F.linear(x, *self._projection)
            hidden = self.predictor.append(x, start)[:, -1]
            start += x.shape[1]
            logits.append(F.linear(hidden, head).float())
            draws = noise[:, group, :vocab_size]
            codes.append(self._draw(logits[-1], draws, active, group, use_top_p))
            used = codes[-1] if given is None else given[:, group]
            x = F.embedding(used, embeddings.code_tables[group - 1])[:, None]
        return torch.stack(codes, dim=1), torch.stack(logits, dim=1)

    def _draw(
        self, logits: Tensor, noise: Tensor, active: Tensor, codebook: int, use_top_p: bool
    ) -> Tensor:
        control, which = self._control, DRAWS[min(codebook, 1)]
        is_bad = active & ~torch.isfinite(logits.amax(dim=-1)) & (self._bad == 0)
        self._bad.add_(is_bad, alpha=codebook + 1)
        knobs = Knobs(
            do_sample=control[f"{which}.do_sample"] > 0,
            temperature=control[f"{which}.temperature"],
            top_k=control[f"{which}.top_k"].long(),
            top_p=control[f"{which}.top_p"],
        )
        return sampling.draw(logits, noise, knobs, use_top_p=use_top_p)
