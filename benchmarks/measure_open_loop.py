"""Many listeners in process: requests that come when they like, or listeners who play as they hear.

python benchmarks/measure_open_loop.py --rps 1,10,20         open loop, Poisson arrivals
python benchmarks/measure_open_loop.py --listeners 8,16      each plays one after another

Lengths are drawn (load_test/workload.py), so the end token is masked: its row of the codec head is
zero, which puts it far below the 50 best. Sampling is the real one. First audio counts from the
call and from the planned arrival; a run is an underrun when a player with no buffer, or 100 ms,
would stop.
"""

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # runs as a script from anywhere

from benchmarks import common
from benchmarks.load_test import workload
from qwen_megakernel import TTSEngine, audio
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.cli import options

LEAD_SECONDS = 1.0  # a listener's player takes chunks this long before it needs them


@dataclass(frozen=True, slots=True)
class Heard:
    """One request, in milliseconds since its planned arrival."""

    sent_ms: float
    chunk_ms: list[float]
    chunk_audio_ms: list[float]
    num_frames: int

    def underruns(self, buffer_ms: float) -> int:
        """Times a player runs dry."""
        return len(audio.playback_gaps(self.chunk_ms, self.chunk_audio_ms, buffer_ms))


def endless(loaded: loading.Checkpoint) -> loading.Checkpoint:
    """The same without an end token within reach of sampling."""
    head = loaded.talker["codec_head.weight"].clone()
    head[loaded.config.talker.codec_eos_id] = 0
    return replace(loaded, talker=loaded.talker | {"codec_head.weight": head})


async def speak(
    tts: TTSEngine, args: argparse.Namespace, index: int, planned: float, *, paced: bool
) -> Heard:
    """Request number `index`, read to its end."""
    times: list[float] = []
    durations: list[float] = []
    started = time.perf_counter()
    num_frames = workload.num_frames(args.seed, index)
    stream = tts.stream(
        workload.PROMPTS[index % len(workload.PROMPTS)],
        voice=tts.default_voice,
        seed=index,
        max_frames=min(num_frames, args.max_frames or num_frames),
    )
    async for chunk in stream:
        if not chunk.num_frames:
            continue
        times.append(1000 * (time.perf_counter() - planned))
        durations.append(1000 * len(chunk.samples) / tts.sample_rate)
        if paced:
            played_until = planned + (times[0] + sum(durations)) / 1000
            await asyncio.sleep(max(0.0, played_until - LEAD_SECONDS - time.perf_counter()))
    return Heard(1000 * (started - planned), times, durations, len(stream.codes))


async def open_loop(tts: TTSEngine, args: argparse.Namespace, rps: float) -> list[Heard]:
    """Requests at their planned times, whether or not earlier ones are done."""
    begin, tasks = time.perf_counter() + 0.05, []
    for index, at in enumerate(workload.arrivals(args.seed, rps, args.duration)):
        await asyncio.sleep(max(0.0, begin + at - time.perf_counter()))
        tasks.append(asyncio.create_task(speak(tts, args, index, begin + at, paced=False)))
    return list(await asyncio.gather(*tasks))


async def listen(tts: TTSEngine, args: argparse.Namespace, listeners: int) -> list[Heard]:
    """So many listeners, each with the next request as soon as the last has been played."""
    heard: list[Heard] = []
    end = time.perf_counter() + args.duration

    async def listener(number: int) -> None:
        index = number
        while True:
            heard.append(await speak(tts, args, index, time.perf_counter(), paced=True))
            index += listeners
            if time.perf_counter() > end:
                return

    await asyncio.gather(*(listener(number) for number in range(listeners)))
    return heard


def row(load_name: str, value: float, heard: list[Heard], seconds: float) -> dict[str, Any]:
    """Figures of one load."""
    frames = sum(each.num_frames for each in heard)
    audio_s = sum(sum(each.chunk_audio_ms) for each in heard) / 1000
    first = [each.chunk_ms[0] - each.sent_ms for each in heard]
    planned = [each.chunk_ms[0] for each in heard]
    return {
        load_name: value,
        "requests": len(heard),
        "frames": frames,
        "first_chunk_ms": common.spread(first),
        "first_chunk_planned_ms": common.spread(planned),
        "underruns": sum(each.underruns(0) > 0 for each in heard) / len(heard),
        f"underruns_{common.CLIENT_BUFFER_MS}ms": sum(
            each.underruns(common.CLIENT_BUFFER_MS) > 0 for each in heard
        )
        / len(heard),
        "times_real_time": audio_s / seconds,
    }


def main(args: argparse.Namespace) -> int:
    """Measure every load and report; the result file is written after each."""
    name = args.model or "random-0.6b"
    loaded = endless(loading.load(loading.resolve(name)))
    rows = []
    settings = {"num_slots": args.streams, "backend": args.backend, "device": args.device}
    with TTSEngine(loaded, dtype=args.dtype, weights=args.weights, **settings) as tts:
        loads = [("rps", value, open_loop) for value in args.rps]
        loads += [("listeners", value, listen) for value in args.listeners]
        result = common.engine_header(tts) | {
            "settings": {"streams": args.streams, "duration_s": args.duration, "seed": args.seed},
            "rows": rows,
        }
        for load_name, value, run in loads:
            started = time.perf_counter()
            heard = asyncio.run(run(tts, args, value))
            found = row(load_name, value, heard, time.perf_counter() - started)
            rows.append(found)
            result["peak_memory_mb"] = common.peak_memory_mb()
            common.write_json(args.json, result)
            first = found["first_chunk_ms"]
            print(
                f"{load_name} {value:g}: {found['requests']} requests, first chunk p50 "
                f"{first['p50']:.1f} p95 {first['p95']:.1f} ms, "
                f"{100 * found['underruns']:.1f} % underruns, "
                f"{found['times_real_time']:.1f} times real time",
                flush=True,
            )
    return 0


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = common.model_parser(__doc__)
    parser.add_argument(
        "--rps", type=workload.numbers(float), default=[], help="requests a second, a list"
    )
    parser.add_argument(
        "--listeners", type=workload.numbers(int), default=[], help="at once, a list"
    )
    parser.add_argument(
        "--duration", type=options.positive, default=60.0, help="seconds of each load"
    )
    parser.add_argument("--streams", type=int, default=64, help="slots of the engine")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals and lengths")
    parser.add_argument("--max-frames", type=int, help="cut longer requests")
    args = parser.parse_args()
    if not args.rps and not args.listeners:
        parser.error("give --rps, --listeners or both")
    return args


if __name__ == "__main__":
    sys.exit(options.run(main, parse_args()))
