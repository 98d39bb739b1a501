"""The vocoders of one checkpoint on a CPU: milliseconds a frame, in turns within one process.

"direct" is the native one without transforms along time. After PyTorch the others wait: its threads
spin for milliseconds on the cores that they want.
"""

import argparse
import time

import torch

from benchmarks import common
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.cli import options
from qwen_megakernel.native import cpu_threads
from qwen_megakernel.native.cpu_library import CpuPool, choose_set, open_library
from qwen_megakernel.vocoder.cpu.vocoder import CpuVocoder
from qwen_megakernel.vocoder.vocoder import Vocoder

REST_SECONDS = 0.02


@common.takes(
    options.add_model_options,
    common.option("--chunks", nargs="+", type=int, default=[1, 4, 8], help="frames of a chunk"),
    common.count("--streams", 1, "streams that share each chunk"),
    common.count("--runs", 15, "chunks of each length that are counted"),
)
def vocoders(args: argparse.Namespace) -> int:
    """Measure all of them and report."""
    loaded = loading.load(loading.resolve(args.model or "random-0.6b"))
    num_threads = args.threads or cpu_threads.available_cores()
    cpu_threads.limit_this_thread(num_threads)
    codec = loaded.codec_config, loaded.codec_decoder
    pool = CpuPool(open_library(), num_threads)
    made = {
        "torch": Vocoder(*codec),
        "direct": CpuVocoder(*codec, pool, is_direct=True),
        "native": CpuVocoder(*codec, pool),
    }
    rows = []
    for num_frames in args.chunks:
        spent: dict[str, list[float]] = {name: [] for name in made}
        states = {n: [v.new_state() for _ in range(args.streams)] for n, v in made.items()}
        shape = (args.streams, num_frames, codec[0].decoder.num_quantizers)
        for run in range(args.runs + 2):
            codes = torch.randint(codec[0].decoder.codebook_size, shape)
            for name, vocoder in made.items():
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
                f"at best {found['best']:.2f}"
            )
    facts = {"threads": num_threads, "streams": args.streams, "instruction_set": choose_set()}
    common.write_json(args.json, common.model_header(loaded.files, **facts) | {"rows": rows})
    return 0
