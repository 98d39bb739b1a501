"""What is generated in the documents: python benchmarks/pages.py [PAGE] [--check].

Whole pages, or what is between two markers of a page, all from the committed result files. The two
pages about the kernel have no such file: the tools that compile it give their rows to `write`, and
without them the rows stay, and only the words around them are written anew.

python benchmarks/pages.py --plot FILE    draw floors and measured frames (needs [plots])
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # runs as a script from anywhere

from benchmarks import roofline
from qwen_megakernel.checkpoint.codec_config import parse_codec_config
from qwen_megakernel.checkpoint.config import ModelConfig, parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config, speech_tokenizer_config

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def write(page: str, lines: list[str], *, check: bool = False) -> bool:
    """Write a page, or what is between its markers if it has some.

    Args:
        page: its path in this repository.
        lines: what a generator of `PAGES` returns.
        check: write nothing.
    Returns:
        Whether the page was out of date.
    """
    document = ROOT / page
    old = document.read_text(encoding="utf-8")
    new = "\n".join(lines) + "\n"
    if BEGIN in old:
        before, rest = old.split(BEGIN)
        new = f"{before}{BEGIN}\n{new}{END}{rest.split(END)[1]}"
    if new != old and not check:
        document.write_text(new, encoding="utf-8")
    return new != old


def load_result(name: str) -> dict[str, Any]:
    """One result file."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8")) | {"file": name}


def load_results(pattern: str) -> list[dict[str, Any]]:
    """Result files of this name, in order."""
    return [load_result(path.name) for path in sorted(RESULTS.glob(pattern))]


def machine_of(result: dict[str, Any]) -> str:
    """What a result was measured on."""
    machine = result["machine"]
    if machine["gpu"]:
        return machine["gpu"]["name"]
    return f"{machine['processor']}, {machine['cores']} threads"


def model_of(result: dict[str, Any]) -> str:
    """Which model was measured, and whether its weights are real."""
    return result["model"] + (" (random weights)" if result["is_synthetic"] else "")


