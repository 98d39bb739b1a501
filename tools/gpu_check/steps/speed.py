"""Steps that time the kernel and its variants and, to compare, the graphs, memory and a barrier."""

import json
import shlex
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median_high
from typing import Any

import kernel_models
import torch
from torch import Tensor

from benchmarks import common
from qwen_megakernel.choices import INT8_STACKS
from qwen_megakernel.decoders import quantization
from qwen_megakernel.decoders.graph.decoder import GraphDecoder
from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.decoders.kernel.decoder import KernelDecoder
from qwen_megakernel.native import compiling
from qwen_megakernel.speech_options import Sampling
from qwen_megakernel.vocoder.graph_vocoder import GraphVocoder
from qwen_megakernel.vocoder.vocoder import Vocoder
from tools.gpu_check.kernel_timer import PROMPT_POSITIONS, ForcedStreams, KernelTimer
from tools.gpu_check.steps.context import Context
from tools.gpu_check.variants import chosen

STREAM_COUNTS = (1, 4, 8, 16)
KERNEL_STREAMS = (1, 2, 4, 8, 16, 32)
GRAPH_STREAMS = (1, 4, 16, 32, 64, 128, 256, 512)
VARIANT_STREAMS = (1, 16)
PROMPTS = (10, 30, 110, 200)
VOCODER_CHUNKS = ((1, 1), (1, 4), (16, 4), (16, 12))  # streams, frames
FRAME_MS = 80
MAX_POSITIONS = PROMPT_POSITIONS + 256


def microbenchmark(context: Context) -> dict[str, Any]:
    """Run gpu_bench/: barriers and L2 in traffic, exchanges, bandwidths, a frame's skeleton."""
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
    """Return the command that compiles gpu_bench/ for a GPU, or (None) for the emulation."""
    source = str(Path(__file__).parents[1] / "gpu_bench" / "gpu_bench.cu")
    if arch:
        return [build.find_nvcc(), "-std=c++17", "-O3", f"-arch={arch}", source]
    units = sorted((compiling.source_folder() / "emulation").glob("*.cpp"))
    command = [*shlex.split(compiling.find_cxx()), *build.CXX_FLAGS, "-x", "c++", source]
    return [*command, *map(str, units), "-lpthread"]


def frame_times(context: Context) -> dict[str, Any]:
    """Time a frame, sampling inside, for 1 to 16 streams of every model."""
    return _frame_times(context, (None,), STREAM_COUNTS)


def int8_frame_times(context: Context) -> dict[str, Any]:
    """Time a frame with int8 layers, and compare with unquantised layers."""
    return _frame_times(context, (None, *INT8_STACKS), (1,) if context.toy else (1, 16))


def _frame_times(
    context: Context, kinds: Sequence[str | None], stream_counts: Sequence[int]
) -> dict[str, Any]:
    """Time frames of every model, with unchanged layers (None) or int8 layers."""
    timer = KernelTimer(context.device, toy=context.toy)
    copy = timer.copy_gb_per_s()
    rows, layers = [], {}
    found = {"copy_gb_per_s": copy, "rows": rows, "layers": layers}
    for name, weights in product(context.models, kinds):
        loaded = context.load(name)
        if weights:
            loaded = replace(loaded, talker=quantization.quantize(loaded.talker, weights))
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


def variants(context: Context) -> dict[str, Any]:
    """Time a frame for each of `VARIANTS`, and compare its codes with the kernel's.

    Codes may differ: a variant with another number of warps adds in another order.
    """
    timer, rows = KernelTimer(context.device, toy=context.toy), []
    counts = VARIANT_STREAMS[:1] if context.toy else VARIANT_STREAMS
    sizes = {"num_slots": max(counts), "max_positions": MAX_POSITIONS}
    for name in context.models:
        loaded, codes = context.load(name), None
        for variant, defines in chosen(context.toy):
            decoder = context.decoder(loaded, dtype=context.dtype, defines=defines, **sizes)
            kernel_models.start(decoder, 0, Sampling(), seed=1)
            drawn = decoder.step([0], 4).codes.tolist()
            codes = codes or drawn
            for streams in counts:
                row = timer.frame(decoder, streams, "fp32" if context.toy else "bf16")
                row |= {"model": name, "variant": variant, "streams": streams}
                rows.append(row | {"same_codes": drawn == codes})
                print(rows[-1], flush=True)
                context.keep({"rows": rows})
            del decoder
            torch.cuda.empty_cache()
    return {"rows": rows}


