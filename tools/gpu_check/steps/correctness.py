"""Steps that compare: the test suite, the sanitizers, and the decoders with the plain one."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kernel_models
import torch

import validate_kernel
from qwen_megakernel.decoders.backends import Backend
from qwen_megakernel.decoders.plain import PlainDecoder
from qwen_megakernel.native import compiling
from qwen_megakernel.speech_options import Sampling
from tools.gpu_check import compute_sanitizer
from tools.gpu_check.steps import ROOT
from tools.gpu_check.steps.context import Context, find_program

PATIENT_SECONDS = 120.0  # patience of a barrier under a sanitizer


def tests(context: Context) -> dict[str, Any]:
    """Run the kernel's test suite on this device."""
    if importlib.util.find_spec("pytest") is None:
        return {"status": "skipped", "why": "no pytest here; the validations are what is left"}
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"]
    command += ["-k", "test_eos_ends"] if context.emulation else ["-m", "gpu"]
    command += ["tests/decoders/kernel", "tests/decoders/graph"]
    command += ["tests/vocoder/test_graph_vocoder.py"]
    # The tests use the libraries of the build step instead of tests/decoders/conftest.py's.
    cache = {"QWEN_MEGAKERNEL_BUILD_CACHE": str(compiling.build_cache())}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command.append(f"--junitxml={report}")
        done = subprocess.run(command, cwd=ROOT, env=os.environ | cache, check=False)
        suites = ET.parse(report).getroot() if report.exists() else ET.Element("testsuites")
    names = ("tests", "failures", "errors", "skipped")
    found = {name: sum(int(suite.get(name, 0)) for suite in suites) for name in names}
    failed = [case for case in suites.iter("testcase") if case.find("failure") is not None]
    found |= {"failed": [case.get("name") for case in failed]}
    context.keep(found)
    if done.returncode:
        raise SystemExit("The tests failed.")
    return found


def sanitizer(context: Context) -> dict[str, Any]:
    """Run a few toy frames under each tool of compute-sanitizer; some hosts refuse it."""
    steps = str(Path(__file__).parent)
    program = [sys.executable, steps, "toy_frames", "--json", os.devnull]
    if context.emulation:  # the emulated counterpart is tests/decoders/kernel/test_sanitizers.py
        subprocess.run([*program, "--emulation"], check=True)
        return {"status": "skipped", "why": "no compute-sanitizer without a GPU"}
    tool = find_program("compute-sanitizer")
    if tool is None:
        return {"status": "refused", "why": "compute-sanitizer is not installed"}
    found: dict[str, Any] = {}
    names = compute_sanitizer.TOOLS
    for index, name in enumerate(names):
        left = (context.deadline - time.monotonic()) / (len(names) - index)
        found[name] = compute_sanitizer.run(
            [*compute_sanitizer.command(tool, name), *program], left, cwd=ROOT
        )
        context.keep(found)
    statuses = {each["status"] for each in found.values()}
    status = next(s for s in ("failed", "timeout", "ok", "refused") if s in statuses)
    if status == "failed":
        raise SystemExit(f"compute-sanitizer: {found}")
    return found | {"status": status}


def toy_frames(context: Context) -> dict[str, Any]:
    """Decode a prompt and frames of three streams at toy size; compare with the plain decoder."""
    loaded = kernel_models.random_checkpoint(kernel_models.small_config())
    kernel, plain = context.decoder(loaded), context.decoder(loaded, PlainDecoder)
    kernel.launcher.timeout_seconds = PATIENT_SECONDS
    for slot in range(3):
        for decoder in (kernel, plain):
            kernel_models.start(decoder, slot, Sampling(), seed=slot + 1)
    ours, theirs = kernel.step([0, 1, 2], 2), plain.step([0, 1, 2], 2)
    if not (ours.codes == theirs.codes).all():
        raise SystemExit(f"{ours.codes}\nare not\n{theirs.codes}")
    return {"codes": ours.codes.tolist()}


def validate(
    context: Context, name: str, kinds: Sequence[str | None] = (None,), frames: int = 32
) -> dict[str, Any]:
    """Compare the kernel and the graphs with the plain decoder, at the shapes of the model `name`
    on the same device, with each of `kinds` of layers: unchanged (None) or int8.
    """
    loaded = context.load(name)
    reports, passed = {}, True
    found = {"model": loaded.files.name, "reports": reports}
    for weights in kinds:
        args = SimpleNamespace(
            steps=3 if context.toy else frames, tolerance=None, weights=weights, quiet=True
        )
        # Quantised once for all decoders, because each decoder would do it again.
        asked = validate_kernel.with_weights(loaded, weights)
        for backend in (context.backend, Backend("graph", context.device, "")):
            for dtype in (getattr(torch, each) for each in context.dtypes):
                report = validate_kernel.validate_fast(asked, backend, dtype, args)
                print(report, flush=True)
                label = (backend.name, str(dtype), *([weights] if weights else []))
                reports[" ".join(label)] = str(report).splitlines()
                context.keep(found)
                passed = passed and report.passed
                torch.cuda.empty_cache()
    if not passed:
        raise SystemExit("The kernel or the graphs differ from the plain decoder.")
    return found
