#!/usr/bin/env python3
"""The steps of gpu_check.py, each run alone: gpu_steps.py STEP --json FILE [--emulation | --toy].

A step prints its log, writes what it found and exits with 1 when something is wrong. Imports only
what a bare machine has: no audio library, no Pipecat, pytest only where it is installed.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

import kernel_models  # noqa: E402 - toy models of the kernel's tests
import torch  # noqa: E402

import validate_kernel  # noqa: E402 - the script, for its comparison
from qwen_megakernel.checkpoint import loading  # noqa: E402
from qwen_megakernel.checkpoint.config import ModelConfig, parse_model_config  # noqa: E402
from qwen_megakernel.checkpoint.random_configs import model_config  # noqa: E402
from qwen_megakernel.choices import INT8_STACKS  # noqa: E402
from qwen_megakernel.decoders import int8  # noqa: E402
from qwen_megakernel.decoders.frame_decoder import Backend  # noqa: E402
from qwen_megakernel.decoders.kernel import build as kernel_build  # noqa: E402
from qwen_megakernel.decoders.kernel.decoder import KernelDecoder  # noqa: E402
from qwen_megakernel.decoders.plain import PlainDecoder  # noqa: E402
from qwen_megakernel.records import Sampling  # noqa: E402
from qwen_megakernel.validation import compare  # noqa: E402
from tools import compute_sanitizer  # noqa: E402
from tools.kernel_timer import PROMPT_POSITIONS, KernelTimer  # noqa: E402

BIG, SMALL = "random-1.7b", "random-0.6b-base"
TOY, TOY_PROJECTED = "tiny-random", "tiny-random-1.7b"
STREAM_COUNTS = (1, 4, 8, 16)
NUM_LAUNCHES = 100_000
PATIENT_SECONDS = 120.0  # of a barrier under a sanitizer


class Steps:
    """The steps; `toy` shrinks them to what a CPU does in seconds, `emulation` runs that there.

    `toy` alone is for tools/fake_gpu.
    """

    def __init__(self, emulation: bool, deadline: float, output: Path, *, toy: bool = False):
        self.emulation, self.toy = emulation, emulation or toy
        self.deadline, self._output = deadline, output
        self.device = torch.device("cpu" if emulation else "cuda")
        self.backend = Backend("emulation" if emulation else "kernel", self.device, "")
        self.arch = None
        if not emulation:
            capability = torch.cuda.get_device_capability()
            self.arch = kernel_build.arch_of(capability, torch.cuda.get_device_name())

    def keep(self, found: dict[str, Any]) -> None:
        """Write what there is so far: it stays if this step fails or its time is up."""
        self._output.write_text(json.dumps(found))

    # ---- correctness

    def build(self) -> dict[str, Any]:
        """Compile every library the later steps need and write the random checkpoints."""
        names = (TOY,) if self.toy else (TOY, TOY_PROJECTED, SMALL, BIG)
        configs = {name: parse_model_config(model_config(name)) for name in names}
        shapes = {"small": {}} if self.toy else kernel_models.SHAPES
        for name, changes in shapes.items():
            configs[name] = kernel_models.small_config(**changes)
        dtypes = ("float32",) if self.toy else ("float32", "bfloat16")
        jobs = {
            f"{name} {dtype}": (configs[name], kernel_build.Target(self.arch, dtype))
            for name, dtype in product(configs, dtypes)
        }
        for (weights, stacks), dtype in product(INT8_STACKS.items(), dtypes):
            if not self.toy:  # what tests/decoders/kernel takes with int8 layers
                target = kernel_build.Target(self.arch, dtype, int8=stacks)
                jobs[f"projected {weights} {dtype}"] = configs["projected"], target
        return self._build(names, jobs)

    def _build(
        self, names: Sequence[str], jobs: dict[str, tuple[ModelConfig, kernel_build.Target]]
    ) -> dict[str, Any]:
        """Write the checkpoints `names`, compile `jobs`, all at once."""

        def compile_one(job: tuple[ModelConfig, kernel_build.Target]) -> dict[str, Any]:
            started = time.monotonic()
            library = kernel_build.build(*job)
            log = library.with_name("build.log").read_text()
            ptxas = [line.strip() for line in log.splitlines() if "Used" in line]
            return {"seconds": round(time.monotonic() - started, 1), "ptxas": ptxas}

        with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
            written = [pool.submit(loading.resolve, name) for name in names]
            compiled = dict(zip(jobs, pool.map(compile_one, jobs.values()), strict=True))
            for each in written:
                each.result()
        return {"torch": torch.__version__, "arch": self.arch, "libraries": compiled}

    def tests(self) -> dict[str, Any]:
        """The kernel's test suite on this device."""
        if importlib.util.find_spec("pytest") is None:
            return {"status": "skipped", "why": "no pytest here; the validations are what is left"}
        command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider"]
        command += ["-k", "test_eos_ends"] if self.emulation else ["-m", "gpu"]
        # The libraries of the build step, not those of tests/decoders/conftest.py.
        cache = {"QWEN_MEGAKERNEL_BUILD_CACHE": str(kernel_build.build_cache())}
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            done = subprocess.run(
                [
                    *command,
                    f"--junitxml={report}",
                    "tests/decoders/kernel",
                    "tests/decoders/graph",
                    "tests/vocoder/test_graph_vocoder.py",
                ],
                cwd=ROOT,
                env=os.environ | cache,
                check=False,
            )
            suites = ET.parse(report).getroot() if report.exists() else ET.Element("testsuites")
        names = ("tests", "failures", "errors", "skipped")
        found = {name: sum(int(suite.get(name, 0)) for suite in suites) for name in names}
        failed = [case for case in suites.iter("testcase") if case.find("failure") is not None]
        found |= {"failed": [case.get("name") for case in failed]}
        self.keep(found)
        if done.returncode:
            raise SystemExit("The tests failed.")
        return found

    def sanitizer(self) -> dict[str, Any]:
        """A few toy frames under each tool of compute-sanitizer; some hosts refuse it."""
        program = [sys.executable, __file__, "toy_frames", "--json", os.devnull]
        if self.emulation:  # the emulated counterpart is tests/decoders/kernel/test_sanitizers.py
            subprocess.run([*program, "--emulation"], check=True)
            return {"status": "skipped", "why": "no compute-sanitizer without a GPU"}
        tool = compute_sanitizer.find()
        if tool is None:
            return {"status": "refused", "why": "compute-sanitizer is not installed"}
        found: dict[str, Any] = {}
        names = compute_sanitizer.TOOLS
        for index, name in enumerate(names):
            left = (self.deadline - time.monotonic()) / (len(names) - index)
            found[name] = compute_sanitizer.run(
                [*compute_sanitizer.command(tool, name), *program], left, cwd=ROOT
            )
            self.keep(found)
        statuses = {each["status"] for each in found.values()}
        status = next(s for s in ("failed", "timeout", "ok", "refused") if s in statuses)
        if status == "failed":
            raise SystemExit(f"compute-sanitizer: {found}")
        return found | {"status": status}

    def toy_frames(self) -> dict[str, Any]:
        """Prompt and frames of three streams at toy size, compared with the plain decoder."""
        loaded = kernel_models.random_checkpoint(kernel_models.small_config())
        kernel, plain = self._decoder(loaded), self._decoder(loaded, plain=True)
        kernel.launcher.timeout_seconds = PATIENT_SECONDS
        for slot in range(3):
            for decoder in (kernel, plain):
                kernel_models.start(decoder, slot, Sampling(), seed=slot + 1)
        ours, theirs = kernel.step([0, 1, 2], 2), plain.step([0, 1, 2], 2)
        if not (ours.codes == theirs.codes).all():
            raise SystemExit(f"{ours.codes}\nare not\n{theirs.codes}")
        return {"codes": ours.codes.tolist()}

    def validate_small(self) -> dict[str, Any]:
        """The 0.6B shapes against the plain decoder on the same device."""
        return self._validate(SMALL)

    def validate_big(self) -> dict[str, Any]:
        """The 1.7B shapes."""
        return self._validate(BIG)

    def _validate(
        self, name: str, kinds: Sequence[str | None] = (None,), frames: int = 32
    ) -> dict[str, Any]:
        """With the layers as they are (None) or int8."""
        loaded = self._load(name)
        dtypes = (torch.float32,) if self.toy else (torch.float32, torch.bfloat16)
        reports, passed = {}, True
        found = {"model": loaded.files.name, "reports": reports}
        for weights in kinds:
            args = SimpleNamespace(steps=3 if self.toy else frames, tolerance=None, weights=weights)
            # Once for all decoders: each would do it again.
            asked = validate_kernel.with_weights(loaded, weights)
            for backend in (self.backend, Backend("graph", self.device, "")):
                for dtype in dtypes:
                    text, good = validate_kernel.validate_fast(asked, backend, dtype, args)
                    print(text, flush=True)
                    label = (backend.name, str(dtype), *([weights] if weights else []))
                    reports[" ".join(label)] = text.splitlines()
                    self.keep(found)
                    passed = passed and good
                    torch.cuda.empty_cache()
        if not passed:
            raise SystemExit("The kernel or the graphs differ from the plain decoder.")
        return found

    def endurance(self) -> dict[str, Any]:
        """Launches without a stall or another bit, while something like a vocoder runs beside."""
        loaded = kernel_models.random_checkpoint(kernel_models.small_config())
        decoder = self._decoder(loaded)
        goal = 40 if self.toy else NUM_LAUNCHES
        frames, expected, launches, slowest = 10 if self.toy else 200, None, 0, 0.0
        started = time.monotonic()
        with self._vocoder_like_load() as count_load:
            while launches < goal and time.monotonic() < self.deadline:
                kernel_models.start(decoder, 0, Sampling(), seed=1)
                codes = []
                for _ in range(frames):
                    before = time.monotonic()
                    step = decoder.step([0], 1)
                    slowest = max(slowest, time.monotonic() - before)
                    codes.append(step.codes[0, 0].tolist())
                    launches += 1
                    if step.ended[0]:
                        break
                expected = expected or codes
                if codes != expected:
                    raise SystemExit(f"After {launches} launches the codes differ.")
        return {
            # No failure, and not what was asked for either.
            "status": "ok" if launches >= goal else "short",
            "launches": launches,
            "goal": goal,
            "seconds": round(time.monotonic() - started, 1),
            "slowest_step_ms": round(1000 * slowest, 2),
            "load_rounds_beside": count_load(),
        }

    @contextlib.contextmanager
    def _vocoder_like_load(self) -> Iterator[Callable[[], int]]:
        """Convolutions on another stream, from another thread, until the block ends."""
        stop, rounds = threading.Event(), [0]
        size = 256 if self.toy else 4096

        def work() -> None:
            stream = torch.cuda.Stream() if self.device.type == "cuda" else None
            with torch.inference_mode(), torch.cuda.stream(stream):
                x = torch.randn(1, 32 if self.toy else 512, size, device=self.device)
                weight = torch.randn(x.shape[1], x.shape[1], 7, device=self.device) / 60
                while not stop.is_set():
                    for _ in range(10):
                        x = torch.tanh(torch.nn.functional.conv1d(x, weight, padding=3))
                    if stream:
                        stream.synchronize()
                    rounds[0] += 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield lambda: rounds[0]
        finally:
            stop.set()
            thread.join()

    # ---- speed

    def microbenchmark(self) -> dict[str, Any]:
        """tools/gpu_bench.cu: bandwidths, barriers, the skeleton of a frame."""
        source = Path(__file__).with_name("gpu_bench.cu")
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "gpu_bench"
            if self.toy:
                units = sorted((kernel_build.source_folder() / "emulation").glob("*.cpp"))
                command = [
                    kernel_build.find_cxx(),
                    *kernel_build.CXX_FLAGS,
                    "-x",
                    "c++",
                    str(source),
                ]
                command += [*map(str, units), "-lpthread", "-o", str(program)]
            else:
                flags = ["-std=c++17", "-O3", f"-arch={self.arch}"]
                command = [kernel_build.find_nvcc(), *flags, str(source), "-o", str(program)]
            subprocess.run(command, check=True)
            done = subprocess.run([program], capture_output=True, text=True, check=False)
        print(done.stdout, done.stderr)
        if done.returncode:
            raise SystemExit(f"gpu_bench ended with {done.returncode}.")
        return {"rows": [json.loads(line) for line in done.stdout.splitlines()]}

    def frame_times(self) -> dict[str, Any]:
        """Milliseconds of a frame, sampling inside, for 1 to 16 streams of every model."""
        return self._frame_times((None,), STREAM_COUNTS)

    def _frame_times(
        self, kinds: Sequence[str | None], stream_counts: Sequence[int]
    ) -> dict[str, Any]:
        """Of every model, with the layers as they are (None) or int8."""
        timer = KernelTimer(self.device, toy=self.toy)
        copy = timer.copy_gb_per_s()
        rows, layers = [], {}
        for name, weights in product((TOY,) if self.toy else (SMALL, BIG), kinds):
            loaded = self._load(name)
            if weights:
                loaded = replace(loaded, talker=int8.quantize(loaded.talker, weights))
            decoder = self._decoder(
                loaded,
                dtype=torch.float32 if self.toy else torch.bfloat16,
                num_slots=max(stream_counts),
                max_positions=PROMPT_POSITIONS + 256,
            )
            layers[f"{name} {weights}" if weights else name] = timer.layers(decoder)
            for streams in stream_counts:
                precision = weights or ("fp32" if self.toy else "bf16")
                row = timer.frame(decoder, streams, precision)
                row |= {"model": name, "streams": streams, "weights": precision}
                row["gb_per_s"] = row["mb_per_frame"] / row["ms_per_frame"]
                row["share_of_copy"] = row["gb_per_s"] / copy
                print(row, flush=True)
                rows.append(row)
                self.keep({"copy_gb_per_s": copy, "rows": rows, "layers": layers})
            del decoder
            torch.cuda.empty_cache()
        return {"copy_gb_per_s": copy, "rows": rows, "layers": layers}

    def benchmark(self) -> dict[str, Any]:
        """benchmark.py, and many streams: what a user of the engine sees."""
        model = TOY if self.toy else SMALL
        common = ["--model", model, "--backend", self.backend.name, "--seed", "1"]
        common += ["--runs", "1" if self.toy else "3", "--warmup", "1"]
        common += ["--max-frames", "4" if self.toy else "60"]
        commands = {"benchmark.py": ["benchmark.py"]}
        for streams in (2,) if self.toy else STREAM_COUNTS[1:]:
            script = ["benchmarks/measure.py", "streams", "--streams", str(streams)]
            commands[f"{streams} streams"] = script
        found = {}
        for name, command in commands.items():
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "result.json"
                subprocess.run(
                    [sys.executable, *command, *common, "--json", str(file)], cwd=ROOT, check=True
                )
                found[name] = json.loads(file.read_text())
            self.keep(found)
        return found

    # ---- shared

    def _load(self, name: str) -> loading.Checkpoint:
        return loading.load(loading.resolve(TOY if self.toy else name))

    def _decoder(
        self, loaded: Any, *, plain: bool = False, dtype: torch.dtype = torch.float32, **sizes: int
    ) -> Any:
        sizes = {"num_slots": 3, "max_positions": 256, "max_text_rows": 64} | sizes
        if plain:  # on the CPU: under a sanitizer every launch is slow
            return PlainDecoder(loaded, device=torch.device("cpu"), dtype=dtype, **sizes)
        return KernelDecoder(loaded, device=self.device, dtype=dtype, **sizes)


STEPS = {
    "build": Steps.build,
    "validate_0.6b": Steps.validate_small,
    "validate_1.7b": Steps.validate_big,
    "frame_times": Steps.frame_times,
    "tests": Steps.tests,
    "microbenchmark": Steps.microbenchmark,
    "endurance": Steps.endurance,
    "benchmark": Steps.benchmark,
    "sanitizer": Steps.sanitizer,
    "toy_frames": Steps.toy_frames,  # what the sanitizer step runs
}


def run(steps: dict[str, Callable[[Any], dict[str, Any]]], kind: type[Steps]) -> None:
    """Run one of `steps` as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=steps)
    parser.add_argument("--json", required=True, metavar="FILE")
    parser.add_argument("--emulation", action="store_true")
    parser.add_argument("--toy", action="store_true")
    parser.add_argument(
        "--until", type=float, help="when to finish early, on the monotonic clock (time.monotonic)"
    )
    args = parser.parse_args()
    compare.forbid_reduced_precision()
    deadline = time.monotonic() + 600 if args.until is None else args.until
    doing = kind(args.emulation, deadline, Path(args.json), toy=args.toy)
    doing.keep(steps[args.step](doing))


if __name__ == "__main__":
    run(STEPS, Steps)
