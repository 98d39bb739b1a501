#!/usr/bin/env python3
"""Show where a frame's time goes: clock stamps of every block and stage of one launch, as a table.

Without FILE it measures on this machine's GPU. With --emulation it measures a toy model on the CPU,
which tests this program; those times mean nothing. It compiles the kernel with stamps
(csrc/stage_times.cuh); other builds have none. FILE is a file that --json or tools/gpu_check.sh
wrote.

A document has the schema below. Times are in microseconds. A stage that occurs often has the
medians over its occurrences.

    schema         "stage_times/1"; another number means that a key has changed its meaning
    model, weights, streams, frames, blocks, device, commit
    cycles_per_us  of the SMs
    us_per_frame   from the launch's start to its last release, divided by its frames
    stages         a list, longest of a frame first:
      name         "talker qkv_proj"
      per_frame    how often a frame has the stage
      frame_us     all occurrences in a frame: from release to release
      span_us      from release to release
      work_us      from the release to the arrival, in the median block ...
      longest_us   ... and in the block that arrives last
      hidden_us    what a block does between its arrival and the wait
      wait_us      the wait itself
      barrier_us   from the last arrival to its release: the least of all blocks
      rows_us      until the product's activations are in shared memory; null: no product
      starved_us   from there until its first tile of weights has arrived
      product_us   from there until its last tile has been multiplied
      straggler    the block that arrives last most often, and the share of occurrences
    timeline       a list of windows, each one layer or more of one stack: `stages` (name, layer),
                   and `us` [block][stage] of `moments`, counted from the window's first release
"""

import contextlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # torch reads this when it is imported

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # runs as a script from anywhere

import numpy as np
import torch

from benchmarks import common, option_types
from qwen_megakernel.cli import parsing
from qwen_megakernel.decoders.kernel import build
from qwen_megakernel.installing import install_command
from tools.gpu_check.steps.context import SMALL, TOY, Context

SCHEMA = "stage_times/1"
# StageRecord of csrc/tts_kernel.h
RECORD = np.dtype([("stamps", np.uint64, 6), ("stage", np.uint32), ("layer", np.uint32)])
STAMPS = ("rows_ready", "first_tile", "last_tile", "arrived", "prepared", "released")
MOMENTS = ("begin", "arrived", "prepared", "released")  # moments in the timeline
LAYER_STAGES = ("qkv_proj", "attention", "o_proj", "gate_up_proj", "down_proj")
WINDOW = 10  # stages: two layers of the talker; the predictor's last ones and the draw
PARTS = ("span", "work", "longest", "hidden", "wait", "barrier", "rows", "starved", "product")
COLORS = {"work": "tab:blue", "hidden": "tab:orange", "wait": "lightgray"}


