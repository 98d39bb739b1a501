"""What every benchmark shares: one run, its figures, the result file, the table, the plot.

A result file is one JSON object (`SCHEMA`): what ran, where, from which commit, by which command,
every run's figures and their mean, p50 and p95. Numbers in the documentation come from such files.
A command that writes one runs in `run`, which looks at the machine before.
"""

import argparse
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import machine
from qwen_megakernel import audio
from qwen_megakernel.cli import options
from qwen_megakernel.errors import MissingPackageError, OutputError
from qwen_megakernel.installing import install_command
from qwen_megakernel.native import cpu_library

if TYPE_CHECKING:  # torch is imported after `options.wait_passively`
    import torch

    from qwen_megakernel import TTSEngine
    from qwen_megakernel.records import Files

Options = Callable[[argparse.ArgumentParser], Any]  # adds some to a command line
Measurement = Callable[[argparse.Namespace], int]  # measures, reports, returns the exit code

SCHEMA = 2  # 1 did not record instruction sets, load before the run, stolen time and bandwidth
TEXT = "Your table for two is ready. We will meet you at the hotel on Friday."
CLIENT_BUFFER_MS = 100

# name -> (unit, what it is). Times count from the call of `stream`.
METRICS = {
    "first_frame_ms": ("ms", "first codec frame known (published as TTFC by megakernel ports)"),
    "first_chunk_ms": ("ms", "first audio samples leave (what users call TTFC)"),
    "first_audible_ms": ("ms", "first samples leave, plus the silence they open with"),
    "leading_silence_ms": ("ms", "silence the speech opens with"),
    "rtf": ("", "compute time / audio time, whole utterance"),
    "frames_per_s": ("frames/s", "codec frames a second while decoding"),
    "codes_per_s": ("codes/s", "codes a second while decoding"),
    "decode_ms_per_frame": ("ms", "talker, code predictor and sampling"),
    "vocoder_ms_per_frame": ("ms", "codec frames to samples"),
    "overhead_ms_per_frame": ("ms", "all that is neither decoder nor vocoder"),
    "max_gap_ms": ("ms", "longest wait between two chunks"),
    "underruns": ("", "times a player without buffer runs dry"),
    f"underruns_{CLIENT_BUFFER_MS}ms": ("", f"the same with {CLIENT_BUFFER_MS} ms buffered"),
    "total_ms": ("ms", "request to last chunk"),
    "audio_s": ("s", "length of the speech"),
}


def add_result_option(parser: argparse.ArgumentParser) -> None:
    """--json FILE, which `write_json` takes, and --idle, which `run` takes."""
    parser.add_argument("--json", metavar="FILE", help="write the result file")
    parser.add_argument(
        "--idle",
        metavar="SECONDS",
        type=options.at_least(0),
        default=machine.IDLE_SECONDS,
        help="with --json: wait so long at most, before the run, for the load average to fall",
    )


_conditions: machine.Conditions | None = None  # of the run whose result is written


def run(main: Measurement, args: argparse.Namespace) -> int:
    """`options.run` of a command; one that writes a result file is observed from here on."""

    def observed(args: argparse.Namespace) -> int:
        if args.json:
            observe(args.idle)
        return main(args)

    return options.run(observed, args)


def observe(idle_seconds: float = machine.IDLE_SECONDS) -> None:
    """Look at the machine before a run whose result file `write_json` will write."""
    global _conditions
    _conditions = machine.Conditions(idle_seconds)


def add_plain_options(parser: argparse.ArgumentParser) -> None:
    """--debug, for a measurement that loads no model."""
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.set_defaults(quiet=True)


def option(name: str, **settings: Any) -> Options:
    """An option as `add_argument` takes it, for `takes`."""
    return lambda parser: parser.add_argument(name, **settings)


def count(name: str, default: int, meaning: str, least: int = 1) -> Options:
    """An option that is a whole number from `least` on, for `takes`."""
    return option(name, type=options.at_least(least), default=default, help=meaning)


def takes(*added: Options) -> Callable[[Measurement], Measurement]:
    """Give a measurement its options, which benchmarks/measure.py adds to its command line."""

    def give(measurement: Measurement) -> Measurement:
        measurement.options = added
        return measurement

    return give