def cell(value: Any) -> str:
    """A value as a person reads it."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
    return str(value)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """The lines of a Markdown table."""
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    return lines + [f"| {' | '.join(map(cell, row))} |" for row in rows]


def source_of(result: dict[str, Any]) -> list[str]:
    """The last two cells of a row: the commit that was measured, and the result file."""
    return [result["commit"], f"`{result['file']}`"]


def busy_machine_of(result: dict[str, Any]) -> str:
    """The machine, and how busy it was: what else ran counts in wall time."""
    return f"{machine_of(result)}, load average {result['machine']['load_1min']:.1f}"


# ---- tables between the markers of a page --------------------------------------------------------


Cell = str | Callable[[dict[str, Any]], str]  # a format of a result, or a function of it


def result_table(pattern: str, columns: dict[str, Cell]) -> list[str]:
    """One row for each result file of this name, with its commit and its own name behind."""
    rows = []
    for result in load_results(pattern):
        cells = (
            c.format_map(result) if isinstance(c, str) else c(result) for c in columns.values()
        )
        rows.append([*cells, *source_of(result)])
    return table([*columns, "commit", "file"], rows)


def speech_table() -> list[str]:
    """Results of benchmark.py: what ran where, and its p50 figures."""
    columns: dict[str, Cell] = {
        "model": model_of,
        "backend": "{backend}, {dtype}",
        "machine": machine_of,
        "first frame": "{summary[first_frame_ms][p50]:.0f} ms",
        "first samples": "{summary[first_chunk_ms][p50]:.0f} ms",
        "RTF": "{summary[rtf][p50]:.2f}",
    }
    return result_table("benchmark_*.json", columns)


def voices_table() -> list[str]:
    """Results of `measure.py voices`, p50."""
    columns: dict[str, Cell] = {
        "model": model_of,
        "machine": machine_of,
        "x-vector": "{summary[x_vector_ms][p50]:.0f} ms",
        "codes": "{summary[codec_ms][p50]:.0f} ms",
        "a remembered voice": "{summary[cached_voice_ms][p50]:.1f} ms",
    }
    return result_table("voices_*.json", columns)


def pipecat_table() -> list[str]:
    """Results of `measure.py pipecat`."""
    columns: dict[str, Cell] = {
        "mode": lambda result: "TOKEN" if result["settings"]["token"] else "SENTENCE",
        "pipelines": "{settings[pipelines]}",
        "machine": machine_of,
        "chunk to frame, p95": "{summary[overhead_ms][p95]:.1f} ms",
        "event loop held": "{summary[loop_held_ms][max]:.1f} ms CPU, "
        "{summary[loop_held_wall_ms][max]:.1f} ms by the clock",
        "barge-in to engine told, p95": "{summary[quiet_ms][p95]:.2f} ms",
    }
    return result_table("pipecat_*.json", columns)


def load_table() -> list[str]:
    """One row a level of a result file of the load test."""
    columns = ["model", "load", "machine", "first byte", "first audible", "end to end"]
    columns += ["underrun, with 100 ms", "xRT", "commit", "file"]
    rows = []
    for result in load_results("load_*.json"):
        for level in result["levels"]:
            unit = "requests/s" if level["mode"] == "open" else "listeners"
            times = [
                " / ".join(f"{level['summary'][name][rank]:.0f}" for rank in ("p50", "p95", "p99"))
                for name in ("first_byte_ms", "first_audible_ms", "e2e_ms")
            ]
            rows.append(
                [
                    result["model"],
                    f"{level['load']:g} {unit}",
                    busy_machine_of(result),
                    *times,
                    f"{level['underrun_share']:.0%}, {level['underrun_100ms_share']:.0%}",
                    f"{level['xrt']:.2f}",
                    *source_of(result),
                ]
            )
    return table(columns, rows)


def server_table() -> list[str]:
    """One row a figure of each result file of `measure.py server`."""
    rows = []
    for result in load_results("server_*.json"):
        settings = result["settings"]
        names = {
            "first_byte_overhead_ms": "first byte",
            "real_first_byte_overhead_ms": f"first byte, {settings['model']}",
            "chunk_overhead_ms": f"chunk, {settings['streams']} streams",
            "crowd_chunk_overhead_ms": f"chunk, {settings['crowd']} streams",
            "underruns_added": f"gaps added to each of {settings['crowd']} streams",
        }
        for name, title in names.items():
            if name in result["summary"]:
                unit = " ms" if name.endswith("_ms") else ""
                figures = [
                    f"{result['summary'][name][key]:.1f}{unit}" for key in ("p50", "p95", "max")
                ]
                rows.append([title, *figures, busy_machine_of(result), *source_of(result)])
    return table(["figure", "p50", "p95", "longest", "machine", "commit", "file"], rows)


# ---- docs/performance.md -------------------------------------------------------------------------


FRAME_MS = 80
PARTS = ("decode", "vocoder", "overhead")  # of a frame, as `measure.py streams` names them
PROMPTS = (10, 110, 200)
BATCH, POSITION = (1, 4, 16, 64), 250
PRECISIONS = ("bf16", "int8-talker", "int8")
# Goals of this project for an H200, milliseconds a frame of one stream, bf16.
GOALS = {"random-0.6b-base": (1.56, 1.15), "random-1.7b": (2.02, 1.57)}

# Steps of tools/gpu_check: title, and the columns shown ("a.b": b of a).
GPU_TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "batch_curve": (
        "A frame of many streams, host included",
        ("model", "backend", "streams", "ms_per_frame", "times_real_time"),
    ),
    "int8_frame_times": (
        "A frame with int8 layers, beside those as they are",
        ("model", "weights", "streams", "ms_per_frame", "mb_per_frame", "share_of_copy"),
    ),
    "first_sound": ("From text to first sound, ms", ("model", "stage", "ms.p50", "ms.p95")),
    "open_loop": (
        "Requests that come when they like (random weights, end token masked, drawn lengths)",
        (
            *("model", "rps", "requests", "first_chunk_planned_ms.p50"),
            *("first_chunk_planned_ms.p95", "underruns", "times_real_time"),
        ),
    ),
    "capacity": (
        "Listeners who play what they hear",
        ("model", "listeners", "requests", "first_chunk_ms.p50", "first_chunk_ms.p95", "underruns"),
    ),
    "peers": (
        "The same checkpoint on other decoders",
        ("model", "system", "ms_per_frame.p50", "times_the_best"),
    ),
    "memory": (
        "Load time and memory (gpu: tensors at their peak; device: all that was taken of it)",
        (
            *("model", "streams", "load_s"),
            *("peak_memory_mb.host", "peak_memory_mb.gpu", "peak_memory_mb.device"),
        ),
    ),
    "texts": (
        "Short, medium and long texts; first packets of 1 and 3 frames; the system's own voice",
        ("model", "system", "text", "first_chunk_ms.p50", "total_ms.p50"),
    ),
}


def performance() -> list[str]:
    """docs/performance.md: what was measured beside what is calculated."""
    gpus = gpu_results()
    lines = [
        "# Performance",
        "",
        "Generated by `benchmarks/pages.py`: measured figures from the files in "
        "`benchmarks/results/`, calculated ones from the",
        "model's config and the GPUs' data sheets (`benchmarks/roofline.py`). Random weights take "
        "the time of real ones; they say nothing",
        "about how it sounds.",
        "",
        "## Measured on a CPU",
        "",
        *measured_cpu(),
        "## Measured on a GPU",
        "",
    ]
    if not gpus:
        lines += [
            "Nothing yet: no GPU was at hand. On a machine with one, four commands leave files in "
            "`benchmarks/results/`, and this section is",
            "written from them (`docs/gpu-setup.md` fits them into half an hour):",
            "",
            "```",
            "tools/gpu_check.sh",
            "tools/gpu_check.sh --set listeners",
            "tools/gpu_check.sh --set int8",
            "tools/gpu_check.sh --set endurance",
            "python benchmarks/pages.py docs/performance.md",
            "```",
            "",
        ]
    for name, results in gpus.items():
        lines += measured_gpu(name, results)
    lines += ["## Calculated, not measured", "", *calculated()]
    lines += [
        "A floor is what the memory alone demands. Barriers, starting kernels and the host come on "
        "top; `benchmarks/LOG.md` holds what is",
        "expected of them and what came of each experiment.",
    ]
    return lines


def value(row: dict[str, Any], column: str) -> Any:
    """row["a"]["b"] for "a.b"; None where there is none."""
    found: Any = row
    for name in column.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def spaced_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """A Markdown table and the empty line behind it."""
    return [*table(columns, rows), ""]


def measured_cpu() -> list[str]:
    """Decoding against this machine's memory, from `measure.py bandwidth`."""
    rows = []
    for result in load_results("bandwidth_*.json"):
        rows.append(
            [
                model_of(result),
                f"{machine_of(result)}, {result['dtype']}",
                f"{result['weight_bytes_per_frame'] / 1e9:.2f} GB",
                f"{result['read_bandwidth_gb_s']:.1f} GB/s",
                f"{result['floor_ms_per_frame']:.1f} ms",
                f"{result['summary']['decode_ms_per_frame']['p50']:.1f} ms",
                f"{result['times_the_floor']:.2f}",
                ", ".join(source_of(result)),
            ]
        )
    columns = ["model", "machine", "weights a frame", "memory reads", "floor", "measured, p50"]
    return spaced_table([*columns, "times the floor", "commit, file"], rows) + streams_table()


