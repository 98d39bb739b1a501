"""Measure one engine's speed and memory: speeches, streams side by side, memory, operations."""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
import torch.profiler

from benchmarks import common
from qwen_megakernel import TTSEngine
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.checkpoint.frame_weights import frame_weights
from qwen_megakernel.cli import options
from qwen_megakernel.decoders.backends import Backend, default_dtype, make_decoder
from qwen_megakernel.decoders.slots import DecoderSizes
from qwen_megakernel.speech_options import Sampling

# The figures of `common.METRICS` that each measurement of single speeches shows.
SHOWN = {
    "ttfc": ["first_frame_ms", "first_chunk_ms", "first_audible_ms", "leading_silence_ms"],
    "rtf": ["rtf", "total_ms", "audio_s", "max_gap_ms", "underruns", "underruns_100ms"],
    "tok-s": [
        *("frames_per_s", "codes_per_s"),
        *("decode_ms_per_frame", "vocoder_ms_per_frame", "overhead_ms_per_frame"),
    ],
    "e2e": list(common.METRICS),
}
READ_BYTES, NUM_READS = 512 * 2**20, 20
PROFILED_FRAMES, PROFILED_ROWS = 4, 12


@common.takes(common.add_arguments)
def speech(args: argparse.Namespace) -> int:
    """Speak one speech after another; report the figures of `SHOWN`."""
    found = common.measure(args)
    common.print_table(found, SHOWN[args.name])
    common.write_json(args.json, found)
    common.plot(args.plot, found, SHOWN[args.name])
    return 0


# ---- streams side by side ------------------------------------------------------------------------


@common.takes(common.add_arguments, common.count("--streams", 8, "number of speeches at once"))
def streams(args: argparse.Namespace) -> int:
    """Speak many streams at once: aggregate speed, and what the engine itself costs per frame."""
    with options.engine_from_args(args, num_slots=args.streams) as tts:
        runs = common.repeat(args, lambda index: speak_together(tts, args, index))
        found = common.result(tts, runs, {"text": args.text, "streams": args.streams})
    common.print_table(found)
    common.write_json(args.json, found)
    common.plot(args.plot, found, ["rtf", "overhead_ms_per_frame"])
    return 0


def speak_together(tts: TTSEngine, args: argparse.Namespace, index: int) -> dict[str, float]:
    """Speak `--streams` utterances side by side and read them all."""
    how = options.speech_options(args, tts)
    before, started = tts.spent_ms, time.perf_counter()
    streams = []
    for number in range(args.streams):
        how["seed"] = index * args.streams + number
        streams.append(tts.stream(args.text, **how))
    for stream in streams:
        list(stream)
    wall_ms = 1000 * (time.perf_counter() - started)
    spent = {stage: total - before[stage] for stage, total in tts.spent_ms.items()}
    frames = sum(len(stream.codes) for stream in streams)
    return {
        "frames": frames,
        "total_ms": wall_ms,
        "audio_s": frames * tts.seconds_per_frame,
        "rtf": wall_ms / 1000 / (frames * tts.seconds_per_frame),
        "frames_per_s": 1000 * frames / wall_ms,
        "decode_ms_per_frame": spent["decode"] / frames,
        "vocoder_ms_per_frame": spent["vocoder"] / frames,
        "overhead_ms_per_frame": (wall_ms - sum(spent.values())) / frames,
    }


# ---- memory --------------------------------------------------------------------------------------


@common.takes(
    options.add_model_options,
    common.option("--streams", "number of slots of the engine; each of them speaks", int, 1),
    common.option("--max-frames", "length of each speech in frames", int, 20),
)
def memory(args: argparse.Namespace) -> int:
    """Measure the load time and the peak memory of an engine with `--streams` slots. It is the only
    engine of the process, so that the peak is its own.
    """
    with common.timed_engine(args, num_slots=args.streams) as (tts, load_s):
        streams = [
            tts.stream("Hello.", voice=tts.default_voice, seed=index, max_frames=args.max_frames)
            for index in range(args.streams)
        ]
        for stream in streams:
            list(stream)
        peaks = common.peak_memory_mb()
        found = common.engine_header(tts) | {
            "settings": {"streams": args.streams, "max_frames": args.max_frames},
            "rows": [{"streams": args.streams, "load_s": load_s, "peak_memory_mb": peaks}],
        }
    print(f"{args.streams} slots: loaded in {load_s:.1f} s, peak {peaks} MB")
    common.write_json(args.json, found)
    return 0


