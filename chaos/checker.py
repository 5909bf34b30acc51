"""Judges a trial by its histories alone:  python -m chaos.checker FOLDER

Reads *.bin (records.py), truth.bin (raw SQL dump of what committed) and meta.json. Imports nothing of relaybox.

    lost        committed, never delivered
    ghost       delivered, never committed: a rolled-back transaction or savepoint
    untruth     COMMIT_OK of something that is not there, ABORT or FAILED of something that is
    duplicate   delivered twice without a fault that explains it
    fence       Done accepted under a token although another one was given out later
    slow        a killed dispatcher's event was not taken over in time
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from .records import Fault, Op, read

TRUTH = struct.Struct("<QI")
SECOND = 1_000_000_000
BEFORE = int(1.5 * SECOND)  # longest time between a delivery and its settlement that a fault may interrupt
AFTER = 3 * SECOND  # how long after the database came back (or a process woke up) an interrupted settle may end
EXAMPLES = 5


class Deed(NamedTuple):
    """A record, without what is not needed here."""

    op: int
    incarnation: int
    worker: int
    attempt: int
    event_no: int
    key: int
    aux: int
    at: int

    @property
    def who(self) -> tuple[int, int]:
        return self.worker, self.incarnation


class Trouble(NamedTuple):
    kind: Fault
    who: tuple[int, int]
    start: int
    end: int


@dataclass
class Report:
    violations: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not any(self.violations.values())

    def blame(self, kind: str, text: str) -> None:
        self.violations[kind].append(text)

    def as_json(self) -> dict[str, Any]:
        counts = {kind: len(found) for kind, found in self.violations.items() if found}
        return {"verdict": "PASS" if self.passed else "FAIL", "violations": counts, **self.figures}

    def __str__(self) -> str:
        lines = [f"  {name:<28} {value}" for name, value in self.figures.items()]
        for kind, found in self.violations.items():
            lines += [f"  VIOLATION {kind}: {len(found)}"] + [f"    {text}" for text in found[:EXAMPLES]]
        return "\n".join([*lines, f"  verdict: {'PASS' if self.passed else 'FAIL'}"])


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


class Checker:
    def __init__(self, deeds: list[Deed], truth: set[int], *, ttl: float = 5.0, bound: int = 2_000) -> None:
        self._truth = truth
        self._ttl = ttl
        self._bound = bound  # duplicates one fault may cause: what one process may have in flight
        self._by_op: dict[int, list[Deed]] = defaultdict(list)
        for deed in sorted(deeds, key=lambda d: d.at):
            self._by_op[deed.op].append(deed)
        self._delivered: dict[int, list[Deed]] = defaultdict(list)
        for deed in self._by_op[Op.DELIVER]:
            self._delivered[deed.event_no].append(deed)
        self._faults = [
            Trouble(Fault(d.event_no), d.who, d.at, d.at + d.aux * 1_000_000) for d in self._by_op[Op.FAULT]
        ]
        self.report = Report()

    def run(self) -> Report:
        self._existence()
        self._honesty()
        self._duplicates()
        self._fences()
        self._recovery()
        self._latency()
        kinds = Counter(fault.kind.name for fault in self._faults)
        self.report.figures["faults"] = dict(sorted(kinds.items()))
        return self.report

    # -- nothing lost, nothing invented ---------------------------------------------------------------

    def _existence(self) -> None:
        report = self.report
        for number in sorted(self._truth - self._delivered.keys()):
            report.blame("lost", f"event {number} was committed and never delivered")
        aborted = {deed.event_no for deed in self._by_op[Op.ABORT]}
        for number in sorted(self._delivered.keys() - self._truth):
            why = "it was rolled back" if number in aborted else "it was never committed"
            report.blame("ghost", f"event {number} was delivered although {why}")
        report.figures["committed"] = len(self._truth)
        report.figures["delivered"] = len(self._delivered)
        report.figures["rolled back"] = len(aborted)

    def _honesty(self) -> None:
        for op, there, text in (
            (Op.COMMIT_OK, False, "was acknowledged and is not there"),
            (Op.ABORT, True, "was rolled back and is there"),
            (Op.FAILED, True, "failed before its commit and is there"),
        ):
            for deed in self._by_op[op]:
                if (deed.event_no in self._truth) == there:
                    self.report.blame("untruth", f"event {deed.event_no} {text}")
        unknown = {deed.event_no for deed in self._by_op[Op.COMMIT_UNKNOWN]}
        self.report.figures["commits unknown"] = f"{len(unknown)} events, {len(unknown & self._truth)} of them there"

    # -- twice only around faults -----------------------------------------------------------------------

    def _duplicates(self) -> None:
        caused: Counter[int] = Counter()
        extra = 0
        for number, deliveries in self._delivered.items():
            for former, again in pairwise(deliveries):
                extra += 1
                cause = self._cause(former, again)
                if cause is None:
                    gap = (again.at - former.at) / SECOND
                    self.report.blame(
                        "duplicate", f"event {number} again after {gap:.2f} s (by {again.who}) without a fault"
                    )
                else:
                    caused[cause] += 1
        for index, count in caused.items():
            if count > self._bound:
                self.report.blame("duplicate", f"{count} duplicates of one {self._faults[index].kind.name}")
        self.report.figures["duplicates"] = extra
        most = max(caused.values(), default=0)
        self.report.figures["duplicates of one fault"] = f"at most {most}, allowed {self._bound}"

    def _cause(self, former: Deed, again: Deed) -> int | None:
        """The fault that kept the former delivery from being settled."""
        for index, fault in enumerate(self._faults):
            if again.at <= fault.start:
                continue
            match fault.kind:
                case Fault.KILL_DISPATCHER:
                    # Until it was dead it went on delivering.
                    fits = fault.who == former.who and fault.start - BEFORE <= former.at <= fault.end
                case Fault.PAUSE:
                    fits = fault.who in (former.who, again.who) and (
                        fault.start - BEFORE <= former.at <= fault.end + AFTER
                    )
                case Fault.PG_RESTART | Fault.TERMINATE:
                    fits = fault.start - BEFORE <= former.at <= fault.end + AFTER
                case Fault.KILL_WRITER:
                    fits = False
            if fits:
                return index
        return None

    # -- a lost claim settles nothing ---------------------------------------------------------------------

    def _fences(self) -> None:
        gains: dict[int, list[Deed]] = defaultdict(list)
        for deed in self._by_op[Op.OWN_GAIN]:
            gains[deed.event_no].append(deed)
        for ack in self._by_op[Op.ACK_OK]:
            mine = [gain.at for gain in gains[ack.event_no] if gain.aux == ack.aux]
            if not mine:
                continue
            later = [g for g in gains[ack.event_no] if g.aux != ack.aux and max(mine) < g.at < ack.at]
            if later:
                self.report.blame("fence", f"event {ack.event_no} settled by {ack.who}, held by {later[-1].who}")
        self.report.figures["settled"] = len(self._by_op[Op.ACK_OK])

    # -- how soon others take over --------------------------------------------------------------------------

    def _recovery(self) -> None:
        acks = {(deed.event_no, deed.who) for deed in self._by_op[Op.ACK_OK]}
        owned: dict[tuple[int, int], set[int]] = defaultdict(set)
        for op in (Op.OWN_GAIN, Op.PUBLISH):
            for deed in self._by_op[op]:
                if deed.event_no in self._truth and (deed.event_no, deed.who) not in acks:
                    owned[deed.who].add(deed.event_no)
        limit = self._ttl + 5.0
        waits: list[float] = []
        for fault in self._faults:
            if fault.kind is not Fault.KILL_DISPATCHER:
                continue
            for number in owned[fault.who]:
                after = [d.at for d in self._delivered.get(number, ()) if d.at > fault.start and d.who != fault.who]
                if not after:
                    continue
                wait = (after[0] - fault.start) / SECOND
                waits.append(wait)
                outage = self._outage(fault.start, after[0])
                if wait > limit + outage:
                    self.report.blame("slow", f"event {number} of killed {fault.who} waited {wait:.1f} s")
        self.report.figures["taken over"] = len(waits)
        self.report.figures["recovery p50/p99/max s"] = [
            round(v, 2) for v in (percentile(waits, 0.5), percentile(waits, 0.99), max(waits, default=0.0))
        ]
        self.report.figures["recovery allowed s"] = limit

    def _outage(self, start: int, end: int) -> float:
        """Seconds in which the database was away, and what reconnecting takes."""
        return sum(
            (min(fault.end, end) - max(fault.start, start)) / SECOND + 2.0
            for fault in self._faults
            if fault.kind is Fault.PG_RESTART and fault.start < end and fault.end > start
        )

    def _latency(self) -> None:
        done = {deed.event_no: deed.at for deed in self._by_op[Op.COMMIT_OK]}
        waits = [(self._delivered[n][0].at - at) / SECOND for n, at in done.items() if n in self._delivered]
        self.report.figures["commit to delivery p50/p99/max s"] = [
            round(v, 3) for v in (percentile(waits, 0.5), percentile(waits, 0.99), max(waits, default=0.0))
        ]


def load(folder: Path) -> tuple[list[Deed], set[int], dict[str, Any]]:
    deeds = [Deed(*record) for file in sorted(folder.glob("*-*.bin")) for record in read(file)]
    data = (folder / "truth.bin").read_bytes()
    truth = {number for number, _ in TRUTH.iter_unpack(data)}
    meta = json.loads((folder / "meta.json").read_text())
    return deeds, truth, meta


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos.checker", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    deeds, truth, meta = load(folder)
    report = Checker(deeds, truth, ttl=meta["ttl"], bound=meta["in_flight"]).run()
    for text in meta.get("harness", []):
        report.blame("harness", text)
    (folder / "report.json").write_text(json.dumps(report.as_json()))
    print(report)
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