def streams_table() -> list[str]:
    """Streams side by side, from `measure.py streams`; the engine's part is told apart."""
    rows = []
    for result in load_results("streams_cpu_*.json"):
        per_frame = (result["summary"][f"{part}_ms_per_frame"]["p50"] for part in PARTS)
        rows.append(
            [
                *(model_of(result), result["settings"]["streams"]),
                f"{machine_of(result)}, {result['dtype']}",
                f"{result['summary']['rtf']['p50']:.2f}",
                *per_frame,
                ", ".join(source_of(result)),
            ]
        )
    columns = ["model", "streams", "machine", "RTF of all", *(f"{part}, ms" for part in PARTS)]
    note = "Streams at once, and what each of their frames costs, p50; overhead is all the rest:"
    return [note, "", *spaced_table([*columns, "commit, file"], rows)]


def gpu_results() -> dict[str, list[dict[str, Any]]]:
    """Results of tools/gpu_check.sh by GPU; those by emulation say nothing about speed."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(RESULTS.glob("gpu_*/result.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if not result["emulation"]:
            name = (result["device"] or {}).get("name", "unnamed GPU")
            found.setdefault(name, []).append(result | {"file": f"{path.parent.name}/{path.name}"})
    return found


def measured_gpu(name: str, results: list[dict[str, Any]]) -> list[str]:
    """Everything that was measured on one GPU."""
    lines = [f"### {name}", ""]
    for result in results:
        device = result["device"] or {}
        lines.append(
            f"`{result['file']}`: commit {result['commit']}, driver "
            f"{device.get('driver_version', 'unknown')}, {result['created']}."
        )
        lines.append("")
        steps = result["steps"]
        statuses = [f"{step} {told(found)}" for step, found in steps.items()]
        lines += [f"Steps: {', '.join(statuses)}.", ""]
        lines += frame_table(steps)
        for step, (title, columns) in GPU_TABLES.items():
            rows = ((steps.get(step) or {}).get("result") or {}).get("rows", [])
            if rows:
                lines += [f"{title}:", ""]
                lines += spaced_table(
                    list(columns), [[value(row, c) for c in columns] for row in rows]
                )
    return lines


def told(found: dict[str, Any]) -> str:
    """The status of a step; of one that fell short of its goal, how far it came."""
    if found["status"] != "short":
        return found["status"]
    return f"short ({found['result']['launches']} of {found['result']['goal']} launches)"


def frame_table(steps: dict[str, Any]) -> list[str]:
    """Kernel frames beside their floor at the bandwidth that was measured in the same run."""
    found = (steps.get("frame_times") or {}).get("result")
    if not found:
        return []
    rows = []
    for row in found["rows"]:
        floor = row["mb_per_frame"] / found["copy_gb_per_s"]
        must, goal = GOALS.get(row["model"], (None, None)) if row["streams"] == 1 else (None, None)
        rows.append(
            [
                *(row["model"], row["streams"], row["ms_per_frame"], floor),
                *(row["ms_per_frame"] / floor, f"{100 * row['share_of_copy']:.0f} %", must, goal),
            ]
        )
    columns = ["model", "streams", "ms a frame", "floor, ms", "times the floor", "of a copy"]
    copy = f"A copy moves {found['copy_gb_per_s']:.0f} GB/s (read and written)."
    return [copy, "", *spaced_table([*columns, "must, ms", "goal, ms"], rows)]


def configs() -> dict[str, ModelConfig]:
    """The released sizes."""
    return {
        size: parse_model_config(model_config(name)) for size, name in roofline.RELEASED.items()
    }


def calculated() -> list[str]:
    """Bytes and floors from the config and the GPUs' data sheets."""
    lines = ["Weights that one frame reads, whatever the number of streams:", ""]
    rows = [
        [size]
        + [f"{roofline.weight_bytes(config, p) / 1e6:.0f} MB" for p in PRECISIONS]
        + [roofline.frame_barriers(config, streams=streams) for streams in (1, 2)]
        for size, config in configs().items()
    ]
    lines += spaced_table(
        ["", *PRECISIONS, "kernel's grid barriers", "with 2 streams and more"], rows
    )
    lines += ["Milliseconds a frame of one stream, at least (a frame is 80 ms of speech):", ""]
    rows = []
    for gpu in roofline.GPUS:
        row: list[Any] = [gpu.name, f"{gpu.gb_per_s:.0f}"]
        for config in configs().values():
            row += [
                f"{roofline.milliseconds(roofline.weight_bytes(config, p), gpu.gb_per_s):.3f}"
                for p in PRECISIONS
            ]
        rows.append([*row, gpu.source])
    heads = [f"{size} {p}" for size in roofline.RELEASED for p in PRECISIONS]
    lines += spaced_table(["GPU", "GB/s, published", *heads, "source"], rows)
    lines += [
        f"Prompts of {', '.join(map(str, PROMPTS))} positions, then the first frame, which needs "
        "no talker step, then the vocoder's weights",
        "in float32: the least that a first sound can take, bf16, ms:",
        "",
    ]
    return lines + first_sound_table() + batch_table()


