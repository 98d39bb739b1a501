"""Measure the vocoders of one checkpoint on a CPU: their time, and what weights in float16 cost.

Times are in milliseconds per frame, between decoding. "direct" is the native vocoder without
transforms along time. The frames of every chunk are drawn before it is decoded, as in a speech, so
that the vocoder's weights have left the caches; memory is read between the rounds. A pause follows
every chunk, because PyTorch's threads spin for milliseconds on the cores that the next vocoder
needs.
"""

import argparse
import math
import time

import numpy as np
import torch

from benchmarks import common
from benchmarks.machine import Memory
from benchmarks.measures.cpu_decode import Made
from benchmarks.measures.load import endless
from qwen_megakernel import TTSEngine
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.choices import VOCODER_WEIGHTS
from qwen_megakernel.cli import options
from qwen_megakernel.native import cpu_threads
from qwen_megakernel.native.cpu_library import CpuPool, choose_set, open_library
from qwen_megakernel.vocoder.cpu.vocoder import CpuVocoder
from qwen_megakernel.vocoder.vocoder import Vocoder

REST_SECONDS = 0.02


@common.takes(
    options.add_model_options,
    common.option("--chunks", "numbers of frames in a chunk", int, [1, 4, 8], nargs="+"),
    common.count("--streams", 1, "number of streams that share each chunk"),
    common.count("--runs", 15, "number of chunks of each length whose figures count"),
)
def vocoders(args: argparse.Namespace) -> int:
    """Measure all vocoders and report."""
    loaded = endless(loading.load(loading.resolve(args.model or "random-0.6b")))
    num_threads = args.threads or cpu_threads.available_cores()
    cpu_threads.limit_this_thread(num_threads)
    codec = loaded.codec_config, loaded.codec_decoder
    drawn = Made("cpu", loaded, args.weights, args.streams, num_threads)
    memory, bandwidth = Memory(num_threads), []
    made = {
        "torch": Vocoder(*codec),
        "direct": CpuVocoder(*codec, drawn.decoder.pool, is_direct=True),
        "native": CpuVocoder(*codec, drawn.decoder.pool),
    }
    rows = []
    for num_frames in args.chunks:
        spent: dict[str, list[float]] = {name: [] for name in made}
        states = {n: [v.new_state() for _ in range(args.streams)] for n, v in made.items()}
        shape = (args.streams, num_frames, codec[0].decoder.num_quantizers)
        for run in range(args.runs + 2):
            bandwidth.append(memory.gb_s())
            codes = torch.randint(codec[0].decoder.codebook_size, shape)
            for name, vocoder in made.items():
                for _ in range(num_frames):
                    drawn.frame_ms(args.streams)
                started = time.perf_counter()
                vocoder.step(codes, states[name])
                took = time.perf_counter() - started
                if run >= 2:  # the first ones touch new memory
                    spent[name].append(1000 * took / (num_frames * args.streams))
                time.sleep(REST_SECONDS)
        for name, values in spent.items():
            found = common.spread(values) | {"best": min(values)}
            rows.append({"vocoder": name, "chunk_frames": num_frames, "ms_per_frame": found})
            print(
                f"{name:>7}, chunks of {num_frames:>2}: {found['p50']:6.2f} ms a frame, "
                f"at best {found['best']:.2f}",
                flush=True,
            )
    facts = {
        "threads": num_threads,
        "streams": args.streams,
        "instruction_set": choose_set(),
        "weights": args.weights or "stored",
        "read_bandwidth_gb_s": common.spread(bandwidth),
    }
    common.write_json(args.json, common.model_header(loaded.files, **facts) | {"rows": rows})
    return 0


@common.takes(
    common.option("--model", "model that speaks, and whose vocoder is measured", str, "demo-voice"),
    common.count("--max-frames", 250, "longest speech in frames"),
    common.add_plain_options,
)
def precision(args: argparse.Namespace) -> int:
    """Compare samples of the native vocoder with those of PyTorch's in float64.

    The weights get random bits behind those that float16 has, because demo-voice's file has none.
    """
    loaded = loading.load(loading.resolve(args.model))
    with TTSEngine(loaded, backend="cpu", warmup=False) as tts:
        voice = tts.voices[0] if tts.voices else None
        codes = tts.synthesize(common.TEXT, voice=voice, seed=1, max_frames=args.max_frames).codes
    generator = torch.Generator().manual_seed(1)
    for weight in loaded.codec_decoder.values():
        weight *= 1 + 2**-10 * (torch.rand(weight.shape, generator=generator) - 0.5)
    codec = loaded.codec_config, loaded.codec_decoder
    exact = Vocoder(*codec, dtype=torch.float64).decode(codes)
    pool, rows = CpuPool(open_library(), cpu_threads.available_cores()), []
    for form in VOCODER_WEIGHTS:
        vocoder = CpuVocoder(*codec, pool, is_half=form == "float16")
        error = vocoder.decode(codes) - exact
        ratio = np.square(exact).sum() / np.square(error).sum()
        row = {"weights": form, "packed_mb": vocoder.packed.nbytes / 1e6}
        row |= {"signal_to_noise_db": 10 * math.log10(ratio)}
        rows.append(row | {"largest_error": float(np.abs(error).max())})
        print(", ".join(f"{name} {value}" for name, value in rows[-1].items()))
    facts = common.native_set("cpu") | {"frames": len(codes), "rows": rows}
    common.write_json(args.json, common.model_header(loaded.files, **facts))
    return 0
