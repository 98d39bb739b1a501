"""Compare this engine with one written in C: github.com/gabriele-mastrapasqua/qwen3-tts.

Both speak the same random checkpoint on the same cores, alternately. The C engine runs as its own
program and reports its figures itself; it must be built beforehand (`make blas`).
"""

import argparse
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.measures.load import endless
from qwen_megakernel import TTSEngine
from qwen_megakernel.checkpoint import loading
from qwen_megakernel.errors import QwenTTSError, UsageError
from qwen_megakernel.native import cpu_threads

FORMS = {"stored": [], "int8": ["--int8"]}  # form of weights -> the C engine's options
REPORT = {
    "rtf": re.compile(r"^Audio: .*\(RTF ([\d.]+)\)", re.MULTILINE),
    "first_chunk_ms": re.compile(r"TTFA: ([\d.]+) ms"),
    "frames": re.compile(r"Generated (\d+) frames"),
}


@common.takes(
    common.option("--program", "path of the C engine's program", Path, Path("qwen_tts")),
    common.option(
        "--model", "built-in random checkpoint that both engines speak", str, "random-0.6b"
    ),
    common.option("--weights", "forms of weights to compare", FORMS, [*FORMS], nargs="+"),
    common.option("--frames", "length of every speech in frames of 80 ms", int, 40),
    common.count("--runs", 3, "number of speeches of each engine whose figures count"),
    common.add_plain_options,
)
def c_engine(args: argparse.Namespace) -> int:
    """Speak alternately with both engines; write the result file after each form of weights."""
    if not args.program.is_file():
        raise UsageError(f"There is no program {args.program}.", hint="Build it with `make blas`.")
    files = loading.resolve(args.model)
    loaded, threads = endless(loading.load(files)), cpu_threads.available_cores()
    rows: list[dict[str, Any]] = []
    found = common.model_header(files, threads=threads, c_engine_commit=commit_of(args.program))
    found |= {"settings": {"frames": args.frames, "text": common.TEXT}, "rows": rows}
    for form in args.weights:
        runs: dict[str, list[dict[str, float]]] = {"this project": [], "C engine": []}
        weights = None if form == "stored" else form
        with TTSEngine(loaded, backend="cpu", weights=weights) as tts:
            for index in range(args.runs + 1):
                ours = tts.stream(common.TEXT, seed=index, max_frames=args.frames)
                first_ms = next(ours).t_ms
                total_ms = [chunk.t_ms for chunk in ours][-1]
                audio_ms = 80.0 * len(ours.codes)
                figures = {"rtf": total_ms / audio_ms, "first_chunk_ms": first_ms}
                runs["this project"].append(figures | {"frames": len(ours.codes)})
                runs["C engine"].append(
                    speak(args.program, files.folder, form, args.frames, threads)
                )
        for name, its_runs in runs.items():
            spreads = {key: common.spread([run[key] for run in its_runs[1:]]) for key in REPORT}
            rows.append({"engine": name, "weights": form} | spreads)
            print(
                f"{name:>12}, {form}: RTF {spreads['rtf']['p50']:.2f}, first samples after "
                f"{spreads['first_chunk_ms']['p50']:.0f} ms, {spreads['frames']['p50']:.0f} frames",
                flush=True,
            )
        common.write_json(args.json, found)
    return 0


def speak(program: Path, folder: Path, form: str, frames: int, threads: int) -> dict[str, float]:
    """Return the figures that the C engine reports of one streamed speech."""
    with tempfile.TemporaryDirectory() as output:
        words = ["-d", folder, "--text", common.TEXT, "--max-tokens", frames, "--seed", 1]
        words += ["--stream", "-j", threads, "-o", Path(output) / "speech.wav", *FORMS[form]]
        done = subprocess.run(
            [str(program.resolve()), *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    figures = {name: pattern.search(done.stdout) for name, pattern in REPORT.items()}
    if done.returncode or None in figures.values():
        raise QwenTTSError(f"{program} ended with {done.returncode}: {done.stdout[-300:]}")
    return {name: float(match[1]) for name, match in figures.items()}


def commit_of(program: Path) -> str:
    """Return the commit of the C engine's sources beside the program; "unknown" without git."""
    done = subprocess.run(
        ["git", "-C", str(program.resolve().parent), "rev-parse", "--short=12", "HEAD"],
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or "unknown"