def first_sound_table() -> list[str]:
    """Floors of the way to the first sound."""
    codec = parse_codec_config(speech_tokenizer_config(roofline.RELEASED["0.6B"]))
    vocoder_bytes = 4 * roofline.vocoder_weights(codec)
    rows = []
    for gpu in roofline.GPUS:
        vocoder = roofline.milliseconds(vocoder_bytes, gpu.gb_per_s)
        for size, config in configs().items():
            prompts = [roofline.prompt_floor_ms(config, n, gpu) for n in PROMPTS]
            frame = roofline.milliseconds(roofline.first_frame_bytes(config), gpu.gb_per_s)
            rows.append([gpu.name, size, *prompts, frame, vocoder, prompts[1] + frame + vocoder])
    columns = ["GPU", "model", *(f"prompt {n}" for n in PROMPTS), "first frame", "vocoder"]
    return spaced_table([*columns, f"first sound, prompt {PROMPTS[1]}"], rows)


def batch_table() -> list[str]:
    """Floors of a frame of many streams."""
    rows = []
    for size, config in configs().items():
        for streams in BATCH:
            bytes_ = roofline.frame_bytes(config, 2, streams, POSITION)
            ms = roofline.milliseconds(bytes_, roofline.GPUS[0].gb_per_s)
            rows.append([size, streams, f"{bytes_ / 1e6:.0f} MB", ms, streams * FRAME_MS / ms])
    return [
        f"Many streams at position {POSITION} on an {roofline.GPUS[0].name}: weights are read "
        "once, keys and values by each.",
        "",
        *spaced_table(["model", "streams", "bytes a frame", "floor, ms", "times real time"], rows),
    ]


