"""Validation fails when it must: a decoder with a planted fault does not pass."""

import json
from dataclasses import replace
from math import log, sqrt
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from commands import run
from fixtures import module_value
from tolerances import LOGIT_DISTANCE

from qwen_megakernel.checkpoint import random_weights
from qwen_megakernel.decoders.backends import Backend, make_decoder
from qwen_megakernel.decoders.quantization import quantize
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.records import StepResult
from tools.validation import cases as greedy_cases
from tools.validation import compare, progress
from tools.validation.compare import Row

GOOD, BAD = Row("good", 3, 1e-6, 1e-5), Row("bad", 3, 1.0, 0.1)


def decoder_of(loaded, backend):
    chosen = Backend(backend, torch.device("cpu"), "")
    sizes = DecoderSizes(1, 256, device=chosen.device, dtype=torch.float32)
    return make_decoder(loaded, chosen, sizes)


def plain(loaded):
    return decoder_of(loaded, "torch")


loaded = module_value(lambda load_checkpoint: load_checkpoint("tiny-random"))
cases = module_value(lambda loaded: greedy_cases.plain_cases(loaded, plain(loaded), 8))


def test_a_decoder_agrees_with_itself(loaded, cases):
    rows = compare.compare_forced(plain(loaded), cases, 0.0)
    rows += compare.compare_free(plain(loaded), cases, tolerance=compare.FLOAT32_TOLERANCE)
    assert all(row.passed and row.value == 0 for row in rows)
    assert sum(len(case.codes) for case in cases) == 8


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_the_cpu_decoder_agrees_on_integer_weights(loaded, weights):
    quantized = replace(loaded, talker=quantize(loaded.talker, weights, in_groups=True))
    cases = greedy_cases.plain_cases(quantized, plain(quantized), 8)
    limit = compare.tolerance_of("cpu", exact=True, weights=weights)
    rows = compare.compare_forced(decoder_of(quantized, "cpu"), cases, limit)
    assert all(row.passed for row in rows)


@pytest.mark.parametrize("fault", ["rope", "norm", "head"])
def test_a_planted_fault_is_found(loaded, cases, fault):
    decoder = plain(loaded)
    if fault == "rope":  # the base that public ports of this model got wrong
        decoder.talker.config = replace(decoder.talker.config, rope_theta=10_000.0)
    elif fault == "norm":
        decoder.talker.norm = decoder.talker.norm + 1e-3
    else:
        decoder.lm_heads[3], decoder.lm_heads[4] = decoder.lm_heads[4], decoder.lm_heads[3]
    rows = compare.compare_forced(decoder, cases, compare.OFFICIAL_TOLERANCE)
    assert not all(row.passed for row in rows)


def test_errors_that_are_all_small_but_too_many_are_found(loaded, cases, monkeypatch):
    """Each logit is within the tolerance of one; a correct kernel's differ by 0.05 (RMS)."""
    limit = compare.tolerance_of("kernel", exact=False)

    def noisy(decoder, case):
        noise = torch.Generator().manual_seed(0)
        return tuple(
            logits + 0.5 * limit * (2 * torch.rand(logits.shape, generator=noise) - 1)
            for logits in (case.talker_logits, case.predictor_logits)
        )

    monkeypatch.setattr(compare, "forced_logits", noisy)
    rows = compare.compare_forced(plain(loaded), cases, limit)
    failed = [row.what for row in rows if not row.passed]
    assert failed == [f"{name} logits, forced: RMS error" for name in ("talker", "predictor")]


def test_an_end_at_another_frame_is_found(loaded, cases):
    ended = replace(cases[0], codes=cases[0].codes[:3], ended=torch.tensor(True))
    _, row = compare.compare_free(plain(loaded), [ended], tolerance=compare.FLOAT32_TOLERANCE)
    assert row.value == 1 and not row.passed
    stopped = replace(ended, ended=torch.tensor(False))
    _, row = compare.compare_free(plain(loaded), [stopped], tolerance=compare.FLOAT32_TOLERANCE)
    assert row.value == 0 and row.passed


def test_the_codes_of_a_case_are_the_best_of_its_scores(loaded, cases):
    for case in cases:
        for frame, codebook in np.ndindex(*case.codes.shape):
            scores = greedy_cases.greedy_scores(loaded.config, case, frame, codebook)
            assert int(scores.argmax()) == int(case.codes[frame, codebook])


