"""docs/performance.md: what was measured beside what is calculated, from the committed results.

python benchmarks/performance.py             write the page
python benchmarks/performance.py --check     exit 1 if that would change it
python benchmarks/performance.py --plot FILE draw floors and measured frames (needs [plots])
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # runs as a script from anywhere

from benchmarks import roofline, tables
from benchmarks.tables import RESULTS, ROOT, load_results, machine_of, model_of, source_of
from qwen_megakernel.checkpoint.codec_config import parse_codec_config
from qwen_megakernel.checkpoint.config import ModelConfig, parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config, speech_tokenizer_config

PAGE = ROOT / "docs" / "performance.md"
FRAME_MS = 80
PARTS = ("decode", "vocoder", "overhead")  # of a frame, as `measure.py streams` names them
PROMPTS = (10, 110, 200)
BATCH, POSITION = (1, 4, 16, 64), 250
PRECISIONS = ("bf16", "int8-talker", "int8")
# Goals of this project for an H200, milliseconds a frame of one stream, bf16.
GOALS = {"random-0.6b-base": (1.56, 1.15), "random-1.7b": (2.02, 1.57)}

# Steps of tools/gpu_silicon.py: title, and the columns shown ("a.b": b of a).
STEPS: dict[str, tuple[str, tuple[str, ...]]] = {
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


def value(row: dict[str, Any], column: str) -> Any:
    """row["a"]["b"] for "a.b"; None where there is none."""
    found: Any = row
    for name in column.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[str]:
    """A Markdown table and the empty line behind it."""
    return [*tables.table(columns, rows), ""]


# ---- measured


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
    return table([*columns, "times the floor", "commit, file"], rows) + streams_table()


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
    return [note, "", *table([*columns, "commit, file"], rows)]


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
        for step, (title, columns) in STEPS.items():
            rows = ((steps.get(step) or {}).get("result") or {}).get("rows", [])
            if rows:
                lines += [f"{title}:", ""]
                lines += table(list(columns), [[value(row, c) for c in columns] for row in rows])
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
    return [copy, "", *table([*columns, "must, ms", "goal, ms"], rows)]


# ---- calculated


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
    lines += table(["", *PRECISIONS, "kernel's grid barriers", "with 2 streams and more"], rows)
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
    lines += table(["GPU", "GB/s, published", *heads, "source"], rows)
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
    return table([*columns, f"first sound, prompt {PROMPTS[1]}"], rows)


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
        *table(["model", "streams", "bytes a frame", "floor, ms", "times real time"], rows),
    ]


def page() -> str:
    """docs/performance.md."""
    gpus = gpu_results()
    lines = [
        "# Performance",
        "",
        "Generated by `benchmarks/performance.py`: measured figures from the files in "
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
            "python benchmarks/performance.py",
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
    return "\n".join(lines) + "\n"


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


def main() -> int:
    """Write, check or draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if the page is out of date")
    parser.add_argument("--plot", metavar="FILE", help="draw instead of writing")
    args = parser.parse_args()
    if args.plot:
        plot(args.plot)
        return 0
    if args.check:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
