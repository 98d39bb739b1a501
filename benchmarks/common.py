"""Functions that all benchmarks share: one run, its figures, the result file, the table, the plot.

A result file is one JSON object (`SCHEMA`): what ran, where, from which commit, by which command,
every run's figures and their mean, p50 and p95. Numbers in the documentation come from such files.
A command that writes one runs in `run`, which observes the machine beforehand.
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
from tqdm import tqdm

from benchmarks import machine, option_types, playback
from qwen_megakernel.cli import options, parsing, running
from qwen_megakernel.errors import OutputError
from qwen_megakernel.installing import require
from qwen_megakernel.native import cpu_library
from qwen_megakernel.output_files import check_writable

if TYPE_CHECKING:  # torch is imported after `torch_import.wait_passively`
    import torch

    from qwen_megakernel import TTSEngine
    from qwen_megakernel.decoders.frame_decoder import FrameDecoder
    from qwen_megakernel.records import Files, Prefill

Options = Callable[[argparse.ArgumentParser], Any]  # adds options to a command line
Measurement = Callable[[argparse.Namespace], int]  # measures, reports, returns the exit code

SCHEMA = 2  # 1 did not record instruction sets, load before the run, stolen time and bandwidth
TEXT = "Your table for two is ready. We will meet you at the hotel on Friday."
CLIENT_BUFFER_MS = 100

# name -> (unit, meaning). Times count from the call of `stream`.
METRICS = {
    "first_frame_ms": (
        "ms",
        "time until the first codec frame exists (some projects publish this as TTFC)",
    ),
    "first_chunk_ms": ("ms", "time until the engine returns the first samples (TTFC)"),
    "first_audible_ms": (
        "ms",
        "time until the engine returns the first samples, plus the silence at their start",
    ),
    "leading_silence_ms": ("ms", "silence at the start of the speech"),
    "rtf": ("", "computing time divided by the speech's duration"),
    "frames_per_s": ("frames/s", "codec frames per second of decoding"),
    "codes_per_s": ("codes/s", "codes per second of decoding"),
    "decode_ms_per_frame": ("ms", "talker, code predictor and sampling, per frame"),
    "vocoder_ms_per_frame": ("ms", "codec frames to samples, per frame"),
    "overhead_ms_per_frame": ("ms", "everything besides decoder and vocoder, per frame"),
    "max_gap_ms": ("ms", "longest wait between two chunks"),
    "underruns": ("", "interruptions of a player without a buffer"),
    f"underruns_{CLIENT_BUFFER_MS}ms": (
        "",
        f"interruptions of a player that buffers {CLIENT_BUFFER_MS} ms",
    ),
    "total_ms": ("ms", "time from the request to the last chunk"),
    "audio_s": ("s", "duration of the speech"),
}


def add_result_option(parser: argparse.ArgumentParser) -> None:
    """Add --json FILE, for `write_json`, and --idle, for `run`."""
    add = parsing.adder(parser)
    add("--json FILE", "file to write the results to, as JSON", parsing.file_name)
    add(
        "--idle SECONDS",
        "with --json: longest wait, before the run, for the load average to fall",
        parsing.at_least(0),
        machine.IDLE_SECONDS,
    )


# The conditions of the run that `write_json` will write.
_conditions: machine.Conditions | None = None


def run(main: Measurement, args: argparse.Namespace) -> int:
    """Run a command with `running.run`; observe the machine if it writes a result file."""

    def observed(args: argparse.Namespace) -> int:
        if args.json:
            check_writable(Path(args.json), "results")
            observe(args.idle)
        return main(args)

    return running.run(observed, args)


def observe(idle_seconds: float = machine.IDLE_SECONDS) -> None:
    """Observe the machine before a run whose result file `write_json` will write."""
    global _conditions
    _conditions = machine.Conditions(idle_seconds)


def add_plain_options(parser: argparse.ArgumentParser) -> None:
    """Add --debug, for a measurement that loads no model."""
    add = parsing.adder(parser)
    add("--debug", "show Python tracebacks of errors", bool)
    parser.set_defaults(quiet=True)


def option(*spec: Any, **more: Any) -> Options:
    """Return an option for `takes`, from what the function of `parsing.adder` takes."""
    return lambda parser: parsing.adder(parser)(*spec, **more)


def count(name: str, default: int, meaning: str, least: int = 1) -> Options:
    """Return an option for `takes` that is a whole number from `least` on."""
    return option(name, meaning, parsing.at_least(least), default)


def takes(*added: Options) -> Callable[[Measurement], Measurement]:
    """Give a measurement its options, which benchmarks/measure.py adds to its command line."""

    def give(measurement: Measurement) -> Measurement:
        measurement.options = added
        return measurement

    return give


def add_arguments(parser: argparse.ArgumentParser, runs: int = 5, warmup: int = 2) -> None:
    """Add --text, --runs, --warmup, --plot, chunk lengths, and the options of engine and speech."""
    add = parsing.adder(parser)
    add("--text", "text to speak", str, TEXT)
    count("--runs", runs, "number of runs whose figures count")(parser)
    count("--warmup", warmup, "number of runs before them, whose figures do not count", least=0)(
        parser
    )
    add(
        "--plot FILE",
        "picture of the runs to write (needs the [plots] extra)",
        option_types.plot_file,
    )
    options.add_options(parser, ("first_chunk_frames", "chunk_frames"))
    options.add_model_options(parser)
    options.add_speech_options(parser)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Load the engine, run, and return a result object."""
    with timed_engine(args) as (tts, load_s):
        runs = repeat(args, lambda index: run_once(tts, args, index))
        settings = {"text": args.text, "warmup": args.warmup}
        return result(tts, runs, settings) | {"load_s": load_s}