def plot(path: str) -> None:
    """Floors of a bf16 frame by GPU, and what was measured."""
    from benchmarks import common  # brings torch, which the page does not need

    pyplot = common.load_pyplot()
    figure, axis = pyplot.subplots(figsize=(9, 4))
    places = range(len(roofline.GPUS))
    for offset, (size, config) in zip((-0.2, 0.2), configs().items(), strict=True):
        floors = [
            roofline.milliseconds(roofline.weight_bytes(config, "bf16"), gpu.gb_per_s)
            for gpu in roofline.GPUS
        ]
        axis.bar([place + offset for place in places], floors, 0.4, label=f"{size} floor, bf16")
    for name, results in gpu_results().items():
        for result in results:
            rows = ((result["steps"].get("frame_times") or {}).get("result") or {}).get("rows", [])
            for row in (row for row in rows if row["streams"] == 1):
                short = [i for i, gpu in enumerate(roofline.GPUS) if gpu.name.split()[0] in name]
                axis.plot(short[:1], [row["ms_per_frame"]] * len(short[:1]), "k_", markersize=24)
    axis.axhline(FRAME_MS, color="grey", linewidth=0.5)
    axis.set_yscale("log")
    axis.set_xticks(list(places), [gpu.name for gpu in roofline.GPUS], rotation=20, fontsize=8)
    axis.set(ylabel="ms a frame", title="Least time of a frame; a dash is a measured one")
    axis.legend()
    figure.tight_layout()
    figure.savefig(path)