def prompt_times(context: Context) -> dict[str, Any]:
    """Time a prompt, on the kernel and as a graph: until it is enqueued, and until its hidden state
    is ready.
    """
    rows = []
    for name, kind in product(context.models, (KernelDecoder, GraphDecoder)):
        sizes = {"num_slots": 1, "max_positions": MAX_POSITIONS}
        decoder = context.decoder(context.load(name), kind, context.dtype, **sizes)
        for positions in PROMPTS[:1] if context.toy else PROMPTS:
            enqueued, done = prompt_ms(decoder, positions, 3 if context.toy else 20)
            rows.append(
                {
                    "model": name,
                    "backend": "kernel" if kind is KernelDecoder else "graph",
                    "positions": positions,
                    "enqueued_ms": median_high(enqueued),
                    "ms": median_high(done),
                    "best_ms": min(done),
                }
            )
            print(rows[-1], flush=True)
            context.keep({"rows": rows})
        del decoder
        torch.cuda.empty_cache()
    return {"rows": rows}


def prompt_ms(decoder: Any, positions: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds until a call returns, and until the device has finished."""
    prompt = common.random_prompt(decoder, positions)
    enqueued, done = [], []
    for _ in range(rounds + 2):  # the first ones warm up
        started = time.perf_counter()
        decoder.prefill(0, prompt, Sampling(), seed=1, part=0)
        enqueued.append(1000 * (time.perf_counter() - started))
        if decoder.device.type == "cuda":
            torch.cuda.synchronize(decoder.device)
        done.append(1000 * (time.perf_counter() - started))
    decoder.step([0], 1)  # this raises an error if the prompts failed
    return enqueued[2:], done[2:]


def vocoder_times(context: Context) -> dict[str, Any]:
    """Time a chunk of the vocoder with products in float32 and in TF32, and measure how much the
    samples of TF32 differ from those of float32."""
    loaded = context.load(context.models[0])  # the speech tokenizer of both released sizes
    codec = loaded.codec_config.decoder
    draw = torch.Generator().manual_seed(1)
    rows: list[dict[str, Any]] = []
    for streams, frames in VOCODER_CHUNKS[:2] if context.toy else VOCODER_CHUNKS:
        shape = (streams, frames, codec.num_quantizers)
        codes = torch.randint(codec.codebook_size, shape, generator=draw)
        exact = None
        for products, precision in (("float32", "highest"), ("TF32", "high")):
            torch.set_float32_matmul_precision(precision)
            torch.backends.cudnn.allow_tf32 = precision == "high"
            # A recorded graph keeps the precision of its products.
            vocoder = GraphVocoder(loaded.codec_config, loaded.codec_decoder, context.device)
            samples, times = chunk_ms(vocoder, codes, 3 if context.toy else 30)
            exact = samples if exact is None else exact
            noise = (samples - exact).square().mean().sqrt() / exact.square().mean().sqrt()
            row = {"streams": streams, "frames": frames, "products": products}
            row |= {"ms": median_high(times), "best_ms": min(times)}
            rows.append(row | {"relative_rms_error": float(noise)})
            print(rows[-1], flush=True)
            context.keep({"rows": rows})
    return {"rows": rows}


def chunk_ms(vocoder: Vocoder, codes: Tensor, rounds: int) -> tuple[Tensor, list[float]]:
    """Return the samples of a first chunk, and the ms of each chunk after the warm-up.

    Args:
        codes: [num_streams, num_frames, num_quantizers] integers, the codes of every chunk.
    """
    states = [vocoder.new_state() for _ in codes]
    first, times = vocoder.step(codes, states).double().cpu(), []
    for _ in range(rounds + 2):  # the first ones warm up
        started = time.perf_counter()
        vocoder.step(codes, states)
        if vocoder.device.type == "cuda":
            torch.cuda.synchronize(vocoder.device)
        times.append(1000 * (time.perf_counter() - started))
    return first, times[2:]


def batch_curve(context: Context) -> dict[str, Any]:
    """Time a frame, host included, by streams: the kernel and the graphs."""
    rows = []
    for name in context.models:
        loaded = context.load(name)
        for kind, counts in ((KernelDecoder, KERNEL_STREAMS), (GraphDecoder, GRAPH_STREAMS)):
            for streams in counts[:2] if context.toy else counts:
                # The graphs decode every slot, so there are as many slots as streams.
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
                del decoder, forced  # `forced` refers to the decoder, too
                torch.cuda.empty_cache()
    return {"rows": rows}
