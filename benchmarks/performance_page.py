"""Writes docs/performance.md: measured times beside the least that a device's bandwidth allows.

`cpu_page` makes the tables of a CPU.
"""

from typing import Any

from benchmarks import roofline
from benchmarks.cpu_page import measured_cpu
from benchmarks.page_parts import (
    FRAME_MS,
    UNKNOWN,
    footnotes,
    gpu_results,
    paragraph,
    spaced_table,
    timed_on,
    value,
)
from qwen_megakernel.checkpoint.codec_config import parse_codec_config
from qwen_megakernel.checkpoint.config import ModelConfig, parse_model_config
from qwen_megakernel.checkpoint.random_configs import model_config, speech_tokenizer_config

PROMPTS = (10, 110, 200)
BATCH, POSITION = (1, 4, 16, 64), 250
PRECISIONS = ("bf16", "int8-talker", "int8")
# Goals of this project for an H200, milliseconds a frame of one stream, bf16.
GOALS = {"random-0.6b-base": (1.56, 1.15), "random-1.7b": (2.02, 1.57)}

ARRIVALS = (
    "Requests at random times (random weights, end token masked, drawn lengths)",
    (
        *("model", "rps", "requests", "first_chunk_planned_ms.p50"),
        *("first_chunk_planned_ms.p95", "underruns", "times_real_time"),
    ),
)
# Steps of tools/gpu_check: title, and the columns shown ("a.b": b of a).
GPU_TABLES: dict[str, tuple[str, tuple[str, ...]]] = {
    "microbenchmark": (
        "An exchange of activations between all blocks while weights arrive: by a barrier, by "
        "words that are NaN until they are written, and by words with the stage's number",
        ("floats", "in_flight_kb", "barrier_us", "sentinel_us", "flagged_us"),
    ),
    "batch_curve": (
        "A frame of many streams, host included",
        ("model", "backend", "streams", "ms_per_frame", "times_real_time"),
    ),
    "int8_frame_times": (
        "A frame with int8 layers, compared with unquantised layers",
        ("model", "weights", "streams", "ms_per_frame", "mb_per_frame", "share_of_copy"),
    ),
    "variants": (
        "A frame on other builds of the kernel (`tools/gpu_check/variants.py`)",
        ("model", "variant", "streams", "ms_per_frame", "best_ms_per_frame", "same_codes"),
    ),
    "prompt_times": (
        "A prompt, on the kernel and as a graph",
        ("model", "backend", "positions", "enqueued_ms", "ms", "best_ms"),
    ),
    "vocoder_times": (
        "A chunk of the vocoder, with products in float32 and in TF32",
        ("streams", "frames", "products", "ms", "best_ms", "relative_rms_error"),
    ),
    "first_sound": (
        "From text to first sound, ms",
        ("model", "backend", "stage", "ms.p50", "ms.p95"),
    ),
    "open_loop": ARRIVALS,
    "open_loop_long": ARRIVALS,
    "capacity": (
        "Listeners that play the speech",
        ("model", "listeners", "requests", "first_chunk_ms.p50", "first_chunk_ms.p95", "underruns"),
    ),
    "peers": (
        "The same checkpoint on other decoders",
        ("model", "system", "ms_per_frame.p50", "times_the_best"),
    ),
    "memory": (
        "Load time and memory (gpu: tensors at their peak; device: all its memory in use)",
        (
            *("model", "streams", "load_s"),
            *("peak_memory_mb.host", "peak_memory_mb.gpu", "peak_memory_mb.device"),
        ),
    ),
    "texts": (
        "Short, medium and long texts; first packets of 1 and 3 frames, or whole; the system's own "
        "voice",
        (
            "model",
            "system",
            "text",
            "first_frames",
            "first_chunk_ms.p50",
            "total_ms.p50",
            "rtf.p50",
        ),
    ),
}


