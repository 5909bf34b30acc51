"""The picture of a run: one panel of horizontal bars per workload."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from benchmarks.report import Row
from benchmarks.spi import LOWER_IS_BETTER, UNITS

OURS, BASELINE, PEER = "#1f6f5c", "#b9bdc4", "#6b86b3"


def draw(path: Path, rows: Sequence[Row], reference: str, title: str) -> None:
    """Write the PNG; whiskers show the smallest and largest sample."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    measured = [row for row in rows if row["median"] is not None]
    workloads = list(dict.fromkeys(row["workload"] for row in measured))
    if not workloads:
        return
    counts = [sum(row["workload"] == workload for row in measured) for workload in workloads]
    figure, panels = pyplot.subplots(
        len(workloads),
        1,
        figsize=(10, sum(0.34 * count + 1.0 for count in counts)),
        gridspec_kw={"height_ratios": [count + 1 for count in counts]},
        squeeze=False,
        layout="constrained",
    )
    figure.suptitle(title, fontsize=10)
    for panel, workload in zip(panels[:, 0], workloads, strict=True):
        mine = sorted((row for row in measured if row["workload"] == workload), key=lambda row: row["median"])
        lower = workload in LOWER_IS_BETTER
        mine = mine[::-1] if lower else mine
        values = [row["median"] for row in mine]
        spread = [
            [row["median"] - row["min"] for row in mine],
            [row["max"] - row["median"] for row in mine],
        ]
        colours = [_colour(row["system"], reference) for row in mine]
        panel.barh([row["system"] for row in mine], values, xerr=spread, color=colours, ecolor="#444")
        if max(values) > 50 * min(values):
            panel.set_xscale("log")
        for place, row in enumerate(mine):
            label = f" {row['median']:,.0f}" if row["median"] >= 100 else f" {row['median']:,.2f}"
            panel.text(row["max"], place, label, va="center", fontsize=8)
        better = "lower is better" if lower else "higher is better"
        panel.set_title(f"{workload} ({UNITS[workload]}, {better})", fontsize=9, loc="left")
        panel.tick_params(labelsize=8)
        panel.margins(x=0.15)
        panel.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _colour(system: str, reference: str) -> str:
    if system.startswith(reference):
        return OURS
    return BASELINE if "bare" in system else PEER