# ---- bandwidth -----------------------------------------------------------------------------------


@common.takes(partial(common.add_arguments, runs=3, warmup=1))
def bandwidth(args: argparse.Namespace) -> int:
    """Compare decoding with the memory: bytes read per frame over the measured bandwidth."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        # In a thread that ends, because an OpenMP pool left here would slow the engine's.
        measured = thread.submit(read_bandwidth, torch.device(args.device or "cpu")).result()
    with options.engine_from_args(args) as tts:
        runs = common.repeat(args, lambda index: common.run_once(tts, args, index))
        widths = (each.itemsize for each in (tts.dtype, tts.predictor_dtype or tts.dtype))
        size = frame_weights(tts.config).num_bytes(*widths)
        found = common.result(tts, runs, {"text": args.text, "warmup": args.warmup})
    floor_ms = 1000 * size / (measured * 1e9)
    decode_ms = found["summary"]["decode_ms_per_frame"]["p50"]
    found |= {
        "read_bandwidth_gb_s": measured,
        "weight_bytes_per_frame": size,
        "floor_ms_per_frame": floor_ms,
        "times_the_floor": decode_ms / floor_ms,
    }
    common.print_table(found, ["decode_ms_per_frame", "vocoder_ms_per_frame"])
    print(
        f"{size / 1e9:.2f} GB of weights a frame, read at {measured:.1f} GB/s at best: "
        f"{floor_ms:.1f} ms; decoded in {decode_ms:.1f} ms, {decode_ms / floor_ms:.2f} times that"
    )
    common.write_json(args.json, found)
    return 0


def read_bandwidth(device: torch.device) -> float:
    """Return the best GB/s of several sums over a buffer that is larger than caches."""
    data = torch.zeros(READ_BYTES // 8, dtype=torch.int64, device=device)
    best = float("inf")
    for _ in range(NUM_READS):
        started = time.perf_counter()
        data.sum().item()
        best = min(best, time.perf_counter() - started)
    return READ_BYTES / best / 1e9


# ---- operations ----------------------------------------------------------------------------------


@common.takes(
    common.option("--model", "name or folder of the model", str, "random-0.6b-base"),
    options.add_verbosity,
)
def profile(args: argparse.Namespace) -> int:
    """Profile a frame of the plain decoder: share and number of calls of each torch operation."""
    loaded = loading.load(loading.resolve(args.model))
    device = torch.device("cpu")
    backend = Backend("torch", device, "")
    dtype = default_dtype(loaded, backend)
    decoder = make_decoder(
        loaded, backend, DecoderSizes(1, max_positions=256, device=device, dtype=dtype)
    )
    prompt = common.random_prompt(decoder, PROFILED_ROWS)
    decoder.prefill(0, prompt, Sampling(), seed=0, part=0)
    decoder.step([0], PROFILED_FRAMES)  # the first pass reads the weights into memory
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        decoder.step([0], PROFILED_FRAMES)
    events = [event for event in profiler.key_averages() if event.self_cpu_time_total > 0]
    events.sort(key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    found = {
        **common.header(),
        "model": loaded.files.name,
        "dtype": common.name_of(dtype),
        "threads": torch.get_num_threads(),
        "frames": PROFILED_FRAMES,
        "total_ms_per_frame": total / 1000 / PROFILED_FRAMES,
        "operations": [
            {
                "name": event.key,
                "share": event.self_cpu_time_total / total,
                "calls_per_frame": event.count / PROFILED_FRAMES,
            }
            for event in events[:12]
        ],
        "calls_per_frame": sum(event.count for event in events) / PROFILED_FRAMES,
    }
    print(f"{found['total_ms_per_frame']:.1f} ms and {found['calls_per_frame']:.0f} calls a frame")
    for row in found["operations"]:
        print(f"{row['name']:32}{row['share']:7.1%}{row['calls_per_frame']:8.0f} calls")
    common.write_json(args.json, found)
    return 0
