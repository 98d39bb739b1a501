"""What the HTTP server adds to the engine: at the first byte, to each chunk, under many streams.

The server runs in a process of its own, on loopback. Most of it is measured with an engine of fixed
pace whose chunks say when they were handed over (paced_engine.py); `--model` adds the first byte
over a real engine, whose own time the server reports.
"""

import argparse
import asyncio
import multiprocessing
import socket
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # runs as a script from anywhere

from benchmarks import common
from benchmarks.load_test.speech_client import Heard, SpeechClient
from benchmarks.paced_engine import FRAME_SAMPLES, RATE, PacedEngine, handed_over
from qwen_megakernel import audio
from qwen_megakernel.cli import options
from qwen_megakernel.server.service import freeze_garbage_collector

LIMITS = {  # figure -> (which of its numbers, at most)
    "first_byte_overhead_ms": ("p50", 3.0),
    "chunk_overhead_ms": ("p50", 1.0),
    "underruns_added": ("max", 0.0),
}
METRICS = {
    "first_byte_overhead_ms": "request sent to first byte, less the engine's own first chunk",
    "chunk_overhead_ms": "engine's chunk to its last byte at the client, --streams at once",
    "crowd_chunk_overhead_ms": "the same, --crowd at once",
    "underruns_added": "of each of the --crowd: gaps a player hears, less the engine's own",
    "real_first_byte_overhead_ms": "first byte, over the engine of --model",
}
TEXT = "Your table for two is ready."
FEW_FRAMES = 3  # of a request that is only about its first byte
RAMP_S = 1.0  # in which a crowd arrives


def serve_paced(pipe: Connection, rtf: float, speech_frames: int, num_slots: int) -> None:
    """A server over the paced engine; sends its port."""
    _serve(pipe, PacedEngine(rtf, speech_frames=speech_frames, num_slots=num_slots))


def serve_model(pipe: Connection, model: str) -> None:
    """A server over a real engine; sends its port."""
    from qwen_megakernel import TTSEngine

    _serve(pipe, TTSEngine.from_pretrained(model))


def _serve(pipe: Connection, engine: Any) -> None:
    from qwen_megakernel.server import app, serving
    from qwen_megakernel.server.settings import ServerSettings

    settings = ServerSettings()
    running = serving.new_server(app.create_app(engine, settings), settings)
    freeze_garbage_collector()  # as the command `serve` does
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        pipe.send(listener.getsockname()[1])
        running.run(sockets=[listener])


class Server:
    """A server in a process of its own; use it in a `with` block."""

    def __init__(self, target: Any, *arguments: Any):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs, *arguments), daemon=True)

    def __enter__(self) -> str:
        self._process.start()
        return f"http://127.0.0.1:{self._pipe.recv()}"

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()


def chunks_of(heard: Heard) -> Iterator[tuple[float, float, float]]:
    """Of each chunk of the paced engine: handed over and arrived, in s, and its length in ms."""
    data = b"".join(heard.pieces)
    ends, total = [], 0
    for piece in heard.pieces:
        total += len(piece)
        ends.append(total)
    start, frames, piece = 0, 1, 0
    while start < len(data):
        end = min(start + 2 * FRAME_SAMPLES * frames, len(data))
        while ends[piece] < end:
            piece += 1
        yield handed_over(data[start:]), heard.arrivals[piece], (end - start) / 2 / RATE * 1000
        start, frames = end, min(2 * frames, 10)


async def one_by_one(url: str, num_requests: int) -> list[float]:
    """First byte over the engine, of requests made one after the other; in ms."""
    found = []
    body = {"response_format": "pcm", "max_new_tokens": FEW_FRAMES + 1}
    async with SpeechClient(url, body, None, 60) as client:
        for index in range(num_requests + 3):  # the first connect, import and warm up
            heard = await client.speak(TEXT, time.perf_counter())
            assert heard.error is None, heard.error
            facts = await client.facts(heard.request_id)
            first_byte_ms = 1000 * (heard.arrivals[0] - heard.sent)
            if index >= 3:
                found.append(first_byte_ms - facts["engine_ms"]["first_chunk"])
    return found


async def together(url: str, num_streams: int) -> tuple[list[float], list[float]]:
    """Chunk overheads in ms, and underruns added for each stream, of streams side by side."""
    overheads, added = [], []
    async with SpeechClient(url, {"response_format": "pcm"}, None, 120) as client:

        async def listen(index: int) -> None:
            await asyncio.sleep(RAMP_S * index / num_streams)
            heard = await client.speak(TEXT, time.perf_counter())
            assert heard.error is None, heard.error
            given, arrived, durations = zip(*chunks_of(heard), strict=True)
            overheads.extend(1000 * (b - a) for a, b in zip(given, arrived, strict=True))
            gaps = [
                len(audio.playback_gaps([1000 * at for at in times], durations, 0))
                for times in (arrived, given)
            ]
            added.append(float(gaps[0] - gaps[1]))

        await asyncio.gather(*(listen(index) for index in range(num_streams)))
    return overheads, added


async def measure(args: argparse.Namespace) -> dict[str, list[float]]:
    """Every figure's values."""
    found: dict[str, list[float]] = {}
    with Server(serve_paced, args.rtf, args.frames, args.crowd) as url:
        found["first_byte_overhead_ms"] = await one_by_one(url, args.requests)
        await together(url, args.streams)  # not counted: connections, imports
        found["chunk_overhead_ms"], _ = await together(url, args.streams)
        crowd = await together(url, args.crowd)
        found["crowd_chunk_overhead_ms"], found["underruns_added"] = crowd
    if args.model:
        with Server(serve_model, args.model) as url:
            found["real_first_byte_overhead_ms"] = await one_by_one(url, args.requests // 4)
    return found


def main(args: argparse.Namespace) -> int:
    """Measure, report, hold against the limits."""
    freeze_garbage_collector()  # a pause of ours would count as one of the server's
    values = asyncio.run(measure(args))
    summary = common.summarize(values)
    names = ("requests", "streams", "crowd", "rtf", "frames", "model")
    found = {
        **common.header(),
        "settings": {name: getattr(args, name) for name in names},
        "limits": LIMITS,
        "summary": summary,
    }
    for name, figures in summary.items():
        print(f"{name:28}{common.tell(figures)} {METRICS[name]}")
    common.write_json(args.json, found)
    missed = [name for name, (key, limit) in LIMITS.items() if summary[name][key] > limit]
    for name in missed:
        key, limit = LIMITS[name]
        print(f"{name}: {key} is above {limit}", file=sys.stderr)
    return 1 if missed else 0


def parse_args() -> argparse.Namespace:
    """The command line."""
    parser = common.plain_parser(__doc__)
    parser.add_argument(
        "--requests", type=options.at_least(1), default=200, help="one after the other"
    )
    parser.add_argument(
        "--streams", type=options.at_least(1), default=32, help="side by side, for the chunks"
    )
    parser.add_argument(
        "--crowd", type=options.at_least(1), default=200, help="side by side, for the gaps"
    )
    parser.add_argument("--rtf", type=options.positive, default=0.4, help="pace of the engine")
    parser.add_argument(
        "--frames", type=options.at_least(1), default=125, help="of each speech, 80 ms each"
    )
    parser.add_argument("--model", help="measure the first byte over this engine too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(options.run(main, parse_args()))