# ---- docs/precision.md ---------------------------------------------------------------------------


# What tools/precision_table.py compares, and how this page calls the widths of roofline.py.
VARIANTS = {
    "fp32": "plain decoder, float32",
    "bf16": "plain decoder, bf16, rounded as the official code rounds",
    "mixed": "plain decoder, bf16 talker, float32 predictor",
    "int8_talker": "plain decoder, float32 arithmetic, int8 weights in the talker's layers",
    "int8": "plain decoder, float32 arithmetic, int8 weights in all layers",
    "int8_bf16": "plain decoder, bf16 arithmetic, int8 weights in all layers: its `--weights int8`",
    "kernel_fp32": "kernel (emulated), float32 weights",
    "kernel_bf16": "kernel (emulated), bf16 weights, activations near float32",
    "kernel_int8_talker": "the same, int8 weights in the talker's layers",
    "kernel_int8": "the same, int8 weights in all layers: its `--weights int8`",
}
WIDTHS = {
    "bf16": "bf16",
    "fp32": "fp32",
    "mixed": "bf16 talker, fp32 predictor",
    "int8-talker": "int8 talker, bf16 predictor",
    "int8": "int8, bf16 heads",
}


def precision() -> list[str]:
    """docs/precision.md, from the result of tools/precision_table.py."""
    result = load_result("precision.json")
    model, variants, machine = result["model"], result["variants"], result["machine"]
    names = [name for name in VARIANTS if name in variants and name != "fp32"]
    stages = ["talker after layer 1", f"talker after layer {model['layers'][0]}"]
    stages += ["talker hidden", "talker logits", "code_predictor after layer 1"]
    stages += [f"code_predictor after layer {model['layers'][1]}", "predictor logits"]
    errors, shares, sizes = [], [], []
    for stage in stages:
        found = (variants[name]["relative_rms_error"].get(stage) for name in names)
        errors.append([stage, *(None if rms is None else f"{rms:.1e}" for rms in found)])
    for name in names:
        best, drawn = variants[name]["best_code_agrees"], variants[name]["drawn_code_agrees"]
        found = (best["talker logits"], best["predictor logits"], drawn)
        shares.append([name, *(f"{100 * share:.1f} %" for share in found)])
    for size, config in configs().items():
        found = (roofline.weight_bytes(config, width) for width in WIDTHS)
        sizes.append([size, *(f"{num_bytes / 1e9:.2f} GB" for num_bytes in found)])
    return [
        "# Precision",
        "",
        "Generated by `benchmarks/pages.py` from `benchmarks/results/precision.json`",
        f"(commit {result['commit']}, {machine['processor']}, torch {machine['torch']}).",
        "",
        f"{result['frames']} frames, teacher-forced, of a model with {model['weights']} weights: "
        f"{model['layers'][0]} + {model['layers'][1]} layers,",
        f"hidden {model['hidden_size']}, intermediate {model['intermediate_size']}, "
        f"{model['heads'][0]}/{model['heads'][1]} heads of {model['heads'][2]}, "
        f"{model['code_groups']} codes: the 0.6B model's depth, a quarter of its width.",
        "Random weights have flatter logits than trained ones: take the order of the rows from "
        "here, not the",
        "share of changed codes. How each sounds needs the released weights; nobody has heard it, "
        "so int8 is off",
        "unless it is asked for.",
        "",
        "Relative RMS error against the plain decoder in float32, by stage:",
        "",
        *spaced_table(["stage", *names], errors),
        "Codes that stay the same: code 0 and the other codes by best logit, and all codes as "
        "drawn with the",
        "default sampling and the same random numbers:",
        "",
        "| | code 0, best | codes 1.., best | all, drawn |",
        *spaced_table([""] * 4, shares)[1:],
        "Bytes of weights a frame reads, computed from the released shapes:",
        "",
        f"| | {' | '.join(WIDTHS.values())} |",
        *spaced_table([""] * (1 + len(WIDTHS)), sizes)[1:],
        "Variants:",
        "",
        *(f"- `{name}`: {VARIANTS[name]}" for name in names),
    ]


