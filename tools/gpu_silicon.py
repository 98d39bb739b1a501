#!/usr/bin/env python3
"""Further steps of gpu_check.py, for more than one call: endurance, batches, listeners, peers.

Run alone as gpu_steps.py is: gpu_silicon.py STEP --json FILE [--emulation | --toy]. A step's result
holds `rows`, which benchmarks/pages.py turns into docs/performance.md.
"""

import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import gpu_steps
import kernel_models
import torch
from gpu_steps import BIG, ROOT, SMALL, TOY, Steps

from qwen_megakernel.checkpoint.config import parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config
from qwen_megakernel.choices import INT8_STACKS
from qwen_megakernel.decoders.graph.decoder import GraphDecoder
from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.decoders.kernel.decoder import KernelDecoder
from qwen_megakernel.errors import KernelTimeout, QwenTTSError
from qwen_megakernel.records import Sampling
from tools.kernel_timer import PROMPT_POSITIONS

KERNEL_STREAMS = (1, 2, 4, 8, 16)
GRAPH_STREAMS = (*KERNEL_STREAMS, 32, 64)
RATES, RATE_SECONDS = "1,10,20,40,80", 6
LISTENERS, LISTEN_SECONDS = "64,128,256", 4  # by the clock: whoever has begun hears to the end
MEMORY_STREAMS = (1, 8, 64)
INT8_FRAMES = 16  # to compare: twice as many decoders as in another validation
FRAME_MS = 80


