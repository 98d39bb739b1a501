"""Compares decoders: the plain one with the official package, the kernel with the plain one.

Every decoder is compared twice on each case (`cases`): teacher-forced, so that logits can be
compared step by step, and free-running, so that one different code changes all codes after it.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qwen_megakernel.checkpoint.loading import Checkpoint
from qwen_megakernel.decoders.layers import DecoderStack
from qwen_megakernel.decoders.plain import PlainDecoder
from qwen_megakernel.speech_options import Sampling
from tools.validation.cases import Case, begin, forced_logits, greedy_scores, plain_prompts

# Limit for two correct implementations in float32 at released depth: 7e-6 was measured between the
# official code and an independent one; a wrong formula changes logits by 1e-2 and more.
OFFICIAL_TOLERANCE = 2e-5

# The kernel adds products in another order, in float32: sums of up to 6144 terms of order 1.
FLOAT32_TOLERANCE = 1e-4

# The CPU decoder multiplies integer weights with 16-bit activations, of which 64 share a scale, so
# each product is off by up to 2^-16 of the group's largest: 3e-4 in the RMS of the logits.
CPU_INTEGER_TOLERANCE = 5e-3

# In bf16 the plain decoder rounds activations as the official code does, by 2^-9 at some fifteen
# places in a layer; the kernel hardly rounds them. With the shapes and depth of 0.6B and logits of
# standard deviation 3, the RMS error is 0.053 (plain bf16 against plain float32). The largest of a
# million errors is five times that: 0.26 was seen in 8 frames. The limit is eight times the RMS.
BF16_TOLERANCE = 0.43

# The largest of many errors says little about the others, so the limit of their RMS is this share
# of every tolerance: in bf16 1.6 times the measured value.
RMS_SHARE = 0.2

# Hidden states after a norm have a third of the logits' spread: the largest error after the 28
# layers of 0.6B was 0.087, in the eight rows of a prompt.
BF16_HIDDEN_TOLERANCE = BF16_TOLERANCE / 3

# The graphs round about as often as the plain decoder, but in other places, so they differ from it
# by sqrt(2) times as much as a decoder that does not round.
BF16_GRAPH_TOLERANCE = 0.6

MAX_SEEDS = 50  # sampled first frames to compare


def forbid_reduced_precision() -> None:
    """Forbid TF32 in this process and those it starts, and 16-bit sums in this process.

    This is for programs that compare and own their process; an engine leaves torch's precision to
    its host. Some of NVIDIA's images set the variable, which torch reads on import, for TF32
    products: three decimals, where the tolerances above assume float32's seven. cuBLAS may also
    add the parts of a long sum in bf16, which the bf16 tolerances do not include.
    """
    os.environ.pop("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", None)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def tolerance_of(backend: str, *, exact: bool, weights: str | None = None) -> float:
    """Return the tolerance of the logits of `backend` against the plain decoder's, in float32
    (`exact`) or bf16; `weights` names the form of integer weights."""
    if backend == "cpu" and weights:
        return CPU_INTEGER_TOLERANCE
    if exact:
        return FLOAT32_TOLERANCE
    return BF16_GRAPH_TOLERANCE if backend == "graph" else BF16_TOLERANCE


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report. With `tolerance` None it is information and always passes."""

    what: str
    count: int
    value: float
    tolerance: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the value is within its tolerance; NaN is not."""
        return self.tolerance is None or self.value <= self.tolerance


def compare_prompts(loaded: Checkpoint, decoder: PlainDecoder, cases: list[Case]) -> Row:
    """Compare this package's prompts with the input embeddings of official cases."""
    worst, count = 0.0, 0
    for ours, theirs in zip(plain_prompts(loaded, decoder, len(cases)), cases, strict=True):
        for mine, other in ((ours[0], theirs.embeds), (ours[1], theirs.trailing_text)):
            same_shape = mine.shape == other.shape
            worst = max(worst, (mine - other).abs().max().item() if same_shape else np.inf)
            count += len(other)
    return Row("prompt rows: max error", count, worst, OFFICIAL_TOLERANCE)


