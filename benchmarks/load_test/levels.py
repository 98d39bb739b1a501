"""Send one load after the other, watch the server, and summarise each."""

import argparse
import asyncio
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import psutil

from benchmarks import common
from benchmarks.load_test.speech_client import PLAYABLE_GAP_MS, Heard, SpeechClient
from benchmarks.load_test.workload import arrivals, prompt_order
from qwen_megakernel.errors import SetupError

SAMPLE_EVERY_S = 0.25
FIGURES = ("first_byte_ms", "first_audible_ms", "first_byte_planned_ms", "e2e_ms")


# ---- load --------------------------------------------------------------------------------------


async def open_loop(
    speak: Callable[[str, float], Awaitable[None]], args: argparse.Namespace, rps: float, seed: int
) -> None:
    """Send requests when they are due, whatever the server does, and wait for all answers."""
    times = list(arrivals(seed, rps, args.duration))
    order = prompt_order(seed, len(args.texts), len(times))
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for at, prompt in zip(times, order, strict=True):
            await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
            group.create_task(speak(args.texts[prompt], began + at))


async def closed_loop(
    speak: Callable[[str, float], Awaitable[None]], args: argparse.Namespace, count: int, seed: int
) -> None:
    """Run `count` listeners; each sends its next request as soon as an answer is complete."""
    began = time.perf_counter()

    async def listen(listener: int) -> None:
        order = prompt_order(seed + listener, len(args.texts), len(args.texts))
        turn = 0
        while (now := time.perf_counter()) - began < args.duration:
            await speak(args.texts[order[turn % len(order)]], now)
            turn += 1

    await asyncio.gather(*(listen(listener) for listener in range(count)))


# ---- measuring ---------------------------------------------------------------------------------


async def measure_level(
    client: SpeechClient, args: argparse.Namespace, mode: str, load: float, seed: int
) -> dict[str, Any]:
    """Run one load for `--duration` seconds; return its requests and their summary."""
    found: list[dict[str, Any]] = []
    refused = 0

    async def speak(text: str, planned: float) -> None:
        nonlocal refused
        if client.in_flight >= args.max_in_flight:
            refused += 1
            found.append({"error": f"not sent: {args.max_in_flight} requests in flight"})
            return
        heard: Heard = await client.speak(text, planned)
        found.append(await asyncio.to_thread(heard.figures, client.rate))

    watch = Watch(client, args.pid)
    watcher = asyncio.create_task(watch.run())
    began = time.perf_counter()
    loop = open_loop if mode == "open" else closed_loop
    await loop(speak, args, load, seed)
    wall_s = time.perf_counter() - began
    watcher.cancel()
    await asyncio.wait([watcher])
    if not watcher.cancelled():
        watcher.result()  # the request failed before
    level = summarize(found, wall_s) | {"mode": mode, "load": load}
    return level | watch.peaks() | {"requests": found}


@dataclass
class Watch:
    """Samples the number of requests in flight and the memory of the server."""

    client: SpeechClient
    pid: int | None
    in_flight: list[int] = field(default_factory=list)
    host_mb: list[float] = field(default_factory=list)
    gpu_mb: list[float] = field(default_factory=list)

    async def run(self) -> None:
        """Take samples until cancelled."""
        has_gpu = self.pid is not None and shutil.which("nvidia-smi") is not None
        while True:
            self.in_flight.append(self.client.in_flight)
            if self.pid is not None:
                self.host_mb.append(resident_mb(self.pid))
            if has_gpu:
                self.gpu_mb.append(await asyncio.to_thread(gpu_memory_mb))
            await asyncio.sleep(SAMPLE_EVERY_S)

    def peaks(self) -> dict[str, Any]:
        """Return the largest sample of each kind, and the mean number of requests in flight."""
        return {
            "in_flight_mean": sum(self.in_flight) / max(1, len(self.in_flight)),
            "in_flight_peak": max(self.in_flight, default=0),
            "server_memory_mb": max(self.host_mb, default=None),
            "gpu_memory_mb": max(self.gpu_mb, default=None),
        }