def repeat(args: argparse.Namespace, run: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Call run(0), run(1), ...: first --warmup times without keeping results, then --runs times."""
    for index in range(args.warmup):
        run(index)
    bar = tqdm(range(args.runs), unit="run", delay=2, leave=False, disable=None)  # in a terminal
    return [run(index) for index in bar]


@contextmanager
def timed_engine(
    args: argparse.Namespace, **engine_options: Any
) -> Iterator[tuple["TTSEngine", float]]:
    """Load the engine of the command line; yield it and the seconds that loading took."""
    started = time.perf_counter()
    with options.engine_from_args(args, **engine_options) as tts:
        yield tts, time.perf_counter() - started


def run_once(tts: "TTSEngine", args: argparse.Namespace, index: int) -> dict[str, Any]:
    """Speak once, reading chunks as they come. Run i has the seed --seed + i, so runs differ."""
    speech_options = options.speech_options(args, tts)
    speech_options["seed"] = (args.seed or 0) + index
    stream = tts.stream(
        running.read_text(args.text),
        first_chunk_frames=args.first_chunk_frames,
        chunk_frames=args.chunk_frames,
        **speech_options,
    )
    chunks = list(stream)
    samples = np.concatenate([chunk.samples for chunk in chunks])
    times = [chunk.t_ms for chunk in chunks]
    durations = [1000 * len(chunk.samples) / stream.sample_rate for chunk in chunks]
    silence = playback.leading_silence_ms(samples, stream.sample_rate)
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
        "underruns": len(playback.playback_gaps(times, durations, 0)),
        f"underruns_{CLIENT_BUFFER_MS}ms": len(
            playback.playback_gaps(times, durations, CLIENT_BUFFER_MS)
        ),
        "total_ms": timings["total"],
        "audio_s": sum(durations) / 1000,
    }


def result(
    tts: "TTSEngine", runs: list[dict[str, Any]], settings: dict[str, Any]
) -> dict[str, Any]:
    """Return a result object of runs that have the figures of `METRICS`, or some of them."""
    names = [name for name in METRICS if name in runs[0]]
    return engine_header(tts) | {
        "settings": settings,
        "peak_memory_mb": peak_memory_mb(),
        "summary": {name: spread([run[name] for run in runs]) for name in names},
        "runs": runs,
    }


def header() -> dict[str, Any]:
    """Return a result object's beginning: time, commit, command and machine."""
    from qwen_megakernel.cli.doctor import report

    found = report()
    return {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "machine": machine.facts()
        | {key: found[key] for key in ("gpu", "platform", "python")}
        | {"torch": found["packages"]["torch"]},
    }


def model_header(files: "Files", **facts: Any) -> dict[str, Any]:
    """Return `header`, the model, whether its weights are random, and other facts of the run."""
    return header() | {"model": files.name, "is_synthetic": files.is_synthetic} | facts


def engine_header(tts: "TTSEngine") -> dict[str, Any]:
    """Return `model_header` with backend, device, precision and number of threads."""
    threads = {"threads": tts.num_threads} if tts.device.type == "cpu" else {}
    return model_header(
        tts.files, backend=tts.backend, device=str(tts.device), dtype=tts.dtype_name, **threads
    ) | native_set(tts.backend)


def native_set(backend: str) -> dict[str, str]:
    """Return the instruction set of the CPU decoder's native code; {} for other backends."""
    return {"instruction_set": cpu_library.choose_set()} if backend == "cpu" else {}


def random_prompt(decoder: "FrameDecoder", num_positions: int, seed: int = 1) -> "Prefill":
    """Return a prompt of random embeddings, without trailing text."""
    import torch

    from qwen_megakernel.records import Prefill

    width = decoder.config.talker.stack.hidden_size
    generator = torch.Generator().manual_seed(seed)
    rows = 0.3 * torch.randn(num_positions + 1, width, generator=generator)
    rows = rows.to(decoder.embeddings.device, decoder.embeddings.dtype)
    return Prefill(rows[:-1], rows[:0], rows[-1])


def name_of(dtype: "torch.dtype") -> str:
    """Return "float32" or "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def commit() -> str:
    """Return the commit of this checkout, from tools/gpu_check.sh or from git; "-dirty" when
    tracked files differ from it.
    """
    if given := os.environ.get("QWEN_MEGAKERNEL_COMMIT"):
        return given
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


def with_bytecode() -> dict[str, str]:
    """Return the environment of a new process in which Python keeps what it has compiled.

    Otherwise it would compile this project's files in every process.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def peak_memory_mb() -> dict[str, float]:
    """Return this process's largest resident size, in MB. On a GPU, also return the peak memory of
    tensors, and the device's memory in use now, which includes graphs, code and other processes.
    """
    scale = 1 if platform.system() == "Darwin" else 1024  # bytes there, KiB elsewhere
    peaks = {"host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e6}
    import torch

    if torch.cuda.is_available():
        peaks["gpu"] = torch.cuda.max_memory_allocated() / 1e6
        free, total = torch.cuda.mem_get_info()
        peaks["device"] = (total - free) / 1e6
    return peaks


def spread(values: list[float], percentiles: Sequence[int] = (50, 95)) -> dict[str, float]:
    """Return mean and percentiles (nearest rank), as `mean`, `p50`, `p95`."""
    ordered = sorted(values)
    nearest = {p: ordered[max(0, -(-p * len(ordered) // 100) - 1)] for p in percentiles}
    return {"mean": float(np.mean(values))} | {f"p{p}": float(nearest[p]) for p in percentiles}


def summarize(values: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return `spread` of each figure, its largest value, and the number of values."""
    return {
        name: spread(each) | {"max": max(each), "count": len(each)} for name, each in values.items()
    }


def hold_against(
    limits: dict[str, Any],
    args: argparse.Namespace,
    settings: Sequence[str],
    meanings: dict[str, str],
    values: dict[str, list[float]],
    facts: dict[str, Any] | None = None,
) -> int:
    """Print figures that have limits, and write the result file.

    Args:
        limits: figure -> the limit of its p95, or (which of its numbers, the limit).
        settings: the arguments to keep in the result file.
        meanings: figure -> its meaning.
        values: figure -> its values.
        facts: the beginning of the result; None: that of `header`.
    Returns:
        The exit code: 1 when a figure is above its limit.
    """
    summary = summarize(values)
    for name, figures in summary.items():
        cells = "".join(f"{key} {figures[key]:7.3f}  " for key in ("p50", "p95", "max"))
        print(f"{name:28}{cells} {meanings[name]}")
    kept = {name: getattr(args, name) for name in settings}
    found = {"settings": kept, "limits": limits, "summary": summary}
    write_json(args.json, (facts or header()) | found)
    missed = []
    for name, limit in limits.items():
        key, most = limit if isinstance(limit, tuple) else ("p95", limit)
        if summary[name][key] > most:
            missed.append(f"{name}: {key} is above {most}")
    return report_missed(missed)


def report_missed(missed: list[str]) -> int:
    """Report the limits that were missed; return the exit code, which is 1 if there are any."""
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
    """Print the summary as a table."""
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
    """Return matplotlib.pyplot, which draws to files, without a screen.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    with require("plots", by="--plot", package="matplotlib"):
        import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def plot(path: str | None, found: dict[str, Any], names: list[str]) -> None:
    """Draw a panel for each figure with a bar for each run; None draws nothing."""
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