# ---- the model card of demo-voice ----------------------------------------------------------------


KINDS = {"written": "written by hand", "template": "drawn from the training grammar", "all": "both"}
CARD_HEAD = """\
# {name}

A small text-to-speech checkpoint of this project in the Qwen3-TTS-12Hz architecture and file
layout, so that the first demo speaks without a download. It is a demonstration, not a good voice,
and holds no weight of Qwen's. How it is made: `tools/demo_voice/README.md`.

| | |
|---|---|
| says | everyday English in one flat voice (100 Hz, monotone) |
| size | {talker:.1f} M + {vocoder:.1f} M parameters (talker bf16, vocoder fp16), {size:.1f} MB |
| frame | 8 codebooks of 256 codes, 80 ms, 24 kHz |
| ask for | nothing, or `voice="demo"`, `language="english"` |
| cannot | clone voices: the codec encoder is left out; follow an instruction: it is ignored |
| trained on | speech of espeak-ng 1.51, one voice; nothing recorded from people |
| licence | Apache-2.0, as the project |

## Figures

From `benchmarks/results/{result}` (commit {commit}). The sentences were not
trained on. A word is right if most of its frames were drawn close to the reference's: that is
strict, and does not see faults of the vocoder. Sampling is the checkpoint's own; no voice and no
language are named.
"""
CARD_TAIL = """
A sentence's length is right within {tolerance:.0f} % of the reference's. "In full" puts the whole
text into the prefill (the default), "stepwise" feeds it a token with each frame, as a voice agent
does.
"""
CARD_RECOGNISER = """
pocketsphinx, an old recogniser that is weak on synthetic voices, gets {wrong_full:.0f} %
(stepwise {wrong_stepwise:.0f} %) of the words wrong on {sentences} of the sentences written by
hand; asked which of them was said, it is right in {told_full:.0f} % ({told_stepwise:.0f} %).
Of the codes of the reference, where only the vocoder can be at fault, it gets
{wrong_reference:.0f} % wrong.
"""
CARD_LIMITS = """
## Limits

Nobody has judged it by ear. One voice, one pitch, no feeling. Speech starts after some 0.4 s of
silence: the training target waits until enough of the first word is there. Words it has not met are
guessed from their spelling and often wrong. Long texts are best given as sentences of under 100
characters.
"""


