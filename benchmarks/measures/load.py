"""Measure engines and servers under load: an engine's many listeners, and what the server adds."""

import argparse
import asyncio
import multiprocessing
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from benchmarks import common, option_types, playback
from benchmarks.load_test import workload
from benchmarks.measures.paced_engine import FRAME_SAMPLES, RATE, PacedEngine, handed_over
from benchmarks.measures.threads import busy_loops
from qwen_megakernel import TTSEngine
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.cli import options, parsing
from qwen_megakernel.errors import SetupError, UsageError

if TYPE_CHECKING:
    from benchmarks.load_test.speech_client import Heard

LEAD_SECONDS = 1.0  # a listener's player takes chunks this long before it needs them

LIMITS = {  # figure -> (which of its numbers, at most)
    "first_byte_overhead_ms": ("p50", 3.0),
    "chunk_overhead_ms": ("p50", 1.0),
    "underruns_added": ("max", 0.0),
}
METRICS = {
    "first_byte_overhead_ms": "time to the first byte, minus the engine's to the first chunk",
    "chunk_overhead_ms": "time from a chunk to its last byte at the client, --streams",
    "crowd_chunk_overhead_ms": "time from a chunk to its last byte at the client, --crowd",
    "underruns_added": "gaps in each stream of --crowd, minus those of the engine",
    "real_first_byte_overhead_ms": "time to the first byte, minus that of --model's engine",
}
TEXT = "Your table for two is ready."
FEW_FRAMES = 3  # the length of requests for which only the first byte counts
RAMP_S = 1.0  # a crowd arrives within this time


# ---- an engine and its listeners -----------------------------------------------------------------


@common.takes(
    options.add_model_options,
    common.option(
        "--rps",
        "rates of requests per second, separated by commas: 1,10,20",
        option_types.numbers(option_types.positive),
        [],
    ),
    common.option(
        "--listeners",
        "numbers of listeners at once, separated by commas: 8,16",
        option_types.numbers(parsing.at_least(1)),
        [],
    ),
    common.option("--duration", "seconds that each load lasts", option_types.positive, 60.0),
    common.option("--streams", "number of slots of the engine", int, 64),
    common.option("--seed", "seed of arrivals and lengths", int, 0),
    common.option("--max-frames", "longest speech in frames; longer requests are cut", int),
    common.option(
        "--busy", "numbers of busy programs to run beside the engine: 0 2", int, [0], nargs="+"
    ),
)
def open_loop(args: argparse.Namespace) -> int:
    """Serve requests that arrive at random (--rps), or listeners who play one speech after another
    (--listeners).

    The lengths of speeches are drawn (load_test/workload.py), so the end token is masked: its row
    of the codec head is zero, which puts it far below the 50 best. Sampling is not changed. First
    audio counts from the call and from the planned arrival; an underrun is a speech in which a
    player with no buffer, or with 100 ms, would stop. Every load is repeated beside each number of
    busy programs (--busy). The result file is written after each load.
    """
    if not args.rps and not args.listeners:
        raise UsageError("No load is given.", hint="Give --rps 1,10,20, --listeners 8,16 or both.")
    name = args.model or "random-0.6b"
    loaded = endless(loading.load(loading.resolve(name)))
    rows = []
    settings = {"num_slots": args.streams, "backend": args.backend, "device": args.device}
    settings |= {"num_threads": args.threads}
    with TTSEngine(loaded, dtype=args.dtype, weights=args.weights, **settings) as tts:
        loads = [("rps", value, at_random_times) for value in args.rps]
        loads += [("listeners", value, listen) for value in args.listeners]
        result = common.engine_header(tts) | {
            "settings": {"streams": args.streams, "duration_s": args.duration, "seed": args.seed},
            "rows": rows,
        }
        for num_busy, (load_name, value, run) in product(args.busy, loads):
            with busy_loops(num_busy):
                started = time.perf_counter()
                heard = asyncio.run(run(tts, args, value))
                seconds = time.perf_counter() - started
            found = row(load_name, value, heard, seconds) | {"busy": num_busy}
            rows.append(found)
            result["peak_memory_mb"] = common.peak_memory_mb()
            common.write_json(args.json, result)
            first = found["first_chunk_ms"]
            print(
                f"{load_name} {value:g}, {num_busy} busy programs: {found['requests']} requests, "
                "first chunk p50 "
                f"{first['p50']:.1f} p95 {first['p95']:.1f} ms, "
                f"{100 * found['underruns']:.1f} % underruns, "
                f"{found['times_real_time']:.1f} times real time",
                flush=True,
            )
    return 0