def test_scores_are_penalised_and_speech_does_not_end_too_early(loaded, cases):
    talker = loaded.config.talker
    logits = torch.zeros(3, talker.vocab_size)
    logits[:, 7], logits[:, 9], logits[:, talker.codec_eos_id] = 2.0, 1.95, 5.0
    logits[:, talker.suppressed_from] = 9.0
    case = replace(cases[0], codes=torch.full((3, 16), 7), talker_logits=logits)
    best = [greedy_cases.greedy_scores(loaded.config, case, n, 0).argmax() for n in range(3)]
    assert best == [7, 9, talker.codec_eos_id]


def leaving(decoder, codes, num_frames):
    """Return a decoder that draws exactly these codes and then, if it ends, ends."""
    watched = Mock(wraps=decoder, config=decoder.config, embeddings=decoder.embeddings)
    ended = (num_frames < len(codes),)
    watched.step = lambda *_: StepResult(codes.numpy()[None].copy(), (num_frames,), ended)
    return watched


@pytest.mark.parametrize("codebook", [0, 5, "end"])
@pytest.mark.parametrize("times", [1.9, 2.1])
def test_a_near_tie_is_told_and_what_is_further_apart_fails(loaded, cases, codebook, times):
    """Two logits may change places if each has the largest allowed error of float32."""
    distance = times * compare.FLOAT32_TOLERANCE
    frame, group = 3, 0 if codebook == "end" else codebook
    case = replace(
        cases[0],
        talker_logits=cases[0].talker_logits.clone(),
        predictor_logits=cases[0].predictor_logits.clone(),
    )
    assert len(case.codes) > frame
    eos = loaded.config.talker.codec_eos_id
    scores = greedy_cases.greedy_scores(loaded.config, case, frame, group)
    other = eos if codebook == "end" else int(scores.topk(2).indices[1])
    logits = case.predictor_logits[frame, group - 1] if group else case.talker_logits[frame]
    logits[other] = scores.max() - distance
    codes, num_frames = case.codes.clone(), len(case.codes)
    if codebook == "end":
        codes[frame:], num_frames = 0, frame
    else:
        seen = other in case.codes[:frame, 0].tolist() and group == 0
        assert not seen  # otherwise the penalty would change its logit
        codes[frame, group] = other
    decoder = leaving(plain(loaded), codes, num_frames)
    rows = compare.compare_free(decoder, [case], tolerance=compare.FLOAT32_TOLERANCE)
    is_near = times < 2
    assert all(row.passed for row in rows) == is_near
    if is_near:
        best = float(scores.max())
        what = f"frame 3, codebook {group}: {best:.5f} or {best - distance:.5f}, near tie"
        assert rows[-1].what == f"text 0, {what}"
        assert abs(rows[-1].value - distance) < LOGIT_DISTANCE
        assert len(str(rows[-1].what)) <= 60
    assert all(row.passed for row in compare.compare_free(decoder, [case], tolerance=None))


def test_the_distance_of_sampled_codes(loaded, cases):
    decoder, other = plain(loaded), plain(loaded)
    rows = compare.compare_sampling(decoder, other, cases[0], 6)
    assert [(row.count, row.value) for row in rows] == [(6, 0), (96, 0)]
    other.lm_heads.reverse()
    code_0, histogram = compare.compare_sampling(decoder, other, cases[0], 6)
    assert code_0.value == 0 and 0.5 < histogram.value <= 1  # 15 of 16 codes come from other heads


def test_the_report_names_the_row_that_failed():
    report = compare.Report("title", [GOOD, BAD])
    assert not report.passed
    lines = str(report).splitlines()
    assert "ok" in lines[2] and "DIFFERS" in lines[3]
    assert not Row("nan", 1, float("nan"), 1.0).passed


@pytest.mark.parametrize(
    ("rows", "left_out", "line"),
    [
        ([[GOOD], [GOOD]], [], "PASSED: every figure of 2 tables is within its tolerance."),
        ([[GOOD]], ["graph"], "... of 1 table is within its tolerance. Not compared: graph."),
        ([[GOOD, BAD]], [], "FAILED: table 0: bad."),
        ([[GOOD], [BAD, BAD]], ["x", "y"], "FAILED: table 1: bad, and 1 more. Not compared: x, y."),
        ([], ["official package"], "NOTHING COMPARED. Not compared: official package."),
    ],
)
def test_the_verdict_is_one_line(rows, left_out, line):
    reports = [compare.Report(f"table {index}", each) for index, each in enumerate(rows)]
    assert compare.verdict(reports, left_out).endswith(line.removeprefix("..."))