def add_arguments(parser: argparse.ArgumentParser, runs: int = 5, warmup: int = 2) -> None:
    """--text, --runs, --warmup, --plot, lengths of chunks, which engine to load, how it speaks."""
    parser.add_argument("--text", default=TEXT, help="what to say")
    count("--runs", runs, "runs that are counted")(parser)
    count("--warmup", warmup, "runs before, which are not counted", least=0)(parser)
    parser.add_argument(
        "--plot",
        metavar="FILE",
        type=options.plot_file,
        help="draw the runs (needs the [plots] extra)",
    )
    parser.add_argument(
        "--first-chunk-frames", type=int, default=1, help="codec frames of the first chunk"
    )
    parser.add_argument(
        "--chunk-frames", type=int, default=10, help="codec frames of a chunk at most"
    )
    options.add_model_options(parser)
    options.add_speech_options(parser)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Load the engine, run, and return a result object."""
    with timed_engine(args) as (tts, load_s):
        runs = repeat(args, lambda index: run_once(tts, args, index))
        settings = {"text": args.text, "warmup": args.warmup}
        return result(tts, runs, settings) | {"load_s": load_s}


def repeat(args: argparse.Namespace, run: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """`run(0)`, `run(1)`, ...: first --warmup times, which do not count, then --runs times."""
    for index in range(args.warmup):
        run(index)
    return [run(index) for index in range(args.runs)]


@contextmanager
def timed_engine(
    args: argparse.Namespace, **engine_options: Any
) -> Iterator[tuple["TTSEngine", float]]:
    """The engine of the command line, and the seconds it took to load."""
    started = time.perf_counter()
    with options.engine_from_args(args, **engine_options) as tts:
        yield tts, time.perf_counter() - started


def run_once(tts: "TTSEngine", args: argparse.Namespace, index: int) -> dict[str, Any]:
    """Speak once, reading chunks as they come. Run i takes seed --seed + i, so runs differ."""
    speech_options = options.speech_options(args, tts)
    speech_options["seed"] = (args.seed or 0) + index
    stream = tts.stream(
        options.read_text(args.text),
        first_chunk_frames=args.first_chunk_frames,
        chunk_frames=args.chunk_frames,
        **speech_options,
    )
    chunks = [chunk for chunk in stream if len(chunk.samples)]
    samples = np.concatenate([chunk.samples for chunk in chunks])
    times = [chunk.t_ms for chunk in chunks]
    durations = [1000 * len(chunk.samples) / stream.sample_rate for chunk in chunks]
    silence = audio.leading_silence_ms(samples, stream.sample_rate)
    timings, num_frames = stream.timings, len(stream.codes)
    return {
        "seed": stream.seed,
        "finish_reason": stream.finish_reason,
        "frames": num_frames,
        "first_frame_ms": timings["first_frame"],
        "first_chunk_ms": times[0],
        "first_audible_ms": times[0] + silence,
        "leading_silence_ms": silence,
        "rtf": timings["total"] / sum(durations),
        "frames_per_s": 1000 * num_frames / timings["decode"],
        "codes_per_s": 1000 * stream.codes.size / timings["decode"],
        "decode_ms_per_frame": timings["decode"] / num_frames,
        "vocoder_ms_per_frame": timings["vocoder"] / num_frames,
        "overhead_ms_per_frame": (
            timings["total"] - timings["prefill"] - timings["decode"] - timings["vocoder"]
        )
        / num_frames,
        "max_gap_ms": max(np.diff(times), default=0.0),
        "underruns": len(audio.playback_gaps(times, durations, 0)),
        f"underruns_{CLIENT_BUFFER_MS}ms": len(
            audio.playback_gaps(times, durations, CLIENT_BUFFER_MS)
        ),
        "total_ms": timings["total"],
        "audio_s": sum(durations) / 1000,
    }


def result(
    tts: "TTSEngine", runs: list[dict[str, Any]], settings: dict[str, Any]
) -> dict[str, Any]:
    """A result object from runs that have the figures of `METRICS`, or some of them."""
    names = [name for name in METRICS if name in runs[0]]
    return engine_header(tts) | {
        "settings": settings,
        "peak_memory_mb": peak_memory_mb(),
        "summary": {name: spread([run[name] for run in runs]) for name in names},
        "runs": runs,
    }


def header() -> dict[str, Any]:
    """How any result object begins: when, from which commit, by which command, on what machine."""
    from qwen_megakernel.cli.doctor import report

    told = report()
    return {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "machine": machine.facts()
        | {key: told[key] for key in ("gpu", "platform", "python")}
        | {"torch": told["packages"]["torch"]},
    }


def model_header(files: "Files", **facts: Any) -> dict[str, Any]:
    """`header`, the model and whether its weights are random, and other facts of what ran."""
    return header() | {"model": files.name, "is_synthetic": files.is_synthetic} | facts


def engine_header(tts: "TTSEngine") -> dict[str, Any]:
    """`model_header` with what decodes, where, in what precision, and with how many threads."""
    threads = {"threads": tts.num_threads} if tts.device.type == "cpu" else {}
    return model_header(
        tts.files, backend=tts.backend, device=str(tts.device), dtype=tts.dtype_name, **threads
    ) | native_set(tts.backend)


def native_set(backend: str) -> dict[str, str]:
    """What the native code of the CPU decoder was compiled for; {} for other backends."""
    return {"instruction_set": cpu_library.choose_set()} if backend == "cpu" else {}


def name_of(dtype: "torch.dtype") -> str:
    """ "float32" or "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def commit() -> str:
    """The commit of this checkout, as tools/gpu_check.sh was told or as git knows it; "-dirty" when
    tracked files differ from it."""
    if told := os.environ.get("QWEN_MEGAKERNEL_COMMIT"):
        return told
    folder = Path(__file__).parent
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def peak_memory_mb() -> dict[str, float]:
    """Largest resident size of this process; on a GPU the most memory that tensors took, and what
    is taken of the device now: graphs, code and other processes too."""
    scale = 1 if platform.system() == "Darwin" else 1024  # bytes there, KiB elsewhere
    peaks = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e6}
    import torch

    if torch.cuda.is_available():
        peaks["gpu"] = torch.cuda.max_memory_allocated() / 1e6
        free, total = torch.cuda.mem_get_info()
        peaks["device"] = (total - free) / 1e6
    return peaks