@dataclass(frozen=True, slots=True)
class Launch:
    """The stamps of one launch, in microseconds since it began on the block's SM."""

    names: list[str]  # names of the stages, in order
    layers: list[int]
    us: dict[str, np.ndarray]  # of STAMPS, and "begin": [blocks, stages], NaN where there is none
    cycles_per_us: float

    @classmethod
    def from_records(cls, records: np.ndarray, stage_name: Callable[[int], str]) -> "Launch":
        """Read [blocks, records] of `RECORD`, which the kernel wrote.

        Raises:
            ValueError: no stamps, or blocks that went through different stages.
        """
        header = records["stamps"][:, 0].astype(np.int64)
        counts = (records["stage"][:, 1:] != 0).sum(axis=1)
        if not counts[0] or np.ptp(counts):
            raise ValueError(f"Blocks have {counts.min()} to {counts.max()} stages with stamps.")
        first, last = 1, 1 + counts[0]
        of_stages = records[:, first:last]
        if np.ptp(of_stages["stage"], axis=0).any() or np.ptp(of_stages["layer"], axis=0).any():
            raise ValueError("Blocks have gone through different stages.")
        cycles, ns = header[:, 2] - header[:, 0], header[:, 3] - header[:, 1]
        rate = float(np.median(1000 * cycles / ns))
        stamps = of_stages["stamps"].astype(np.int64)
        us = np.where(stamps == 0, np.nan, (stamps - header[:, :1, None]) / rate)
        found = {name: us[:, :, i] for i, name in enumerate(STAMPS)}
        found["begin"] = np.hstack([np.zeros((len(us), 1)), found["released"][:, :-1]])
        names = [stage_name(int(stage)) for stage in of_stages["stage"][0]]
        return cls(_with_stacks(names), of_stages["layer"][0].tolist(), found, rate)

    def parts(self) -> dict[str, np.ndarray]:
        """Return `PARTS` of every stage, [stages]; of the median block, or as the schema says."""

        def between(first: str, last: str) -> np.ndarray:
            return self.us[last] - self.us[first]

        def median(values: np.ndarray) -> np.ndarray:
            some = ~np.isnan(values).all(axis=0)  # blocks without a tile have no stamps of one
            found = np.full(values.shape[1], np.nan)
            found[some] = np.nanmedian(values[:, some], axis=0)
            return found

        return {
            "span": median(between("begin", "released")),
            "work": median(between("begin", "arrived")),
            "longest": between("begin", "arrived").max(axis=0),
            "hidden": median(between("arrived", "prepared")),
            "wait": median(between("prepared", "released")),
            "barrier": between("arrived", "released").min(axis=0),
            "rows": median(between("begin", "rows_ready")),
            "starved": median(between("rows_ready", "first_tile")),
            "product": median(between("first_tile", "last_tile")),
        }

    def stages(self, frames: int) -> list[dict[str, Any]]:
        """Return the schema's `stages`."""
        parts, names = self.parts(), np.array(self.names)
        stragglers = (self.us["arrived"] - self.us["begin"]).argmax(axis=0)
        rows = []
        for name in dict.fromkeys(self.names):
            here = names == name
            row: dict[str, Any] = {"name": name, "per_frame": here.sum() / frames}
            row["frame_us"] = round(parts["span"][here].sum() / frames, 3)
            for part in PARTS:
                values = parts[part][here]
                values = values[~np.isnan(values)]
                row[f"{part}_us"] = round(float(np.median(values)), 3) if len(values) else None
            block, times = Counter(stragglers[here].tolist()).most_common(1)[0]
            row["straggler"] = {"block": block, "share": round(times / here.sum(), 2)}
            rows.append(row)
        return sorted(rows, key=lambda row: -row["frame_us"])

    def timeline(self) -> list[dict[str, Any]]:
        """Return the schema's `timeline`: in the talker's last step, and the frame's last draw."""
        talker = [i for i, name in enumerate(self.names) if name == "talker qkv_proj"]
        draws = [i for i, name in enumerate(self.names) if name == "sample_code"]
        step = talker[-self.num_layers("talker") :]
        starts = [step[len(step) // 2]] if step else []
        starts += [max(0, draws[-1] + 1 - WINDOW)] if draws else []
        windows = []
        for start in starts:
            stages = range(start, min(start + WINDOW, len(self.names)))
            us = np.stack([self.us[moment][:, stages] for moment in MOMENTS], axis=-1)
            us -= us[:, :1, :1]
            windows.append(
                {
                    "stages": [[self.names[i], self.layers[i]] for i in stages],
                    "moments": list(MOMENTS),
                    "us": us.round(3).tolist(),
                }
            )
        return windows

    def num_layers(self, stack: str) -> int:
        """Return how many layers of a stack the launch ran."""
        pairs = zip(self.names, self.layers, strict=True)
        return max((layer + 1 for name, layer in pairs if name.startswith(stack)), default=0)


def _with_stacks(names: Sequence[str]) -> list[str]:
    """Put the name of its stack before each stage of a layer; the talker's layers follow
    `input`."""
    found, stack = [], "talker"
    for name in names:
        if name in LAYER_STAGES:
            found.append(f"{stack} {name}")
        else:
            found.append(name)
            stack = "talker" if name == "input" else "predictor"
    return found


@contextlib.contextmanager
def stamped_builds() -> Iterator[None]:
    """Give decoders that are made inside the block a library with stamps."""
    plain = build.build
    with mock.patch.object(
        build, "build", lambda config, target: plain(config, replace(target, stage_times=True))
    ):
        yield


def measure(context: Context, name: str, streams: int) -> dict[str, Any]:
    """Return a document about one launch of the model `name`, after two warm-up launches."""
    from tools.gpu_check.kernel_timer import PROMPT_POSITIONS, ForcedStreams

    sizes = {"num_slots": streams, "max_positions": PROMPT_POSITIONS + 32}
    with stamped_builds():
        decoder = context.decoder(context.load(name), dtype=context.dtype, **sizes)
    forced = ForcedStreams(decoder, streams, context.toy)
    blocks = decoder.launcher.num_blocks or decoder.library.max_blocks()
    shape = blocks, decoder.library.description.max_stage_records, RECORD.itemsize
    records = torch.zeros(shape, dtype=torch.uint8, device=decoder.device)
    forced.wall_ms(2)
    decoder._buffers.workspace.stage_times = records.data_ptr()
    forced.wall_ms(1)
    decoder._buffers.workspace.stage_times = None
    launch = Launch.from_records(
        records.cpu().numpy().view(RECORD)[..., 0], decoder.library.stage_name
    )
    on_gpu = decoder.device.type == "cuda"
    return {
        "schema": SCHEMA,
        "model": TOY if context.toy else name,
        "weights": str(context.dtype).removeprefix("torch."),
        "streams": streams,
        "frames": forced.FRAMES,
        "blocks": blocks,
        "device": torch.cuda.get_device_name() if on_gpu else "emulation",
        "commit": common.commit(),
        "cycles_per_us": round(launch.cycles_per_us, 1),
        "us_per_frame": round(float(np.median(launch.us["released"][:, -1])) / forced.FRAMES, 3),
        "stages": launch.stages(forced.FRAMES),
        "timeline": launch.timeline(),
    }


def documents(path: Path) -> list[dict[str, Any]]:
    """Return the documents of a file that this program or tools/gpu_check.sh wrote.

    Raises:
        SystemExit: there is none, or one has another schema.
    """
    found: Any = json.loads(path.read_text())
    if "steps" in found:
        found = ((found["steps"].get("stage_times") or {}).get("result") or {}).get("launches", [])
    elif "launches" in found:
        found = found["launches"]
    else:
        found = [found]
    schemas = {each.get("schema") for each in found}
    if schemas != {SCHEMA}:
        raise SystemExit(
            f"{path} has documents of {schemas or 'no schema'}; this program reads {SCHEMA}."
        )
    return found


def table(document: dict[str, Any], before: dict[str, Any] | None = None) -> str:
    """Return a document as a table; `before` adds the microseconds of an earlier frame."""
    d = document
    lines = [
        f"{d['model']}, {d['weights']}, {d['streams']} streams, {d['blocks']} blocks of "
        f"{d['device']} at {d['cycles_per_us']:.0f} MHz: {d['us_per_frame']:.1f} us a frame"
        + (f" ({before['us_per_frame']:.1f} before)" if before else "")
    ]
    columns = ("a frame", *(["before"] if before else []), "times", *PARTS)
    lines.append(f"{'us':24}" + "".join(f"{name:>9}" for name in columns) + "  last to arrive")
    earlier = {row["name"]: row["frame_us"] for row in before["stages"]} if before else {}
    for row in d["stages"]:
        values = [row["frame_us"], *([earlier.get(row["name"])] if before else [])]
        values += [row["per_frame"], *(row[f"{part}_us"] for part in PARTS)]
        cells = "".join(f"{'-' if v is None else format(v, '.2f'):>9}" for v in values)
        last = row["straggler"]
        lines.append(f"{row['name']:24}{cells}  block {last['block']}, {last['share']:.0%}")
    return "\n".join(lines)


def plot(document: dict[str, Any], path: Path) -> None:
    """Draw the timeline: a row for each block, a bar for each stage.

    Raises:
        SystemExit: matplotlib is missing.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit(
            f"The picture needs matplotlib: {install_command('plots')}; --json keeps what it is "
            "drawn from."
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    windows = document["timeline"]
    figure, axes = pyplot.subplots(len(windows), 1, figsize=(16, 6 * len(windows)), squeeze=False)
    for axis, window in zip(axes[:, 0], windows, strict=True):
        us = np.array(window["us"])  # [block][stage][moment]
        for block, stages in enumerate(us):
            for part, (first, last) in zip(COLORS, ((0, 1), (1, 2), (2, 3)), strict=True):
                bars = [(moments[first], moments[last] - moments[first]) for moments in stages]
                axis.broken_barh(bars, (block, 0.9), color=COLORS[part], label=part)
        for (name, layer), begin in zip(window["stages"], us[0, :, 0], strict=True):
            axis.text(begin, len(us), f"{name} {layer}", rotation=30, fontsize=8)
        axis.set(xlabel="us", ylabel="block", ylim=(0, len(us)))
        handles, labels = axis.get_legend_handles_labels()
        kept = dict(zip(labels, handles, strict=True))
        axis.legend(kept.values(), kept.keys(), loc="lower right")
    figure.suptitle(table(document).splitlines()[0], y=0.995)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def main() -> int:
    """Measure or read, print, and write."""
    parser = parsing.Parser(description=__doc__)
    add = parsing.adder(parser)
    add("file", "file with documents to print instead of measuring", Path, nargs="?")
    add("--model", "model to measure", str, SMALL)
    add("--streams", "number of streams in the launch", int, 1)
    add("--emulation", "measure a toy model on the CPU, to test this program without a GPU", bool)
    add(
        "--against FILE",
        "file with earlier documents, whose frame times are printed beside the new ones",
        Path,
    )
    add("--json FILE", "file to write the documents to", Path)
    add("--plot PNG", "file for a picture of the first document's timeline", option_types.plot_file)
    args = parser.parse_args()
    if args.file:
        found = documents(args.file)
    elif not (args.emulation or torch.cuda.is_available()):
        raise SystemExit("No GPU here; --emulation measures a toy model on the CPU.")
    else:
        context = Context(args.emulation, 0.0, Path("unused"))
        found = [measure(context, args.model, args.streams)]
    same = ("model", "weights", "streams")
    earlier = {
        tuple(each[key] for key in same): each
        for each in (documents(args.against) if args.against else ())
    }
    for each in found:
        print(table(each, earlier.get(tuple(each[key] for key in same))))
    if args.json:
        args.json.write_text(json.dumps({"launches": found}, indent=1) + "\n")
    if args.plot:
        plot(found[0], Path(args.plot))
    return 0


if __name__ == "__main__":
    sys.exit(main())