def compare_forced(decoder: Any, cases: list[Case], tolerance: float) -> list[Row]:
    """Compare the logits and best codes of a decoder that is forced to the codes of the cases.

    Args:
        tolerance: limit for the largest error of a logit; `RMS_SHARE` of it limits the RMS error.
    """
    worst = {"talker": 0.0, "predictor": 0.0}
    squares: dict[str, list[Tensor]] = {name: [] for name in worst}
    agreeing = frames = codes = 0
    for case in cases:
        for name, ours, theirs in zip(
            worst,
            forced_logits(decoder, case),
            (case.talker_logits, case.predictor_logits),
            strict=True,
        ):
            if ours.shape != theirs.shape:
                return [Row(f"{name} logits: shape", len(theirs), np.inf, tolerance)]
            errors = (ours - theirs).double()
            error = errors.abs().max().item()
            worst[name] = max(worst[name], error if np.isfinite(error) else np.inf)
            squares[name].append(errors.square().flatten())
            same = ours.argmax(-1) == theirs.argmax(-1)
            agreeing, codes = agreeing + int(same.sum()), codes + same.numel()
        frames += len(case.codes)
    rows = [
        Row(f"{name} logits, forced: max error", frames, error, tolerance)
        for name, error in worst.items()
    ]
    rows += [
        Row(
            f"{name} logits, forced: RMS error",
            frames,
            torch.cat(parts).mean().sqrt().item(),
            RMS_SHARE * tolerance,
        )
        for name, parts in squares.items()
    ]
    return [*rows, Row("best code differs, forced: share", codes, 1 - agreeing / codes)]


def compare_free(decoder: Any, cases: list[Case], *, tolerance: float | None) -> list[Row]:
    """Compare the greedy codes of a free-running decoder: the first difference, and the end.

    Args:
        tolerance: limit for the error of a logit, if differing codes count as failures (float32).
            A difference where the two best logits are closer together than their errors may be is
            reported and does not count. None: differing codes are only reported (bf16, in which
            two correct decoders diverge after a few frames).
    """
    same, elsewhere = 0, 0
    rows: list[Row] = []
    first: str | None = None
    for index, case in enumerate(cases):
        begin(decoder, case)
        # One frame more than the case has, if the decoder should end before it.
        result = decoder.step([0], len(case.codes) + int(case.ended))
        count = len(case.codes)
        ours = torch.from_numpy(result.codes[0, :count]).to(case.codes.dtype)
        wrong = (ours != case.codes).any(dim=1).nonzero()
        at = int(wrong[0]) if len(wrong) else count
        if at < count and tolerance is not None:
            tie = near_tie(decoder, case, ours[at], at, result.num_frames[0], tolerance)
            if tie:
                rows.append(replace(tie, what=f"text {index}, {tie.what}"))
                same += count
                continue
        same += at
        elsewhere += int((result.num_frames[0], result.ended[0]) != (count, case.ended))
        if at < count and first is None:
            first = f" (first: text {index}, frame {at})"
    frames = sum(len(case.codes) for case in cases)
    limit = None if tolerance is None else 0
    return [
        Row(f"frames past the first difference, free{first or ''}", frames, frames - same, limit),
        Row("texts that end at another frame, free", len(cases), elsewhere, limit),
        *rows,
    ]


def near_tie(
    decoder: Any, case: Case, ours: Tensor, frame: int, num_drawn: int, tolerance: float
) -> Row | None:
    """Compare the two best logits at a place where a decoder drew the second one instead of the
    case's code.

    Args:
        ours: [num_code_groups] the frame as the decoder drew it, the first that differs.
        num_drawn: number of frames that the decoder drew; `frame` if it ended there.
        tolerance: limit for the error of each logit.
    Returns:
        The distance of the two logits, or None if it is more than twice the tolerance.
    """
    theirs = case.codes[frame]
    codebook = int((ours != theirs).nonzero()[0])
    drawn = int(ours[codebook])
    if num_drawn <= frame:  # the decoder drew EOS, which is not among the codes
        codebook, drawn = 0, decoder.config.talker.codec_eos_id
    scores = greedy_scores(decoder.config, case, frame, codebook)
    best, other = float(scores[int(theirs[codebook])]), float(scores[drawn])
    if not abs(best - other) <= 2 * tolerance:
        return None
    what = f"frame {frame}, codebook {codebook}: {best:.5f} or {other:.5f}"
    return Row(f"{what}, near tie", 1, best - other)


