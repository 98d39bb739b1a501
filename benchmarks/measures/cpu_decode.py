"""Compare the CPU decoder with the memory and with PyTorch, alternately in one process.

A frame reads all weights, so memory sets a floor: a frame's bytes divided by the bandwidth, which
is measured between the frames.
"""

import argparse
import contextlib
import gc
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import common
from benchmarks.machine import Memory
from benchmarks.measures.load import endless
from qwen_megakernel import TTSEngine
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.checkpoint.loading import Checkpoint
from qwen_megakernel.cli import parsing
from qwen_megakernel.decoders.backends import choose_backend, default_dtype, make_decoder
from qwen_megakernel.decoders.frame_decoder import FrameDecoder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.native import cpu_threads
from qwen_megakernel.speech_options import Sampling

SLOTS = (1, 2, 4, 8)
PROMPTS = (10, 110)
AS_STORED = "stored"  # weights as the checkpoint has them


@common.takes(
    common.option("--models", "models to decode with", str, ["demo-voice"], nargs="+"),
    common.option(
        "--weights",
        "forms of weights to compare: stored, int8, int8-rows, ...",
        str,
        [AS_STORED],
        nargs="+",
    ),
    common.option("--threads", "number of threads (default: one per core)", parsing.at_least(1)),
    common.count("--rounds", 15, "number of turns that each decoder has"),
    common.option("--without-torch", "measure the native decoder only", bool),
    common.add_plain_options,
)
def cpu_decode(args: argparse.Namespace) -> int:
    """Measure every model with every form of weights; write the result file after each."""
    rows: list[dict[str, Any]] = []
    found = common.header() | {"settings": {"rounds": args.rounds}, "rows": rows}
    threads = args.threads or cpu_threads.available_cores()
    memory = Memory(threads)
    for model in args.models:
        for weights in args.weights:
            for row in compare(args, memory, model, weights):
                rows.append(row)
                tell(row)
                common.write_json(args.json, found)
    return 0


def compare(
    args: argparse.Namespace, memory: Memory, model: str, weights: str
) -> list[dict[str, Any]]:
    """Return a row for each decoder and number of streams."""
    loaded = endless(loading.load(loading.resolve(model)))
    form = None if weights == AS_STORED else weights
    made = {"cpu": Made("cpu", loaded, form, max(SLOTS), args.threads)}
    if not args.without_torch:
        made["torch"] = Made("torch", loaded, form, 1, args.threads)
    bandwidth: list[float] = []
    frames: dict[tuple[str, int], list[float]] = {}
    prompts: dict[tuple[str, int], list[float]] = {}
    for turn in range(args.rounds + 1):  # the first turn is a warm-up
        bandwidth.append(memory.gb_s())
        for name, each in made.items():
            for length in PROMPTS:
                prompts.setdefault((name, length), []).append(each.prompt_ms(length, turn))
            for num_streams in SLOTS if name == "cpu" else (1,):
                frames.setdefault((name, num_streams), []).append(each.frame_ms(num_streams))
    best = common.spread(bandwidth[1:])
    rows = []
    for (name, num_streams), times in frames.items():
        each, ms = made[name], common.spread(times[1:])
        num_bytes = weight_bytes(made["cpu"].decoder)
        floor = 1e3 * num_bytes / (best["p50"] * 1e9)
        row = {"model": model, "is_synthetic": loaded.files.is_synthetic, "weights": weights}
        row |= {"backend": name, "streams": num_streams, "threads": each.num_threads}
        row |= common.native_set(name) | {
            "dtype": common.name_of(each.decoder.dtype),
            "ms_per_frame": ms,
        }
        row |= {"weight_bytes_per_frame": num_bytes}
        row |= {"read_bandwidth_gb_s": best, "floor_ms_per_frame": floor}
        row |= {"times_the_floor": ms["p50"] / floor}
        if num_streams == 1:
            row |= {"load_s": each.load_s, "private_mb": each.private_mb}
            row |= {"load_and_first_frame_s": each.first_frame_s}
            for length in PROMPTS:
                row[f"prompt_{length}_ms"] = common.spread(prompts[name, length][1:])
        rows.append(row)
    return rows


SPEECH = ("first_frame_ms", "first_chunk_ms", "rtf", "decode_ms_per_frame", "vocoder_ms_per_frame")