def model_card() -> list[str]:
    """The card of the shipped voice, from the result of tools/demo_voice/evaluate.py."""
    from qwen_megakernel.checkpoint.loading import DEMO_VOICE, DEMO_VOICE_FOLDER
    from tools.demo_voice.evaluate import AS_REFERENCE, FEEDS, LENGTH_TOLERANCE

    result = load_result("demo_voice.json")
    weights = sum(path.stat().st_size for path in DEMO_VOICE_FOLDER.rglob("*.safetensors"))
    rows = []
    for (kind, label), feed in product(KINDS.items(), FEEDS):
        figures = result["sets"][f"{kind}, {feed}"]
        shares = (figures[key] for key in ("word_accuracy", "ended", "length_right"))
        cells = [f"{100 * share:.1f} %" for share in shares]
        rows.append([label, figures["sentences"], "in full" if feed == "full" else feed, *cells])
    head = CARD_HEAD.format(
        name=DEMO_VOICE,
        talker=result["parameters"]["talker"] / 1e6,
        vocoder=result["parameters"]["vocoder"] / 1e6,
        size=weights / 1e6,
        result=result["file"],
        commit=result["commit"],
    )
    columns = ["sentences", "number", "text", "words right", "ended by themselves", "length right"]
    tail = CARD_TAIL.format(tolerance=100 * LENGTH_TOLERANCE)
    if heard := result["recogniser"]:
        figures = {"sentences": heard[FEEDS[0]]["sentences"]}
        for feed in (*FEEDS, AS_REFERENCE):
            figures[f"wrong_{feed}"] = 100 * heard[feed]["word_error_rate"]
            figures[f"told_{feed}"] = 100 * heard[feed]["sentence_told_apart"]
        tail += CARD_RECOGNISER.format(**figures)
    return [*head.splitlines(), "", *table(columns, rows), *(tail + CARD_LIMITS).splitlines()]


# ---- the pages about the kernel ------------------------------------------------------------------


def rows_of(page: str) -> list[list[str]]:
    """The rows of the only table of a page, as they are."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    return [line[2:-2].split(" | ") for line in lines if line.startswith("|")][2:]


def kernel_ptxas(rows: list[list[str]] | None = None) -> list[str]:
    """docs/kernel_ptxas.md, with the rows of tools/kernel_study/ptxas_table.py."""
    columns = ["model", "weights", "arch", "kernel", "threads", "registers", "stack"]
    return [
        "# What ptxas says",
        "",
        "Written by `tools/kernel_study/ptxas_table.py`; bf16 weights, or int8 layers beside them.",
        "CPU s: of the compiler, for both kernels of an architecture, compiled side by side.",
        "",
        *table([*columns, "spill stores/loads", "CPU s"], rows_of(PTXAS) if rows is None else rows),
    ]


def kernel_mutations(rows: list[list[str]] | None = None) -> list[str]:
    """docs/kernel_mutations.md, with the rows of tools/kernel_study/mutate_kernel.py."""
    rows = rows_of(MUTATIONS) if rows is None else rows
    unexplained = sum(not any(row[2:]) for row in rows)
    columns = ["where", "removed", "other codes or failure", "ThreadSanitizer", "if nobody: why"]
    return [
        "# What happens when a synchronisation is removed",
        "",
        "Written by `tools/kernel_study/mutate_kernel.py`: "
        f"{len(rows)} mutants, {unexplained} unexplained.",
        "",
        *table(columns, rows),
    ]


# ---- command line --------------------------------------------------------------------------------


PTXAS, MUTATIONS = "docs/kernel_ptxas.md", "docs/kernel_mutations.md"
PAGES: dict[str, Callable[[], list[str]]] = {
    "README.md": speech_table,
    "docs/voices.md": voices_table,
    "docs/pipecat.md": pipecat_table,
    "docs/operations.md": load_table,
    "docs/serving.md": server_table,
    "docs/performance.md": performance,
    "docs/precision.md": precision,
    "qwen_megakernel/assets/demo-voice/MODEL_CARD.md": model_card,
    PTXAS: kernel_ptxas,
    MUTATIONS: kernel_mutations,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Write, check or draw; 1 when --check finds a page that is out of date."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "page", nargs="?", metavar="PAGE", choices=PAGES, help=f"one of {', '.join(PAGES)}"
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if out of date")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw the floors of docs/performance.md instead of writing"
    )
    args = parser.parse_args(argv)
    if args.plot:
        plot(args.plot)
        return 0
    pages = [args.page] if args.page else list(PAGES)
    stale = [page for page in pages if write(page, PAGES[page](), check=args.check)]
    if args.check and stale:
        print(f"out of date: {', '.join(stale)}; run python benchmarks/pages.py", file=sys.stderr)
    return int(args.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
