"""The picture of a result of bench_server.py: latency against load."""

from typing import Any

from benchmarks import common

PANELS = (
    ("first_byte_ms", "first byte"),
    ("first_audible_ms", "first audible"),
    ("e2e_ms", "end to end"),
)


def draw(path: str | None, found: dict[str, Any]) -> None:
    """A panel for each figure, and one for underruns; None draws nothing."""
    if path is None:
        return
    pyplot = common.load_pyplot()
    levels = [level for level in found["levels"] if level["completed"]]
    figure, axes = pyplot.subplots(1, len(PANELS) + 1, figsize=(3.4 * (len(PANELS) + 1), 3.2))
    for mode, style, unit in (("open", "-", "requests/s"), ("closed", "--", "listeners")):
        mine = [level for level in levels if level["mode"] == mode]
        if not mine:
            continue
        loads = [level["load"] for level in mine]
        for axis, (name, title) in zip(axes, PANELS, strict=False):
            for percentile in ("p50", "p95", "p99"):
                values = [level["summary"][name][percentile] for level in mine]
                axis.plot(loads, values, style, marker="o", label=f"{percentile}, {mode} loop")
            axis.set(title=title, ylabel="ms")
        shares = [100 * level["underrun_share"] for level in mine]
        axes[-1].plot(loads, shares, style, marker="o", color="black", label=f"{mode} loop")
        for axis in axes:
            axis.set_xlabel(f"{axis.get_xlabel()} {unit}".strip())
    axes[-1].set(title="speeches with an underrun", ylabel="%")
    for axis in axes:
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=7)
    machine = found["machine"]
    device = machine["gpu"]["name"] if machine["gpu"] else f"{machine['processor']}, no GPU"
    figure.suptitle(f"{found['model']} on {device}, commit {found['commit']}")
    figure.tight_layout()
    figure.savefig(path)
