"""Measure how long a text takes to its first sound and to its end.

Each measurement writes the result file after every row, so that finished rows remain if the run is
ended early.
"""

import argparse
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks import common
from benchmarks.load_test import workload
from qwen_megakernel import TTSEngine
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.cli import options
from qwen_megakernel.speech_options import Sampling, SpeechOptions

PROMPT_POSITIONS = (10, 30, 110, 200)
TEXT = workload.PROMPTS[0]
# The short and the medium text of the table behind row A18 of docs/ledger.md. The table's long text
# quotes a novel; this one has the same length.
TEXTS = {
    "short": "Hello world.",
    "medium": "The quick brown fox jumps over the lazy dog near the riverbank.",
    "long": "It is cold today, and we are late. Turn left after the bridge. The station is on your "
    "right. We will meet you at the hotel on Friday. Please call me back when you have time, and "
    "tell me whether the train leaves at half past nine or at ten. Bring a map too.",
}
FIRST_PACKETS = (1, 3, None)  # frames; None: the whole speech in one piece


# ---- the first sound -----------------------------------------------------------------------------


@common.takes(
    options.add_model_options,
    common.count("--runs", 20, "number of times that each stage is measured"),
)
def first_sound(args: argparse.Namespace) -> int:
    """Measure the time from a text to its first sound, stage by stage and as a whole, and of the
    very first request.

    Stages run on the engine's own parts, one after another; `first_chunk` is the time that a caller
    of the engine waits. The rows `request 1 cold` and `request 10` show what the warm-up saves.
    """
    loaded = loading.load(loading.resolve(args.model or "random-0.6b"))
    settings = {"backend": args.backend, "device": args.device, "dtype": args.dtype}
    with TTSEngine(loaded, weights=args.weights, warmup=False, **settings) as cold:
        cold_ms = first_chunks(cold, 1)
    with TTSEngine(loaded, weights=args.weights, **settings) as tts:
        rows: list[dict[str, Any]] = []
        result = common.engine_header(tts) | {
            "settings": {"runs": args.runs, "text": TEXT},
            "rows": rows,
        }

        def add(stage: str, values: list[float]) -> None:
            ms = common.spread(values)
            rows.append({"stage": stage, "ms": ms})
            common.write_json(args.json, result)
            print(f"{stage:20}{ms['p50']:10.3f} ms p50{ms['p95']:10.3f} p95", flush=True)

        requests = first_chunks(tts, max(10, args.runs))
        add("request 1 cold", cold_ms)
        add("request 1", requests[:1])
        add("request 10", requests[9:10])
        add("first_chunk", requests[10:] or requests[1:])
        for stage, values in stages(tts, args.runs):
            add(stage, values)
    return 0


def timed(tts: TTSEngine, work: Callable[[], Any], repeats: int) -> list[float]:
    """Return the milliseconds of `work` on the engine's thread and on the device."""

    def once() -> float:
        started = time.perf_counter()
        work()
        if tts.device.type == "cuda":
            torch.cuda.synchronize(tts.device)
        return 1000 * (time.perf_counter() - started)

    return [tts._loop.run(once) for _ in range(repeats + 2)][2:]


def stages(tts: TTSEngine, repeats: int) -> Iterator[tuple[str, list[float]]]:
    """Yield each stage with its milliseconds, measured `repeats` times."""
    parts = tts._loop.stages
    request = parts.prompts.resolve(SpeechOptions(voice=tts.default_voice))
    ids = tts._tokenizer.encode(TEXT)
    yield "tokenise", timed(tts, lambda: tts._tokenizer.encode(TEXT), repeats)
    yield "prompt", timed(tts, lambda: parts.prompts.build(ids, request), repeats)
    random_prompts = {n: common.random_prompt(parts.decoder, n) for n in PROMPT_POSITIONS}

    def prefill(count: int) -> None:
        parts.decoder.prefill(0, random_prompts[count], Sampling(), seed=1, part=0)

    for count in PROMPT_POSITIONS:
        yield f"prefill {count}", timed(tts, lambda count=count: prefill(count), repeats)
    drawn: list[float] = []

    def first_frame() -> None:
        prefill(PROMPT_POSITIONS[1])
        if tts.device.type == "cuda":
            torch.cuda.synchronize(tts.device)
        started = time.perf_counter()
        parts.decoder.step([0], 1)
        drawn.append(1000 * (time.perf_counter() - started))

    timed(tts, first_frame, repeats)
    yield "first frame", drawn[2:]
    codes = torch.zeros(1, 10, tts.config.talker.num_code_groups, dtype=torch.int32)
    for frames in (1, 2, 4, 10):
        state = parts.vocoder.new_state()
        chunk = codes[:, :frames]

        def decode(chunk: torch.Tensor = chunk, state: Any = state) -> None:
            parts.vocoder.step(chunk, [state]).cpu()

        yield f"vocoder {frames}", timed(tts, decode, repeats)