class SiliconSteps(Steps):
    """The steps."""

    # ---- what a fresh machine lacks

    def engine_build(self) -> dict[str, Any]:
        """Compile what the steps below need and write the checkpoints; nothing where they are."""
        names = (TOY,) if self.toy else (SMALL, BIG)
        dtype = "float32" if self.toy else "bfloat16"
        jobs = {
            name: (parse_model_config(model_config(name)), build.Target(self.arch, dtype))
            for name in names
        }
        small = kernel_models.small_config(), build.Target(self.arch, "float32")
        return self._build(names, jobs | {"small": small})

    # ---- endurance

    def million(self) -> dict[str, Any]:
        """1,000,000 launches of one layer beside a vocoder-like load."""
        gpu_steps.NUM_LAUNCHES = 1_000_000
        return self.endurance()

    def abort(self) -> dict[str, Any]:
        """Cancelled from another thread at any moment, and timed out on purpose: no frame is lost,
        and what comes next is right."""
        loaded = kernel_models.random_checkpoint(kernel_models.small_config())
        decoder = self._decoder(loaded)
        frames, rounds = 12, 3 if self.toy else 300
        draw = random.Random(1)
        expected, cut_short = None, 0
        for _ in range(rounds):
            kernel_models.start(decoder, 0, Sampling(), seed=1)
            codes: list[list[int]] = []
            drawn = 4
            while len(codes) < frames:
                delay = draw.uniform(0, 0.02 if self.toy else 0.0005)
                canceller = threading.Timer(delay, decoder.cancel)
                if drawn:  # else the cancel came before the step, and nothing would ever be drawn
                    canceller.start()
                step = decoder.step([0], 4)
                drawn = step.num_frames[0]
                if canceller.is_alive():
                    canceller.join()
                codes += step.codes[0, :drawn].tolist()
                cut_short += drawn < 4
                if step.ended[0]:
                    break
            expected = expected or codes[:frames]
            if codes[:frames] != expected:
                raise SystemExit("A cancelled stream went on with other codes.")
        decoder.launcher.clear_cancel()  # of the last timer, if it came too late
        expired = self._expire(decoder)
        return {"rounds": rounds, "steps_cut_short": cut_short, "timeouts": expired}

    def _expire(self, decoder: KernelDecoder) -> int:
        """Make barriers expire, as if a block never arrived; each time the next stream is right."""
        patience, expired = decoder.launcher.timeout_seconds, 0
        kernel_models.start(decoder, 1, Sampling(), seed=2)
        expected = decoder.step([1], 4).codes
        for _ in range(2 if self.toy else 20):
            kernel_models.start(decoder, 0, Sampling(), seed=1)
            decoder.launcher.timeout_seconds = 0.001
            decoder._buffers.control[0] = -1
            try:
                decoder.step([0], 1)
            except KernelTimeout:
                expired += 1
            decoder.launcher.timeout_seconds = patience
            kernel_models.start(decoder, 1, Sampling(), seed=2)
            if not (decoder.step([1], 4).codes == expected).all():
                raise SystemExit("After a timeout the codes differ.")
        if not expired:
            raise SystemExit("No barrier expired, though a block was missing.")
        return expired

    def two_engines(self) -> dict[str, Any]:
        """Two decoders on one device, each on a stream and a thread of its own (by emulation they
        take turns): the codes of each alone, or a clean error, never others."""
        loaded = kernel_models.random_checkpoint(kernel_models.small_config())
        decoders = [self._decoder(loaded) for _ in range(2)]
        expected = [self._run_one(decoder, seed) for seed, decoder in enumerate(decoders, 1)]
        rounds, outcomes = 2 if self.toy else 200, [[], []]

        def work(index: int) -> None:
            stream = torch.cuda.Stream() if self.device.type == "cuda" else None
            with torch.cuda.stream(stream):
                for _ in range(rounds):
                    try:
                        same = self._run_one(decoders[index], index + 1) == expected[index]
                        outcomes[index].append("same" if same else "DIFFERENT")
                    except (QwenTTSError, RuntimeError) as error:
                        outcomes[index].append(type(error).__name__)

        threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
            if self.emulation:
                thread.join()
        for thread in threads:
            thread.join()
        found = dict(Counter(outcomes[0] + outcomes[1]))
        if "DIFFERENT" in found or sum(found.values()) != 2 * rounds:
            raise SystemExit(f"Two engines disturbed each other: {found}")
        return {"rounds": rounds, "took_turns": self.emulation, "outcomes": found}

    def _run_one(self, decoder: KernelDecoder, seed: int) -> list[list[int]]:
        kernel_models.start(decoder, 0, Sampling(), seed=seed)
        return decoder.step([0], 8).codes[0].tolist()

    # ---- speed

    def batch_curve(self) -> dict[str, Any]:
        """Milliseconds a frame, host included, by streams: the kernel and the graphs."""
        rows = []
        dtype = torch.float32 if self.toy else torch.bfloat16
        for name in (TOY,) if self.toy else (SMALL, BIG):
            loaded = self._load(name)
            for kind, counts in ((KernelDecoder, KERNEL_STREAMS), (GraphDecoder, GRAPH_STREAMS)):
                for streams in counts[:2] if self.toy else counts:
                    # The graphs decode every slot there is: as many slots as streams.
                    decoder = kind(
                        loaded,
                        num_slots=streams,
                        max_positions=PROMPT_POSITIONS + 256,
                        max_text_rows=64,
                        device=self.device,
                        dtype=dtype,
                    )
                    ms = self._step_ms(decoder, streams)
                    rows.append(
                        {
                            "model": name,
                            "backend": "kernel" if kind is KernelDecoder else "graph",
                            "streams": streams,
                            "ms_per_frame": ms,
                            "times_real_time": streams * FRAME_MS / ms,
                        }
                    )
                    print(rows[-1], flush=True)
                    self.keep({"rows": rows})
                    del decoder
                    torch.cuda.empty_cache()
        return {"rows": rows}

    def _step_ms(self, decoder: Any, streams: int) -> float:
        """Median over steps of four forced frames, so that no stream ends."""
        slots, frames = list(range(streams)), 4
        talker = decoder.config.talker
        top = min(talker.suppressed_from, decoder.config.predictor.vocab_size)
        generator = torch.Generator().manual_seed(1)
        for slot in slots:
            positions = 8 if self.toy else PROMPT_POSITIONS
            kernel_models.start(decoder, slot, Sampling(), seed=slot + 1, positions=positions)
        times = []
        for _ in range(3 if self.toy else 20):
            shape = (streams, frames, talker.num_code_groups)
            forced = torch.randint(0, top, shape, generator=generator)
            started = time.perf_counter()
            decoder.step(slots, frames, forced)
            times.append(1000 * (time.perf_counter() - started) / frames)
        return sorted(times[1:])[len(times[1:]) // 2]

    # ---- int8 layers

    def int8_build(self) -> dict[str, Any]:
        """Compile what the steps below need and write the checkpoints."""
        names = (TOY,) if self.toy else (SMALL, BIG)
        dtypes = ("float32",) if self.toy else ("float32", "bfloat16")
        jobs = {
            f"{name} {weights} {dtype}": (
                parse_model_config(model_config(name)),
                build.Target(self.arch, dtype, int8=INT8_STACKS.get(weights, ())),
            )
            for name, weights, dtype in product(names, ("bf16", *INT8_STACKS), dtypes)
        }
        return self._build(names, jobs)

    def int8_frame_times(self) -> dict[str, Any]:
        """Milliseconds of a frame with int8 layers, beside those with the layers as they are."""
        streams = (1,) if self.toy else (1, 16)
        return self._frame_times((None, *INT8_STACKS), streams)

    def int8_validate_small(self) -> dict[str, Any]:
        """int8 layers at the 0.6B shapes against the plain decoder's."""
        return self._validate(SMALL, tuple(INT8_STACKS), INT8_FRAMES)

    def int8_validate_big(self) -> dict[str, Any]:
        """The 1.7B shapes."""
        return self._validate(BIG, tuple(INT8_STACKS), INT8_FRAMES)

    # ---- what a listener meets: benchmarks/measure.py, each time in a process of its own

    def first_sound(self) -> dict[str, Any]:
        """Text to first sound by stage; the first request against the tenth."""
        return self._scripts("first-sound", ["--runs", "3" if self.toy else "20"])

    def open_loop(self) -> dict[str, Any]:
        """First sound under requests that come when they like."""
        load = ["--rps", "4" if self.toy else RATES]
        load += ["--duration", "1" if self.toy else str(RATE_SECONDS)]
        return self._scripts("open-loop", load + self._many())

    def capacity(self) -> dict[str, Any]:
        """Listeners who play what they hear."""
        load = ["--listeners", "2" if self.toy else LISTENERS]
        load += ["--duration", "1" if self.toy else str(LISTEN_SECONDS)]
        return self._scripts("open-loop", load + self._many())

    def _many(self) -> list[str]:
        few = ["--streams", "4", "--max-frames", "4"]
        return few if self.toy else ["--streams", "256"]

    def peers(self) -> dict[str, Any]:
        """Our decoders and the official package on one checkpoint."""
        frames = ["--frames", "4" if self.toy else "80"]
        return self._scripts("peers", frames, backend=False)

    def memory(self) -> dict[str, Any]:
        """Load time and memory for 1, 8 and 64 slots."""
        few = ["--max-frames", "2"] if self.toy else []
        counts = MEMORY_STREAMS[:1] if self.toy else MEMORY_STREAMS
        return self._scripts("memory", *(["--streams", str(n), *few] for n in counts))

    def texts(self) -> dict[str, Any]:
        """Short, medium and long texts; first packets of 1 and 3 frames; the system's own voice."""
        runs, frames = ("1", "4") if self.toy else ("5", "200")
        return self._scripts("texts", ["--runs", runs, "--max-frames", frames])

    def _scripts(self, name: str, *options: list[str], backend: bool = True) -> dict[str, Any]:
        """Rows of a measurement, run once for each of `options` and each model.

        Of one that fails, or whose time is up, what it has written until then is kept.
        """
        rows, results = [], []
        kept = {"rows": rows, "runs": results}
        for each, model in product(options, (TOY,) if self.toy else (SMALL, BIG)):
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "result.json"
                command = [sys.executable, "benchmarks/measure.py", name, "--model", model, *each]
                command += ["--json", str(file), "--quiet"]
                if backend:  # a CPU's own fast one, or the kernel
                    command += ["--backend", "torch" if self.emulation else "kernel"]
                try:
                    left = max(0.0, self.deadline - time.monotonic())
                    code = subprocess.run(command, cwd=ROOT, check=False, timeout=left).returncode
                except subprocess.TimeoutExpired:
                    code = None
                found = self._written(file)
            rows += [{"model": model} | row for row in found.pop("rows")]
            results.append(found)
            self.keep(kept)
            if code is None:
                return kept | {"status": "timeout"}
            if code:
                raise SystemExit(f"{name} for {model} ended with {code}.")
        return kept

    def _written(self, file: Path) -> dict[str, Any]:
        """A measurement's result; no rows where there is none, or half of it."""
        try:
            return json.loads(file.read_text())
        except (OSError, ValueError):
            return {"rows": []}


STEPS = {
    "engine_build": SiliconSteps.engine_build,
    "million": SiliconSteps.million,
    "abort": SiliconSteps.abort,
    "two_engines": SiliconSteps.two_engines,
    "batch_curve": SiliconSteps.batch_curve,
    "int8_build": SiliconSteps.int8_build,
    "int8_frame_times": SiliconSteps.int8_frame_times,
    "int8_validate_0.6b": SiliconSteps.int8_validate_small,
    "int8_validate_1.7b": SiliconSteps.int8_validate_big,
    "first_sound": SiliconSteps.first_sound,
    "open_loop": SiliconSteps.open_loop,
    "capacity": SiliconSteps.capacity,
    "peers": SiliconSteps.peers,
    "memory": SiliconSteps.memory,
    "texts": SiliconSteps.texts,
}


if __name__ == "__main__":
    gpu_steps.run(STEPS, SiliconSteps)