@dataclass(frozen=True, slots=True)
class Played:
    """One request, in milliseconds since its planned arrival."""

    sent_ms: float
    chunk_ms: list[float]
    chunk_audio_ms: list[float]
    num_frames: int

    def underruns(self, buffer_ms: float) -> int:
        """Return how often a player with this buffer runs out of audio."""
        return len(playback.playback_gaps(self.chunk_ms, self.chunk_audio_ms, buffer_ms))


def endless(loaded: loading.Checkpoint) -> loading.Checkpoint:
    """Return the same checkpoint with the end token out of reach of sampling."""
    head = loaded.talker["codec_head.weight"].clone()
    head[loaded.config.talker.codec_eos_id] = 0
    return replace(loaded, talker=loaded.talker | {"codec_head.weight": head})


async def speak(
    tts: TTSEngine, args: argparse.Namespace, index: int, planned: float, *, paced: bool
) -> Played:
    """Send request number `index` and read it to its end."""
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
        times.append(1000 * (time.perf_counter() - planned))
        durations.append(1000 * len(chunk.samples) / tts.sample_rate)
        if paced:
            played_until = planned + (times[0] + sum(durations)) / 1000
            await asyncio.sleep(max(0.0, played_until - LEAD_SECONDS - time.perf_counter()))
    return Played(1000 * (started - planned), times, durations, len(stream.codes))


async def at_random_times(tts: TTSEngine, args: argparse.Namespace, rps: float) -> list[Played]:
    """Send requests at their planned times, whether or not earlier ones have ended."""
    begin, tasks = time.perf_counter() + 0.05, []
    for index, at in enumerate(workload.arrivals(args.seed, rps, args.duration)):
        await asyncio.sleep(max(0.0, begin + at - time.perf_counter()))
        tasks.append(asyncio.create_task(speak(tts, args, index, begin + at, paced=False)))
    return list(await asyncio.gather(*tasks))


async def listen(tts: TTSEngine, args: argparse.Namespace, listeners: int) -> list[Played]:
    """Serve a number of listeners; each sends a request when it has played the last speech."""
    heard: list[Played] = []
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


def row(load_name: str, value: float, heard: list[Played], seconds: float) -> dict[str, Any]:
    """Return the figures of one load."""
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


# ---- the HTTP server -----------------------------------------------------------------------------


@common.takes(
    common.add_plain_options,
    common.count("--requests", 200, "number of requests that follow one another"),
    common.count("--streams", 32, "number of streams at once, to time their chunks"),
    common.count("--crowd", 200, "number of streams at once, to count interruptions"),
    common.option(
        "--rtf", "real-time factor of the engine with a fixed pace", option_types.positive, 0.4
    ),
    common.count("--frames", 125, "length of a speech in frames of 80 ms"),
    common.option("--model", "model of a real engine, whose first byte is measured too"),
)
def server(args: argparse.Namespace) -> int:
    """Measure what the HTTP server adds to the engine, and compare it with the limits.

    The server runs in a process of its own, on loopback. Most of it is measured with an engine of
    fixed pace whose chunks carry the time at which the engine delivered them (paced_engine.py);
    `--model` adds the first byte with a real engine, whose own time the server reports.
    """
    from qwen_megakernel.server.service import shorten_pauses

    shorten_pauses()  # a pause of this process would count as one of the server's
    settings = ("requests", "streams", "crowd", "rtf", "frames", "model")
    return common.hold_against(LIMITS, args, settings, METRICS, asyncio.run(measure(args)))