def spread(values: list[float], percentiles: Sequence[int] = (50, 95)) -> dict[str, float]:
    """Mean and percentiles (nearest rank), as `mean`, `p50`, `p95`."""
    ordered = sorted(values)
    nearest = {p: ordered[max(0, -(-p * len(ordered) // 100) - 1)] for p in percentiles}
    return {"mean": float(np.mean(values))} | {f"p{p}": float(nearest[p]) for p in percentiles}


def summarize(values: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """`spread` of each figure, its largest value, and how many there are."""
    return {
        name: spread(each) | {"max": max(each), "count": len(each)} for name, each in values.items()
    }


def hold_against(
    limits: dict[str, Any],
    args: argparse.Namespace,
    settings: Sequence[str],
    meanings: dict[str, str],
    values: dict[str, list[float]],
) -> int:
    """Report figures that have limits and write the result file.

    Args:
        limits: figure -> the most of its p95, or (which of its numbers, the most).
        settings: the arguments that the result file keeps.
        meanings: figure -> what it is.
        values: figure -> its values.
    Returns:
        The exit code: 1 when a limit is missed.
    """
    summary = summarize(values)
    for name, figures in summary.items():
        told = "".join(f"{key} {figures[key]:7.3f}  " for key in ("p50", "p95", "max"))
        print(f"{name:28}{told} {meanings[name]}")
    kept = {name: getattr(args, name) for name in settings}
    found = {"settings": kept, "limits": limits, "summary": summary}
    write_json(args.json, header() | found)
    missed = []
    for name, limit in limits.items():
        key, most = limit if isinstance(limit, tuple) else ("p95", limit)
        if summary[name][key] > most:
            missed.append(f"{name}: {key} is above {most}")
    return tell_missed(missed)


def tell_missed(missed: list[str]) -> int:
    """Say which limits were missed; the exit code: 1 when there is one."""
    for line in missed:
        print(line, file=sys.stderr)
    return 1 if missed else 0


def write_json(path: str | None, found: dict[str, Any]) -> None:
    """Write a result file, with the conditions of the run until now; None writes nothing."""
    if path is None:
        return
    assert _conditions, "a command that writes a result file runs in `common.run`"
    found = found | {"machine": found["machine"] | _conditions.facts()}
    try:
        Path(path).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise OutputError(f"Cannot write {path}: {error.strerror}.") from error


def print_table(found: dict[str, Any], names: list[str] | None = None) -> None:
    """The summary as a person reads it."""
    where = found["machine"]
    gpu = where["gpu"]["name"] if where["gpu"] else "no GPU"
    print(f"{where['processor']}, {where['cores']} cores, {gpu}; torch {where['torch']}")
    print(
        f"{found['model']}{' (random weights)' if found['is_synthetic'] else ''}, "
        f"{found['backend']} on {found['device']} in {found['dtype']}; commit {found['commit']}; "
        f"{len(found['runs'])} runs; peak {found['peak_memory_mb']['host']:.0f} MB"
        + (f"; loaded in {found['load_s']:.1f} s" if "load_s" in found else "")
    )
    print(f"{'':22}{'mean':>10}{'p50':>10}{'p95':>10}")
    for name, values in found["summary"].items():
        if names is None or name in names:
            unit, meaning = METRICS[name]
            row = "".join(f"{values[key]:10.3f}" for key in ("mean", "p50", "p95"))
            print(f"{name:22}{row}  {unit:9}{meaning}")


def load_pyplot() -> ModuleType:
    """matplotlib.pyplot for files, without a screen.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise MissingPackageError(
            "--plot needs matplotlib.", hint=install_command("plots")
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def plot(path: str | None, found: dict[str, Any], names: list[str]) -> None:
    """One panel for each figure, one bar for each run; None draws nothing."""
    if path is None:
        return
    pyplot = load_pyplot()
    figure, axes = pyplot.subplots(1, len(names), figsize=(3.2 * len(names), 3))
    for axis, name in zip(np.atleast_1d(axes), names, strict=True):
        axis.bar(range(len(found["runs"])), [run[name] for run in found["runs"]])
        axis.axhline(found["summary"][name]["p50"], color="black", linewidth=1, label="p50")
        axis.set(title=name, ylabel=METRICS[name][0], xlabel="run")
        axis.legend()
    figure.suptitle(f"{found['model']}, {found['backend']} on {found['device']}")
    figure.tight_layout()
    figure.savefig(path)