@common.takes(partial(common.add_arguments, runs=5, warmup=1))
def cpu_speech(args: argparse.Namespace) -> int:
    """Speak alternately with an engine for each backend of a CPU."""
    loaded = endless(loading.load(loading.resolve(args.model or "demo-voice")))
    settings = {"text": args.text, "runs": args.runs, "weights": args.weights or AS_STORED}
    with contextlib.ExitStack() as stack:
        how = {"weights": args.weights, "num_threads": args.threads}
        engines = [
            stack.enter_context(TTSEngine(loaded, backend=name, **how)) for name in ("cpu", "torch")
        ]
        runs: list[list[dict[str, Any]]] = [[], []]
        for index in range(args.warmup + args.runs):
            for engine, its_runs in zip(engines, runs, strict=True):
                its_runs.append(common.run_once(engine, args, index))
        rows = [
            common.engine_header(engine)
            | {name: common.spread([run[name] for run in its[args.warmup :]]) for name in SPEECH}
            for engine, its in zip(engines, runs, strict=True)
        ]
    for row in rows:
        figures = ", ".join(f"{name} {row[name]['p50']:.2f}" for name in SPEECH)
        print(f"{row['backend']:>5}: {figures}")
    common.write_json(args.json, common.header() | {"settings": settings, "rows": rows})
    return 0


def weight_bytes(decoder: Any) -> int:
    """Return the bytes of weights that one frame of a `CpuDecoder` reads."""
    passes = decoder.config.talker.num_code_groups - 1  # of the code predictor, each with one head
    return sum(
        size * (passes if "code_predictor." in name and "lm_head." not in name else 1)
        for name, size in decoder.packed_sizes.items()
    )


class Made:
    """A decoder, and measurements of its load time, its memory, its prompts and its frames."""

    def __init__(
        self,
        backend: str,
        loaded: Checkpoint,
        form: str | None,
        num_slots: int,
        threads: int | None,
    ):
        chosen = choose_backend(backend, "cpu", form)
        sizes = DecoderSizes(
            num_slots=num_slots,
            max_positions=1024,
            device=chosen.device,
            dtype=default_dtype(loaded, chosen),
            max_frames=800,
        )
        before, started = private_bytes(), time.perf_counter()
        self.decoder: FrameDecoder = make_decoder(loaded, chosen, sizes, form, threads)
        self.load_s = time.perf_counter() - started
        self.num_threads = self.decoder.num_threads or torch.get_num_threads()
        # A user waits for this too: PyTorch maps the file and reads it in its first frame.
        prompt = common.random_prompt(self.decoder, PROMPTS[0], seed=500)
        self.decoder.prefill(0, prompt, Sampling(), seed=0, part=0)
        self.decoder.step([0], 1)
        self.first_frame_s = time.perf_counter() - started
        gc.collect()
        packed = sum(getattr(self.decoder, "packed_sizes", {}).values())
        self.private_mb = (private_bytes() - before - packed) / 1e6

    def prompt_ms(self, length: int, turn: int) -> float:
        """Return the milliseconds of a prompt whose beginning is not cached."""
        prompt = common.random_prompt(self.decoder, length, seed=length + 1000 * (turn + 1))
        started = time.perf_counter()
        self.decoder.prefill(0, prompt, Sampling(), seed=turn, part=0)
        return 1000 * (time.perf_counter() - started)

    def frame_ms(self, num_streams: int) -> float:
        """Return the milliseconds of a frame of `num_streams` streams, the second after their
        prompts."""
        for slot in range(num_streams):
            prompt = common.random_prompt(self.decoder, PROMPTS[0], seed=slot)
            self.decoder.prefill(slot, prompt, Sampling(), seed=slot, part=0)
        self.decoder.step(range(num_streams), 1)
        started = time.perf_counter()
        result = self.decoder.step(range(num_streams), 1)
        spent = 1000 * (time.perf_counter() - started)
        if any(result.ended):
            raise SystemExit(
                "A stream ended before the measured frame, so there is nothing to measure."
            )
        return spent


def private_bytes() -> int:
    """Return the bytes of this process's memory that no file backs."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    return 0


def tell(row: dict[str, Any]) -> None:
    print(
        f"{row['model']:>12} {row['weights']:>8} {row['backend']:>5} {row['streams']} streams "
        f"{row['ms_per_frame']['p50']:8.2f} ms a frame, {row['times_the_floor']:.2f} times the "
        f"memory's floor at {row['read_bandwidth_gb_s']['p50']:.1f} GB/s",
        flush=True,
    )
