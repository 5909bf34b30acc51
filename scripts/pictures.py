"""Draws docs/pictures/*.svg: what commands print in a terminal, and the figures of benchmarks/results as bars.

The figures are those of the last run of `python -m benchmarks` that was kept.
"""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
COLUMNS = 80
TERMINAL = {"demo": ["relaybox", "demo"]}
OURS, OTHERS, TEXT = "#1f9a7f", "#8a93a3", "#7d8590"  # to be read on light pages and dark ones
# A picture, its workload and unit, and who is shown by which name.
BARS: list[tuple[str, str, str, dict[str, str]]] = [
    (
        "relay-kafka",
        "relay_kafka_1",
        "events/s to Kafka, each key in order, one process",
        {
            "kafka_bare": "bare producer, no database",
            "relaybox": "relaybox",
            "naive_publisher": "a plain poller, no order",
            "faststream-outbox": "faststream-outbox",
        },
    ),
    (
        "wal",
        "wal",
        "bytes of WAL for an event, written and delivered",
        {
            "pgq": "PgQ",
            "relaybox": "relaybox",
            "pgmq": "pgmq",
            "faststream-outbox": "faststream-outbox",
            "graphile-worker": "Graphile Worker",
            "pg-boss": "pg-boss",
            "procrastinate": "procrastinate",
            "pgqueuer": "pgqueuer",
        },
    ),
]


def shot(name: str, command: list[str]) -> None:
    """Run the command in a terminal of its own, and draw what it printed."""
    with tempfile.TemporaryDirectory() as folder:
        ours, its = pty.openpty()
        environment = os.environ | {"COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "PATH": _path()}
        process = subprocess.Popen(command, cwd=folder, stdout=its, stderr=its, env=environment)
        os.close(its)
        printed = _all_of(ours)
        if process.wait():
            raise SystemExit(f"{' '.join(command)} failed:\n{printed}")
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"$ {' '.join(command)}\n{printed}"))
    svg = console.export_svg(title=" ".join(command), theme=MONOKAI, unique_id=name)
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)  # the site takes no font from another host
    (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")


def _path() -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def _all_of(terminal: int) -> str:
    parts = []
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # its other end is closed
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode().replace("\r\n", "\n")


def bars(name: str, title: str, shown: Iterable[tuple[str, float]]) -> None:
    """Horizontal bars with their figures, the first at the top."""
    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams.update({"svg.hashsalt": name, "text.color": TEXT, "ytick.color": TEXT, "font.size": 10})
    pairs = list(shown)[::-1]
    figure, panel = pyplot.subplots(figsize=(8, 0.42 * len(pairs) + 0.6), layout="constrained")
    labels, values = [label for label, _ in pairs], [value for _, value in pairs]
    panel.barh(labels, values, color=[OURS if label == "relaybox" else OTHERS for label in labels], height=0.62)
    for place, value in enumerate(values):
        panel.text(value, place, f"  {value:,.0f}", va="center")
    panel.set_title(title, loc="left", fontsize=10)
    panel.set_xticks([])
    panel.tick_params(left=False)
    panel.margins(x=0.14)
    panel.spines[:].set_visible(False)
    figure.savefig(PICTURES / f"{name}.svg", transparent=True, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    for name, command in TERMINAL.items():
        shot(name, command)
    rows: list[dict[str, Any]] = json.loads((ROOT / "benchmarks/results/latest.json").read_text(encoding="utf-8"))
    median = {(row["workload"], row["system"]): row["median"] for row in rows if "workload" in row}
    for name, workload, title, systems in BARS:
        bars(name, title, [(label, median[workload, system]) for system, label in systems.items()])


if __name__ == "__main__":
    main()
