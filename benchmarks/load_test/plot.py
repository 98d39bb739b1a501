"""Draw the result of the load test: latency and underruns against load."""

from typing import Any

from benchmarks import common

PANELS = {
    "first_byte_ms": "first byte",
    "first_audible_ms": "first audible",
    "e2e_ms": "end to end",
}
ROWS = {"open": "requests per second", "closed": "listeners"}


def draw(path: str | None, found: dict[str, Any]) -> None:
    """Draw a row for each way to load and a panel for each figure; None draws nothing."""
    if path is None:
        return
    pyplot = common.load_pyplot()
    levels = [level for level in found["levels"] if level["completed"]]
    modes = [mode for mode in ROWS if any(level["mode"] == mode for level in levels)]
    size = 3.2 * (len(PANELS) + 1), 3.2 * max(1, len(modes))
    figure, axes = pyplot.subplots(len(modes), len(PANELS) + 1, figsize=size, squeeze=False)
    for row, mode in zip(axes, modes, strict=True):
        mine = [level for level in levels if level["mode"] == mode]
        loads = [level["load"] for level in mine]
        for axis, (name, title) in zip(row, PANELS.items(), strict=False):
            for percentile in ("p50", "p95", "p99"):
                values = [level["summary"][name][percentile] for level in mine]
                axis.plot(loads, values, marker="o", label=percentile)
            axis.set(title=title, ylabel="ms")
            axis.legend(fontsize=8)
        shares = [100 * level["underrun_share"] for level in mine]
        row[-1].plot(loads, shares, marker="o", color="black")
        row[-1].set(title="speeches with an underrun", ylabel="%")
        for axis in row:
            axis.set_xlabel(ROWS[mode])
            axis.set_ylim(bottom=0)
    machine = found["machine"]
    device = machine["gpu"]["name"] if machine["gpu"] else f"{machine['processor']}, no GPU"
    figure.suptitle(f"{found['model']} on {device}, commit {found['commit']}")
    figure.tight_layout()
    figure.savefig(path)
