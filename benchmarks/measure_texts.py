"""Short, medium and long texts: load time, memory, time a step, first packet of 1 and of 3 frames.

The tables that the systems of docs/ledger.md publish of themselves, on one machine; with
`espeak-ng` installed, what the system's own voice takes for the same texts. The result file is
written after each row.
"""

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # runs as a script from anywhere

from benchmarks import common
from qwen_megakernel import TTSEngine
from qwen_megakernel.cli import options

TEXTS = {
    "short": "Hello, how are you today?",
    "medium": "The doctor can see you on Monday morning. Please bring your card and be there at 9.",
    "long": "It is cold today, and we are late. Turn left after the bridge. The station is on your "
    "right. We will meet you at the hotel on Friday. Please call me back when you have time, and "
    "tell me whether the train leaves at half past nine or at ten.",
}
FIRST_PACKETS = (1, 3)


def speak(tts: TTSEngine, args: argparse.Namespace, text: str, first: int, index: int) -> dict:
    """One utterance, read as it comes."""
    stream = tts.stream(
        text,
        voice=tts.default_voice,
        seed=index,
        max_frames=args.max_frames,
        first_chunk_frames=first,
    )
    chunks = [chunk for chunk in stream if chunk.num_frames]
    audio_ms = 1000 * sum(len(chunk.samples) for chunk in chunks) / tts.sample_rate
    timings, frames = stream.timings, len(stream.codes)
    return {
        "first_chunk_ms": chunks[0].t_ms,
        "total_ms": timings["total"],
        "audio_s": audio_ms / 1000,
        "rtf": timings["total"] / audio_ms,
        "step_ms": timings["decode"] / frames,
        "vocoder_ms_per_frame": timings["vocoder"] / frames,
    }


def system_voice(text: str, runs: int) -> dict[str, Any] | None:
    """First bytes and end of `espeak-ng --stdout`, process start included; None without it."""
    program = shutil.which("espeak-ng")
    if program is None:
        return None
    first, total = [], []
    for _ in range(runs):
        started = time.perf_counter()
        with subprocess.Popen([program, "--stdout", text], stdout=subprocess.PIPE) as process:
            process.stdout.read(1024)  # behind the header there is sound
            first.append(1000 * (time.perf_counter() - started))
            process.stdout.read()
        total.append(1000 * (time.perf_counter() - started))
    return {"first_chunk_ms": common.spread(first), "total_ms": common.spread(total)}


def main(args: argparse.Namespace) -> int:
    """Measure and report."""
    with common.timed_engine(args) as (tts, load_s):
        rows: list[dict[str, Any]] = []
        found = common.engine_header(tts) | {
            "settings": {"runs": args.runs, "texts": TEXTS, "max_frames": args.max_frames},
            "load_s": load_s,
            "rows": rows,
        }

        def add(system: str, text: str, first: int | None, figures: dict[str, Any]) -> None:
            rows.append({"system": system, "text": text, "first_frames": first} | figures)
            common.write_json(args.json, found)
            print(
                f"{system:10}{text:8}{first or '-':>3}  first chunk p50 "
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


if __name__ == "__main__":
    parser = common.model_parser(__doc__)
    parser.add_argument("--runs", type=options.at_least(1), default=5)
    parser.add_argument("--max-frames", type=int, default=400)
    sys.exit(options.run(main, parser.parse_args()))
