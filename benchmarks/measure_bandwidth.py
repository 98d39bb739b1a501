"""Decoding against the memory: weights read a frame, at what part of the measured bandwidth."""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # runs as a script from anywhere

import torch

from benchmarks import common, roofline
from qwen_megakernel.cli import options

NUM_BYTES = 512 * 2**20
NUM_READS = 20


def read_bandwidth(device: torch.device) -> float:
    """GB/s of the best of several sums over memory that no cache holds."""
    data = torch.zeros(NUM_BYTES // 8, dtype=torch.int64, device=device)
    best = float("inf")
    for _ in range(NUM_READS):
        started = time.perf_counter()
        data.sum().item()
        best = min(best, time.perf_counter() - started)
    return NUM_BYTES / best / 1e9


def main(args: argparse.Namespace) -> int:
    """Measure and report."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        # Its own thread, which ends: an OpenMP pool left behind here would slow the engine's.
        bandwidth = thread.submit(read_bandwidth, torch.device(args.device or "cpu")).result()
    with options.engine_from_args(args) as tts:
        for index in range(args.warmup):
            common.run_once(tts, args, index)
        runs = [common.run_once(tts, args, index) for index in range(args.runs)]
        size = roofline.frame_weights(tts.config).total * tts.dtype.itemsize
        found = common.result(tts, runs, {"text": args.text, "warmup": args.warmup})
    floor_ms = 1000 * size / (bandwidth * 1e9)
    decode_ms = found["summary"]["decode_ms_per_frame"]["p50"]
    found |= {
        "read_bandwidth_gb_s": bandwidth,
        "weight_bytes_per_frame": size,
        "floor_ms_per_frame": floor_ms,
        "times_the_floor": decode_ms / floor_ms,
    }
    common.print_table(found, ["decode_ms_per_frame", "vocoder_ms_per_frame"])
    print(
        f"{size / 1e9:.2f} GB of weights a frame, read at {bandwidth:.1f} GB/s at best: "
        f"{floor_ms:.1f} ms; decoded in {decode_ms:.1f} ms, {decode_ms / floor_ms:.2f} times that"
    )
    common.write_json(args.json, found)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    common.add_arguments(parser, runs=3, warmup=1)
    sys.exit(options.run(main, parser.parse_args()))