def resident_mb(pid: int) -> float:
    try:
        server = psutil.Process(pid)
        family = [server, *server.children(recursive=True)]
        return sum(process.memory_info().rss for process in family) / 1e6
    except psutil.Error:
        return 0.0


def gpu_memory_mb() -> float:
    """Return the memory in use on all GPUs, by any process."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
    return sum(float(line) for line in done.stdout.split()) * 1.048576


def summarize(found: list[dict[str, Any]], wall_s: float) -> dict[str, Any]:
    """Return counts, shares and percentiles of one level's requests."""
    good = [one for one in found if "error" not in one]
    errors: dict[str, int] = {}
    for one in found:
        if "error" in one:
            errors[one["error"]] = errors.get(one["error"], 0) + 1
    level: dict[str, Any] = {"wall_s": wall_s, "completed": len(good), "errors": errors}
    if not good:
        return level | {"summary": {}}
    playable = sum(one["longest_gap_ms"] <= PLAYABLE_GAP_MS for one in good)
    return level | {
        "xrt": sum(one["audio_s"] for one in good) / wall_s,
        "underrun_share": sum(one["underruns"] > 0 for one in good) / len(good),
        "underrun_100ms_share": sum(one["underruns_100ms"] > 0 for one in good) / len(good),
        "c50_share": playable / len(good),
        "summary": {
            name: common.spread([one[name] for one in good], (50, 95, 99)) for name in FIGURES
        },
    }


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Run every level in turn, each after its own warm-up; return a result object."""
    body = {"response_format": "pcm", "stream_format": "audio", "model": args.model_name}
    body |= {"voice": args.voice, "language": args.language}
    body = {name: value for name, value in body.items() if value is not None} | args.body
    levels = [("open", load) for load in args.rps] + [("closed", n) for n in args.concurrency]
    if args.word_ms is not None:
        del body["stream_format"]  # a field that only HTTP has
    async with SpeechClient(args.url, body, args.api_key, args.timeout, args.word_ms) as client:
        found = common.header() | {
            "model": args.label or await client.model() or "unknown",
            "settings": {"body": body, "prompts": len(args.texts), "seed": args.seed}
            | {name: getattr(args, name) for name in ("duration", "warmup", "timeout", "word_ms")},
            "levels": [],
        }
        first = await client.speak(args.texts[0], time.perf_counter())
        if first.error:
            raise SetupError(
                f"{args.url} did not answer a request for speech: {first.error}",
                hint="Start a server, or name it with --url http://HOST:PORT.",
            )
        for mode, load in levels:
            if args.warmup:
                warm = argparse.Namespace(**vars(args) | {"duration": args.warmup})
                await measure_level(client, warm, mode, load, args.seed + 1_000_000)
            level = await measure_level(client, args, mode, load, args.seed)
            print_level(level, is_first=not found["levels"])
            found["levels"].append(level)
    return found


def print_level(level: dict[str, Any], is_first: bool) -> None:
    """Print one line of the table."""
    if is_first:
        print(
            f"{'load':>10} {'done':>5} {'fail':>5}   {'first byte p50/95/99':>22}   "
            f"{'first audible p50/95/99':>23}   {'end to end p50/95/99':>22}   "
            f"{'underrun':>8} {'c50':>5} {'peak':>4} {'xRT':>6} {'memory':>8}"
        )
    name = f"{level['load']:g} rps" if level["mode"] == "open" else f"{level['load']:g} users"
    failed = sum(level["errors"].values())
    line = f"{name:>10} {level['completed']:>5} {failed:>5}   "
    if level["completed"]:
        for figure, width in (("first_byte_ms", 22), ("first_audible_ms", 23), ("e2e_ms", 22)):
            values = "/".join(f"{level['summary'][figure][p]:.0f}" for p in ("p50", "p95", "p99"))
            line += f"{values:>{width}}   "
        memory = level["server_memory_mb"]
        line += (
            f"{level['underrun_share']:>8.1%} {level['c50_share']:>5.0%} "
            f"{level['in_flight_peak']:>4} {level['xrt']:>6.2f} "
            f"{f'{memory:.0f} MB' if memory else '-':>8}"
        )
    print(line, flush=True)
    for error, count in level["errors"].items():
        print(f"{count:>16} x {error}", file=sys.stderr)
