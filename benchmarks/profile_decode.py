"""Where a frame of the plain decoder goes: share of each torch operation, and how many calls."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # runs as a script from anywhere

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import common
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.cli import options
from qwen_megakernel.decoders.backends import Backend, default_dtype, make_decoder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.records import Prefill, Sampling

NUM_FRAMES = 4
NUM_ROWS = 12


def main(args: argparse.Namespace) -> int:
    """Profile some frames of one stream."""
    loaded = loading.load(loading.resolve(args.model))
    device = torch.device("cpu")
    dtype = default_dtype(loaded, device)
    decoder = make_decoder(
        loaded,
        Backend("torch", device, ""),
        DecoderSizes(1, max_positions=256, max_text_rows=64, device=device, dtype=dtype),
    )
    hidden = loaded.config.talker.stack.hidden_size
    rows = torch.randn(NUM_ROWS + 1, hidden).to(dtype)
    prefill = Prefill(rows[:-1], rows[:0], rows[-1])
    decoder.prefill(0, prefill, Sampling(), seed=0, part=0)
    decoder.step([0], NUM_FRAMES)  # the first pass brings the weights into memory
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        decoder.step([0], NUM_FRAMES)
    events = [event for event in profiler.key_averages() if event.self_cpu_time_total > 0]
    events.sort(key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    found = {
        **common.header(),
        "model": loaded.files.name,
        "dtype": common.name_of(dtype),
        "frames": NUM_FRAMES,
        "total_ms_per_frame": total / 1000 / NUM_FRAMES,
        "operations": [
            {
                "name": event.key,
                "share": event.self_cpu_time_total / total,
                "calls_per_frame": event.count / NUM_FRAMES,
            }
            for event in events[:12]
        ],
        "calls_per_frame": sum(event.count for event in events) / NUM_FRAMES,
    }
    print(f"{found['total_ms_per_frame']:.1f} ms and {found['calls_per_frame']:.0f} calls a frame")
    for row in found["operations"]:
        print(f"{row['name']:32}{row['share']:7.1%}{row['calls_per_frame']:8.0f} calls")
    common.write_json(args.json, found)
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="random-0.6b-base")
    common.add_result_option(parser)
    options.add_verbosity(parser)
    sys.exit(options.run(main, parser.parse_args()))