def compare_layers(kernel: Any, plain: PlainDecoder, case: Case, tolerance: float) -> list[Row]:
    """Compare the hidden states of a prompt after 1, 2, ... layers and the final norm, which makes
    their root mean square about one."""
    n = len(case.embeds)
    tokens = torch.full((n,), -1)
    rows = []
    stack = plain.talker
    assert isinstance(stack, DecoderStack)
    everything, config = stack.layers, stack.config
    try:
        for depth in range(1, config.num_layers + 1):
            stack.layers, stack.config = everything[:depth], replace(config, num_layers=depth)
            ours = kernel.forward(
                0, tokens, case.embeds.float(), first_position=0, num_layers=depth
            ).cpu()
            x = case.embeds.to(plain.embeddings.device, plain.embeddings.dtype)
            theirs = stack.forward(x, stack.new_cache(n), 0).float().cpu()
            error = (ours - theirs).abs().max().item()
            rows.append(Row(f"talker after layer {depth}: max error", n, error, tolerance))
    finally:
        stack.layers, stack.config = everything, config
    return rows


def compare_sampling(
    kernel: Any, plain: PlainDecoder, case: Case, num_seeds: int = MAX_SEEDS
) -> list[Row]:
    """Compare the sampled first frames of two decoders under `num_seeds` seeds.

    Both draw with the same random numbers, so in float32 none should differ; in bf16 the share of
    different codes bounds the distance of the two distributions. The histogram distance covers all
    drawn codes: it is half the summed difference, averaged over codebooks, and lies in 0 to 1.
    """
    drawn = []
    for decoder in (kernel, plain):
        frames = []
        for seed in range(num_seeds):
            begin(decoder, case, Sampling(), seed)
            frames.append(decoder.step([0], 1).codes[0, 0])
        drawn.append(np.stack(frames))  # [num_seeds, num_code_groups]
    ours, theirs = drawn
    size = 1 + max(ours.max(), theirs.max())
    distances = [
        np.abs(np.bincount(a, minlength=size) - np.bincount(b, minlength=size)).sum() / 2
        for a, b in zip(ours.T, theirs.T, strict=True)
    ]
    return [
        Row("sampled code 0 differs: share", num_seeds, float((ours != theirs)[:, 0].mean())),
        Row("sampled codes: histogram distance", ours.size, float(np.mean(distances)) / num_seeds),
    ]


@dataclass(frozen=True, slots=True)
class Report:
    """The table of one comparison."""

    title: str
    rows: list[Row]

    @property
    def passed(self) -> bool:
        return all(row.passed for row in self.rows)

    def __str__(self) -> str:
        """Return the table for a terminal."""
        lines = [self.title, f"  {'':58}{'count':>7}{'value':>11}{'tolerance':>11}"]
        for row in self.rows:
            limit = "" if row.tolerance is None else f"{row.tolerance:11.1e}"
            verdict = "" if row.tolerance is None else "  ok" if row.passed else "  DIFFERS"
            lines.append(f"  {row.what:58}{row.count:7}{row.value:11.2e}{limit}{verdict}")
        return "\n".join(lines)


def verdict(reports: Sequence[Report], left_out: Sequence[str]) -> str:
    """Return one line about all tables: whether every figure is within its tolerance.

    Args:
        left_out: comparisons that this machine cannot make.
    """
    beside = f" Not compared: {', '.join(left_out)}." if left_out else ""
    if not reports:
        return f"NOTHING COMPARED.{beside}"
    faults = [
        f"{report.title}: {row.what}" for report in reports for row in report.rows if not row.passed
    ]
    if not faults:
        tables = f"{len(reports)} table{'s' * (len(reports) > 1)}"
        return f"PASSED: every figure of {tables} is within its tolerance.{beside}"
    more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
    return f"FAILED: {faults[0]}{more}.{beside}"
