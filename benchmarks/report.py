"""From measurements to rows, a plain-text table and the JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.spi import LOWER_IS_BETTER, UNITS

Row = dict[str, Any]


def rows_of(lines: Sequence[dict[str, Any]], workloads: Sequence[str], systems: Sequence[str]) -> list[Row]:
    """One row per workload and system, in their order."""
    rows = []
    for workload in workloads:
        for system in systems:
            mine = [line for line in lines if line["workload"] == workload and line["system"] == system]
            if mine:
                rows.append(_row(workload, system, mine))
    return rows


def _row(workload: str, system: str, lines: Sequence[dict[str, Any]]) -> Row:
    good = [line for line in lines if line.get("error") is None]
    samples = [round(line["value"], 4) for line in good]
    newest = (good or list(lines))[-1]
    row: Row = {
        "workload": workload,
        "system": system,
        "version": newest["version"],
        "median": median(samples) if samples else None,
        "min": min(samples) if samples else None,
        "max": max(samples) if samples else None,
        "unit": UNITS[workload],
        "settings": newest["settings"],
        "samples": samples,
        "extra": [line["extra"] for line in good],
    }
    if "p99_ms" in newest["extra"]:
        row["p99_median"] = median(line["extra"]["p99_ms"] for line in good)
    errors = [line["error"] for line in lines if line.get("error") is not None]
    if errors:
        row["error"] = errors[-1]
    return row


def ratio_to(row: Row, reference: Row | None) -> float | None:
    """How many times better (above 1) or worse (below 1) than relaybox the system is."""
    if reference is None or not reference["median"] or not row["median"]:
        return None
    ratio = float(row["median"]) / float(reference["median"])
    return 1 / ratio if row["workload"] in LOWER_IS_BETTER else ratio


def table(rows: Iterable[Row], reference: str) -> str:
    """The medians, and each system's ratio to the reference (above 1: better than it)."""
    rows = list(rows)
    lines = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        mine = [row for row in rows if row["workload"] == workload]
        base = next((row for row in mine if row["system"] == reference), None)
        better = "lower is better" if workload in LOWER_IS_BETTER else "higher is better"
        lines += [
            "",
            f"{workload} — {UNITS[workload]}, {better}",
            f"  {'system':<29}{'version':<30}{'median':>12}{'min':>12}{'max':>12}{'x relaybox':>12}",
        ]
        lines += [_line(row, base) for row in mine if row["median"] is not None or not _is_baseline(row)]
    return "\n".join(lines)


def _line(row: Row, base: Row | None) -> str:
    head = f"  {row['system']:<29}{row['version'][:28]:<30}"
    if row["median"] is None:
        return f"{head}{'—':>12}  {row.get('error', '')[:90]}"
    ratio = ratio_to(row, base)
    shown = "—" if ratio is None else f"{ratio:.2f}"
    line = head + "".join(f"{_number(row[key]):>12}" for key in ("median", "min", "max")) + f"{shown:>12}"
    return "   ".join([line, *_remarks(row)])


def _remarks(row: Row) -> list[str]:
    """What else belongs to the figure: medians over its repeats."""
    extras = row["extra"]
    remarks = []
    if "p99_median" in row:
        remarks.append(f"p99 {row['p99_median']:.2f} ms")
    if "p50_ms" in extras[0]:
        remarks.append(f"p50 {median(extra['p50_ms'] for extra in extras):.2f} ms")
    if "of_bare" in extras[0]:
        remarks.append(f"{median(extra['of_bare'] for extra in extras):.2f} of bare, same driver")
    for name, unit in (("wal_per_delivery", "bytes of WAL/delivery"), ("wal_per_ack", "bytes of WAL/ack")):
        if name in extras[0]:
            remarks.append(f"{median(extra[name] for extra in extras):.2f} {unit}")
    if "cpu_us" in extras[0]:
        sides = [f"{side} {median(extra['cpu_us'][side] for extra in extras):.0f}" for side in extras[0]["cpu_us"]]
        remarks.append(f"CPU µs/event: {', '.join(sides)}")
    if wrong := max(extra.get("out_of_order", 0) for extra in extras):
        remarks.append(f"up to {wrong} out of order")
    if "error" in row:
        remarks.append(f"({len(row['samples'])} good; {row['error'][:60]})")
    return remarks


def _is_baseline(row: Row) -> bool:
    return str(row["system"]).startswith("bare")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def write_json(path: Path, header: dict[str, Any], rows: Sequence[Row]) -> None:
    """The header object first, then one object per workload and system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([{"header": header}, *rows], indent=2, ensure_ascii=False) + "\n")