def test_a_watched_decoder_draws_the_same_in_short_steps(loaded, cases):
    reported, decoder = [], plain(loaded)
    watched = progress.WatchedDecoder(decoder, reported.append)
    case = cases[0]
    count = len(case.codes)
    ours, alone = (greedy_cases.forced_logits(each, case) for each in (watched, decoder))
    assert all(map(torch.equal, ours, alone))
    greedy_cases.begin(watched, case)
    result = watched.step([0], count + 1)
    assert (result.codes[0, :count] == case.codes.numpy()).all()
    assert (result.num_frames, result.ended) == ((count,), (bool(case.ended),))
    assert sum(reported) >= 2 * count and max(reported) == progress.FRAMES_PER_STEP


def test_a_watched_decoder_that_ends_early_fills_up_the_frames_it_has_not_drawn():
    decoder = Mock()
    decoder.step.return_value = StepResult(np.array([[[5], [0]]], np.int32), (1,), (True,))
    result = progress.WatchedDecoder(decoder, Mock()).step([0], 5)
    assert result.codes[0, :, 0].tolist() == [5, 0, 0, 0, 0]
    assert (result.num_frames, result.ended) == ((1,), (True,))


def test_without_a_terminal_progress_is_lines_without_a_bar(capsys):
    with progress.bar("table", 3, quiet=False) as on_frames:
        on_frames(2)
        on_frames(2)  # one frame too many must not show
    told = capsys.readouterr().err
    first, *_, last = told.splitlines()
    assert first.startswith("table: 0 of 3 frames") and last.startswith("table: 3 of 3 frames")
    assert "\r" not in told and "|" not in told and "left" in last
    assert "?" not in told  # no figure that is not known yet


def test_recorded_cases_survive_the_file(tmp_path, cases):
    path = tmp_path / "cases.safetensors"
    greedy_cases.save_cases(path, cases)
    for mine, theirs in zip(greedy_cases.load_cases(path), cases, strict=True):
        assert torch.equal(mine.codes, theirs.codes)
        assert torch.equal(mine.talker_logits, theirs.talker_logits)


def test_what_rounds_right_is_within_the_tolerance_at_the_released_depth():
    """The largest of the 32 frames that tools/gpu_check compares, by the measured RMS errors."""
    path = Path(__file__).parents[3] / "benchmarks" / "results" / "precision.json"
    variants = json.loads(path.read_text())["runs"][0]["variants"]
    largest = sqrt(2 * log(32 * 15 * 2048))  # of these normal errors, in standard deviations
    for bf16, without in (("bf16", "fp32"), ("int8-rows, bf16", "int8-rows")):
        rounded, exact = (
            variants[name]["relative_rms_error"]["predictor logits"] for name in (bf16, without)
        )
        error = random_weights.LOGIT_STD * sqrt(rounded**2 - exact**2) * largest
        assert error < compare.tolerance_of("kernel", exact=False) < 2 * error
        assert sqrt(2) * error < compare.tolerance_of("graph", exact=False)
        rms = error / largest
        assert rms < compare.RMS_SHARE * compare.tolerance_of("kernel", exact=False) < 2 * rms


PROGRAMS = {
    "validate_kernel.py": """
import argparse, contextlib, validate_kernel
from qwen_megakernel.errors import QwenTTSError
from qwen_megakernel.decoders.slots import DecoderSizes
with contextlib.suppress(QwenTTSError):
    validate_kernel.main(argparse.Namespace(model="/nowhere", save_reference=None))
""",
    "gpu_check": """
import sys, types
from tools.gpu_check.steps import registry
sys.argv = ["steps", "build", "--json", "/dev/null"]
context = types.SimpleNamespace(keep=lambda result: None)
registry.Context = lambda *arguments, **options: context
registry.STEPS["build"] = lambda context: {}
registry.main()
""",
    "pytest": """
import pytest
file = "tests/engine/test_runaway_guard.py"
pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", file])
""",
}


@pytest.mark.parametrize(
    "program",
    ["validate_kernel.py", *(pytest.param(p, marks=pytest.mark.ci) for p in list(PROGRAMS)[1:])],
)
def test_neither_a_variable_nor_a_default_makes_sums_less_than_float32(program):
    code = f"""
import os, torch
assert torch.get_float32_matmul_precision() == "high"  # what the variable does
{PROGRAMS[program]}
assert torch.get_float32_matmul_precision() == "highest"
matmul = torch.backends.cuda.matmul
assert not matmul.allow_bf16_reduced_precision_reduction
assert not matmul.allow_fp16_reduced_precision_reduction
assert not any("TF32" in name for name in os.environ)  # for what it starts
"""
    done = run("-c", code, TORCH_ALLOW_TF32_CUBLAS_OVERRIDE="1")
    assert done.returncode == 0, done.stdout + done.stderr