def first_chunks(tts: TTSEngine, repeats: int) -> list[float]:
    """Return the milliseconds from the call to the first chunk, one request after another.

    Each request is read to its end. If it were only closed, its last step or chunk could delay the
    next request.
    """
    found = []
    for index in range(repeats):
        stream = tts.stream(TEXT, voice=tts.default_voice, seed=index, max_frames=8)
        times = [chunk.t_ms for chunk in stream]
        found.append(times[0])
    return found


# ---- whole texts ---------------------------------------------------------------------------------


@common.takes(
    options.add_model_options,
    common.count("--runs", 5, "number of runs whose figures count"),
    common.option("--max-frames", "longest speech, in frames", int, 400),
)
def texts(args: argparse.Namespace) -> int:
    """Measure short, medium and long texts: load time, memory, time per step, first packet of 1 and
    of 3 frames, and the whole in one piece.

    These are the tables that the systems of docs/ledger.md publish, on one machine. If `espeak-ng`
    is installed, the system's own voice speaks the same texts. Each precision needs a run of its
    own, with --dtype, because the memory is measured for the whole process.
    """
    with common.timed_engine(args) as (tts, load_s):
        rows: list[dict[str, Any]] = []
        found = common.engine_header(tts) | {
            "settings": {"runs": args.runs, "texts": TEXTS, "max_frames": args.max_frames},
            "load_s": load_s,
            "rows": rows,
        }

        def add(system: str, text: str, first: Any, figures: dict[str, Any]) -> None:
            first = first or "whole"
            rows.append({"system": system, "text": text, "first_frames": first} | figures)
            common.write_json(args.json, found)
            print(
                f"{system:10}{text:8}{first:>6}  first chunk p50 "
                f"{figures['first_chunk_ms']['p50']:.1f} ms, whole "
                f"{figures['total_ms']['p50']:.1f} ms",
                flush=True,
            )

        for name, text in TEXTS.items():
            for first in FIRST_PACKETS:
                runs = [speak(tts, args, text, first, index) for index in range(args.runs)]
                found["peak_memory_mb"] = common.peak_memory_mb()
                spreads = {key: common.spread([run[key] for run in runs]) for key in runs[0]}
                add(tts.backend, name, first, spreads)
    for name, text in TEXTS.items():
        if figures := system_voice(text, args.runs):
            add("espeak-ng", name, None, figures)
    return 0


def speak(
    tts: TTSEngine, args: argparse.Namespace, text: str, first: int | None, index: int
) -> dict[str, float]:
    """Speak one utterance, with a first chunk of `first` frames or, for None, in one chunk."""
    chunks_of = {"first_chunk_frames": args.max_frames, "chunk_frames": args.max_frames}
    stream = tts.stream(
        text,
        voice=tts.default_voice,
        seed=index,
        max_frames=args.max_frames,
        **({"first_chunk_frames": first} if first else chunks_of),
    )
    chunks = list(stream)
    audio_ms = 1000 * sum(len(chunk.samples) for chunk in chunks) / tts.sample_rate
    timings, frames = stream.timings, len(stream.codes)
    return {
        "first_chunk_ms": chunks[0].t_ms,
        "total_ms": timings["total"],
        "audio_s": audio_ms / 1000,
        "rtf": timings["total"] / audio_ms,
        "frames": frames,
        "decode_ms": timings["decode"],
        "vocoder_ms": timings["vocoder"],
        "step_ms": timings["decode"] / frames,
        "vocoder_ms_per_frame": timings["vocoder"] / frames,
    }


def system_voice(text: str, runs: int) -> dict[str, Any] | None:
    """Time first bytes and end of `espeak-ng --stdout`, process start included; None without it."""
    program = shutil.which("espeak-ng")
    if program is None:
        return None
    first, total, audio = [], [], []
    for _ in range(runs):
        started = time.perf_counter()
        with subprocess.Popen([program, "--stdout", text], stdout=subprocess.PIPE) as process:
            head = process.stdout.read(1024)  # sound follows the header
            first.append(1000 * (time.perf_counter() - started))
            num_bytes = len(head) + len(process.stdout.read())
        total.append(1000 * (time.perf_counter() - started))
        (rate,) = struct.unpack_from("<I", head, 24)  # the sample rate in the header of 44 bytes
        audio.append((num_bytes - 44) / 2 / rate)
    found = {
        "first_chunk_ms": first,
        "total_ms": total,
        "audio_s": audio,
        "rtf": [ms / 1000 / s for ms, s in zip(total, audio, strict=True)],
    }
    return {name: common.spread(values) for name, values in found.items()}
