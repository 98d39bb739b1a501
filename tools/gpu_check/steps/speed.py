"""Steps that time the kernel, and beside it the graphs and what the memory and a barrier give."""

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median_high
from typing import Any

import torch

from qwen_megakernel.choices import INT8_STACKS
from qwen_megakernel.decoders import int8
from qwen_megakernel.decoders.graph.decoder import GraphDecoder
from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.decoders.kernel.decoder import KernelDecoder
from qwen_megakernel.native import compiling
from tools.gpu_check.kernel_timer import PROMPT_POSITIONS, ForcedStreams, KernelTimer
from tools.gpu_check.steps.context import Context

STREAM_COUNTS = (1, 4, 8, 16)
KERNEL_STREAMS = (1, 2, 4, 8, 16)
GRAPH_STREAMS = (*KERNEL_STREAMS, 32, 64)
FRAME_MS = 80
MAX_POSITIONS = PROMPT_POSITIONS + 256


def microbenchmark(context: Context) -> dict[str, Any]:
    """gpu_bench/: barriers and L2 in traffic, exchanges, bandwidths, the skeleton of a frame."""
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "gpu_bench")
        arch = None if context.toy else context.arch
        subprocess.run([*bench_command(arch), "-o", program], check=True)
        done = subprocess.run([program], capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    if done.returncode:
        raise SystemExit(f"gpu_bench ended with {done.returncode}.")
    return {"rows": [json.loads(line) for line in done.stdout.splitlines()]}


def bench_command(arch: str | None) -> list[str]:
    """What compiles gpu_bench/ for a GPU, or (None) for the emulation; without its output."""
    source = str(Path(__file__).parents[1] / "gpu_bench" / "gpu_bench.cu")
    if arch:
        return [build.find_nvcc(), "-std=c++17", "-O3", f"-arch={arch}", source]
    units = sorted((compiling.source_folder() / "emulation").glob("*.cpp"))
    command = [compiling.find_cxx(), *build.CXX_FLAGS, "-x", "c++", source]
    return [*command, *map(str, units), "-lpthread"]


def frame_times(context: Context) -> dict[str, Any]:
    """Milliseconds of a frame, sampling inside, for 1 to 16 streams of every model."""
    return _frame_times(context, (None,), STREAM_COUNTS)


def int8_frame_times(context: Context) -> dict[str, Any]:
    """Milliseconds of a frame with int8 layers, beside those with the layers as they are."""
    return _frame_times(context, (None, *INT8_STACKS), (1,) if context.toy else (1, 16))


def _frame_times(
    context: Context, kinds: Sequence[str | None], stream_counts: Sequence[int]
) -> dict[str, Any]:
    """Of every model, with the layers as they are (None) or int8."""
    timer = KernelTimer(context.device, toy=context.toy)
    copy = timer.copy_gb_per_s()
    rows, layers = [], {}
    found = {"copy_gb_per_s": copy, "rows": rows, "layers": layers}
    for name, weights in product(context.models, kinds):
        loaded = context.load(name)
        if weights:
            loaded = replace(loaded, talker=int8.quantize(loaded.talker, weights))
        sizes = {"num_slots": max(stream_counts), "max_positions": MAX_POSITIONS}
        decoder = context.decoder(loaded, dtype=context.dtype, **sizes)
        layers[f"{name} {weights}" if weights else name] = timer.layers(decoder)
        for streams in stream_counts:
            precision = weights or ("fp32" if context.toy else "bf16")
            row = timer.frame(decoder, streams, precision)
            row |= {"model": name, "streams": streams, "weights": precision}
            row["gb_per_s"] = row["mb_per_frame"] / row["ms_per_frame"]
            row["share_of_copy"] = row["gb_per_s"] / copy
            print(row, flush=True)
            rows.append(row)
            context.keep(found)
        del decoder
        torch.cuda.empty_cache()
    return found


def batch_curve(context: Context) -> dict[str, Any]:
    """Milliseconds a frame, host included, by streams: the kernel and the graphs."""
    rows = []
    for name in context.models:
        loaded = context.load(name)
        for kind, counts in ((KernelDecoder, KERNEL_STREAMS), (GraphDecoder, GRAPH_STREAMS)):
            for streams in counts[:2] if context.toy else counts:
                # The graphs decode every slot there is: as many slots as streams.
                sizes = {"num_slots": streams, "max_positions": MAX_POSITIONS}
                decoder = context.decoder(loaded, kind, context.dtype, **sizes)
                forced = ForcedStreams(decoder, streams, context.toy)
                times = forced.wall_ms(3 if context.toy else 20)[1:]  # the first step warms up
                ms = median_high(times) / forced.FRAMES
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
                context.keep({"rows": rows})
                del decoder, forced  # which has the decoder, too
                torch.cuda.empty_cache()
    return {"rows": rows}