def performance() -> list[str]:
    """Return docs/performance.md: measured figures beside calculated ones."""
    lines = [
        "# Performance",
        "",
        *paragraph(
            "This page shows how long this project takes for a second of speech, and the least "
            "that the hardware allows. `benchmarks/pages.py` writes it: measured figures come from "
            "the files in `benchmarks/results/` that are named below each table, calculated "
            "ones from the model's config and the GPUs' data sheets (`benchmarks/roofline.py`). "
            "Models named `random-` have random weights, which take the time of real ones and say "
            "nothing about how speech sounds. A frame is 80 ms of speech; p50 and p95 are the "
            "median and the 95th percentile."
        ),
        "",
        "## Measured on a CPU",
        "",
        *measured_cpu(),
        "## Measured on a GPU",
        "",
    ]
    for name, results in gpu_results().items():
        lines += measured_gpu(name, results)
    return [*lines, "## Calculated, not measured", "", *calculated()]


def measured_gpu(name: str, results: list[dict[str, Any]]) -> list[str]:
    """Return the section with everything that was measured on one GPU."""
    lines = [f"### {name}", ""]
    for result in results:
        device = result["device"] or {}
        host = timed_on(result) if "machine" in result else f"not recorded {UNKNOWN}"
        source = (
            f"`{result['file']}`: commit {result['commit']}, driver "
            f"{device.get('driver_version', 'unknown')}, {result['created']}. Host: {host}"
        )
        lines += [source, *footnotes([source]), ""]
        steps = result["steps"]
        statuses = [f"{step} {told(found)}" for step, found in steps.items()]
        lines += [f"Steps: {', '.join(statuses)}.", ""]
        lines += frame_table(steps)
        for step, (title, columns) in GPU_TABLES.items():
            rows = ((steps.get(step) or {}).get("result") or {}).get("rows", [])
            # Only one kind of the micro-benchmark's rows has a table.
            cells = [[value(row, c) for c in columns] for row in rows if columns[0] in row]
            if cells:
                lines += [*paragraph(f"{title}:"), "", *spaced_table(columns, cells)]
    return lines


def told(found: dict[str, Any]) -> str:
    """Return the status of a step, and its launches if it fell short of its goal."""
    if found["status"] != "short":
        return found["status"]
    return f"short ({found['result']['launches']} of {found['result']['goal']} launches)"


def frame_table(steps: dict[str, Any]) -> list[str]:
    """Return kernel frames beside their floors at the bandwidth that the same run measured."""
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
    return {
        size: parse_model_config(model_config(name)) for size, name in roofline.RELEASED.items()
    }


def calculated() -> list[str]:
    """Calculate bytes and floors from the config and the GPUs' data sheets."""
    lines = paragraph(
        "A floor is the time for reading memory. Barriers, starting kernels and the host need "
        "further time; `benchmarks/LOG.md` records the predictions for them and the result of each "
        "experiment."
    )
    lines += ["", "Weights that one frame reads, whatever the number of streams:", ""]
    rows = [
        [size]
        + [f"{roofline.weight_bytes(config, p) / 1e6:.0f} MB" for p in PRECISIONS]
        + [roofline.frame_barriers(config, streams=streams) for streams in (1, 2)]
        for size, config in configs().items()
    ]
    lines += spaced_table(
        ["", *PRECISIONS, "kernel's grid barriers", "with 2 streams and more"], rows
    )
    lines += ["Milliseconds a frame of one stream, at least:", ""]
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
    lines += paragraph(
        f"The least that a first sound can take, in bf16, ms: prompts of "
        f"{', '.join(map(str, PROMPTS))} positions, then the first frame, which needs no talker "
        "step, then the vocoder's weights in float32:"
    )
    return [*lines, "", *first_sound_table(), *batch_table()]


def first_sound_table() -> list[str]:
    """Return the floors of each stage before the first sound."""
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
    """Return the floors of a frame of many streams."""
    rows = []
    for size, config in configs().items():
        for streams in BATCH:
            bytes_ = roofline.frame_bytes(config, 2, streams, POSITION)
            ms = roofline.milliseconds(bytes_, roofline.GPUS[0].gb_per_s)
            rows.append([size, streams, f"{bytes_ / 1e6:.0f} MB", ms, streams * FRAME_MS / ms])
    return [
        f"Many streams at position {POSITION} on an {roofline.GPUS[0].name}: weights are read "
        "once, keys and values once for each stream.",
        "",
        *spaced_table(["model", "streams", "bytes a frame", "floor, ms", "times real time"], rows),
    ]


def plot(path: str) -> None:
    """Draw the floors of a bf16 frame by GPU, and measured frames."""
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