def serve_paced(pipe: Connection, rtf: float, speech_frames: int, num_slots: int) -> None:
    """Run a server with the paced engine; send its port."""
    _serve(pipe, PacedEngine(rtf, speech_frames=speech_frames, num_slots=num_slots))


def serve_model(pipe: Connection, model: str) -> None:
    """Run a server with a real engine; send its port."""
    _serve(pipe, TTSEngine.from_pretrained(model))


def _serve(pipe: Connection, engine: Any) -> None:
    from qwen_megakernel.server import app, serving
    from qwen_megakernel.server.service import shorten_pauses
    from qwen_megakernel.server.settings import ServerSettings

    settings = ServerSettings()
    running = serving.DrainingServer(app.create_app(engine, settings), settings)
    shorten_pauses()  # as the command `serve` does
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        pipe.send(listener.getsockname()[1])
        running.run(sockets=[listener])


class Server:
    """A server in a process of its own, for a `with` block."""

    def __init__(self, target: Any, *arguments: Any):
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs, *arguments), daemon=True)

    def __enter__(self) -> str:
        self._process.start()
        try:
            return f"http://127.0.0.1:{self._pipe.recv()}"
        except EOFError:
            raise SetupError("The server ended before it listened.") from None

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()


def chunks_of(heard: "Heard") -> Iterator[tuple[float, float, float]]:
    """Yield the paced engine's chunks: seconds of delivery and arrival, milliseconds of sound."""
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
    """Return the server's part of the first byte in ms, for requests that follow one another."""
    from benchmarks.load_test.speech_client import SpeechClient

    found = []
    body = {"response_format": "pcm", "max_new_tokens": FEW_FRAMES + 1}
    async with SpeechClient(url, body, None, 60) as client:
        for index in range(num_requests + 3):  # the first requests connect, import and warm up
            heard = await client.speak(TEXT, time.perf_counter())
            assert heard.error is None, heard.error
            facts = await client.facts(heard.request_id)
            first_byte_ms = 1000 * (heard.arrivals[0] - heard.sent)
            if index >= 3:
                found.append(first_byte_ms - facts["engine_ms"]["first_chunk"])
    return found


async def together(url: str, num_streams: int) -> tuple[list[float], list[float]]:
    """Run streams side by side; return chunk overheads in ms and each stream's added underruns."""
    from benchmarks.load_test.speech_client import SpeechClient

    overheads, added = [], []
    async with SpeechClient(url, {"response_format": "pcm"}, None, 120) as client:

        async def listen(index: int) -> None:
            await asyncio.sleep(RAMP_S * index / num_streams)
            heard = await client.speak(TEXT, time.perf_counter())
            assert heard.error is None, heard.error
            given, arrived, durations = zip(*chunks_of(heard), strict=True)
            overheads.extend(1000 * (b - a) for a, b in zip(given, arrived, strict=True))
            gaps = [
                len(playback.playback_gaps([1000 * at for at in times], durations, 0))
                for times in (arrived, given)
            ]
            added.append(float(gaps[0] - gaps[1]))

        await asyncio.gather(*(listen(index) for index in range(num_streams)))
    return overheads, added


async def measure(args: argparse.Namespace) -> dict[str, list[float]]:
    """Return the values of every figure."""
    found: dict[str, list[float]] = {}
    with Server(serve_paced, args.rtf, args.frames, args.crowd) as url:
        found["first_byte_overhead_ms"] = await one_by_one(url, args.requests)
        await together(url, args.streams)  # connects and imports; its figures do not count
        found["chunk_overhead_ms"], _ = await together(url, args.streams)
        crowd = await together(url, args.crowd)
        found["crowd_chunk_overhead_ms"], found["underruns_added"] = crowd
    if args.model:
        with Server(serve_model, args.model) as url:
            found["real_first_byte_overhead_ms"] = await one_by_one(url, args.requests // 4)
    return found
