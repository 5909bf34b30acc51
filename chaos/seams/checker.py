"""Judges a trial by what its writers and receivers recorded. Pure; imports nothing of relaybox.

lost        committed, never handled by a stream that was to have it
ghost       handled, never committed, or handled after a fail-over that forgot it
order       handled before its predecessor of the same key had been handled
duplicate   handled again without a fault, a life event or a failure that explains it
effect      an inbox message whose effect is not there exactly once
untruth     acknowledged to its writer and not there, without a fail-over
late        begun in a process after that process began to stop
harness     a process ended by itself, or did not stop when told to
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from .notes import Note

SECOND = 1_000_000_000
BEFORE = 4 * SECOND  # what was begun so long before a fault may not be settled: ranges are, when all of it is handled
AFTER = 6 * SECOND  # how long after it an interrupted settle may end: leases, and the time of a take-over
LATE = SECOND // 4  # a thread that had been given its work may be so late to say so
EXAMPLES = 5


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which something was done to the product."""

    name: str
    begin: int
    end: int
    duplicates: bool = True  # it may repeat what was on its way
    again: bool = False  # it may repeat whatever came before its end: a seek, a replay
    forgets: bool = False  # what was acknowledged before its end may be gone: a fail-over


@dataclass(frozen=True, slots=True)
class Message:
    key: str
    n: int  # its place among those of its key


@dataclass(frozen=True, slots=True)
class Promise:
    streams: tuple[str, ...] = ("",)  # each has every message
    ordered: bool = False
    effects: bool = False  # exactly once
    unordered_keys: str = "p"  # keys that begin so are made to fail: later ones go first


@dataclass
class Report:
    violations: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not any(self.violations.values())

    def blame(self, kind: str, text: str) -> None:
        self.violations[kind].append(text)

    @property
    def verdict(self) -> str:
        if self.passed:
            return "PASS"
        return "FAIL: " + ", ".join(f"{kind} {len(found)}" for kind, found in self.violations.items() if found)

    def examples(self) -> list[str]:
        return [f"{kind}: {text}" for kind, found in self.violations.items() for text in found[:EXAMPLES]]


def missing(truth: Iterable[str], notes: Iterable[Note], promise: Promise) -> set[tuple[str, str]]:
    """Stream and id of what was not handled yet."""
    done = {(note.stream, note.id) for note in notes if note.op == "done"}
    return {(stream, id) for stream in promise.streams for id in truth} - done


def judge(
    truth: Mapping[str, Message],
    notes: Sequence[Note],
    windows: Sequence[Window],
    promise: Promise,
    effects: Mapping[str, int] | None = None,
) -> Report:
    """`truth`: what committed, by id. `effects`: how often the effect of each is there."""
    ordered = sorted(notes, key=lambda note: note.at)
    return _Judge(truth, ordered, [*windows, *_stalls(ordered)], promise, effects).run()


def _stalls(notes: Iterable[Note]) -> list[Window]:
    """A process without a processor is a fault too; it says so itself."""
    return [
        Window("stall", note.at - int(note.seconds * SECOND), note.at, duplicates=True)
        for note in notes
        if note.op == "stall"
    ]


class _Judge:
    def __init__(
        self,
        truth: Mapping[str, Message],
        notes: Sequence[Note],
        windows: Sequence[Window],
        promise: Promise,
        effects: Mapping[str, int] | None,
    ) -> None:
        self.truth, self.notes, self.windows, self.promise, self.effects = truth, notes, windows, promise, effects
        self.begins: dict[tuple[str, str], list[Note]] = defaultdict(list)
        self.dones: dict[tuple[str, str], list[Note]] = defaultdict(list)
        self.fails: dict[tuple[str, str], list[Note]] = defaultdict(list)
        for note in notes:
            if note.op == "begin":
                self.begins[note.stream, note.id].append(note)
            elif note.op == "done":
                self.dones[note.stream, note.id].append(note)
            elif note.op == "failed":
                self.fails[note.stream, note.id].append(note)
        self.report = Report()
        self.forgotten = max((w.end for w in windows if w.forgets), default=0)

    def run(self) -> Report:
        self._lost()
        self._ghosts()
        self._untruth()
        self._duplicates()
        self._late()
        if self.promise.ordered:
            self._order()
        if self.promise.effects and self.effects is not None:
            self._effects()
        self.report.figures |= {
            "messages": len(self.truth),
            "deliveries": sum(len(found) for found in self.dones.values()),
        }
        return self.report

    def _lost(self) -> None:
        if self.promise.effects and self.effects is not None:
            return  # an effect that is there says more than a handler that ran
        for stream, id in sorted(missing(self.truth, self.notes, self.promise)):
            message = self.truth[id]
            self.report.blame("lost", f"{message.key} {message.n} ({id}) never came{_to(stream)}")

    def _ghosts(self) -> None:
        for (stream, id), begins in self.begins.items():
            if id in self.truth:
                continue
            late = [note for note in begins if note.at > self.forgotten + AFTER]
            if not self.forgotten or late:
                why = "was never committed" if not self.forgotten else "was forgotten by a fail-over long before"
                self.report.blame("ghost", f"{id} was handled{_to(stream)} although it {why}")

    def _untruth(self) -> None:
        for note in self.notes:
            if note.op == "acked" and note.id not in self.truth and note.at > self.forgotten:
                self.report.blame("untruth", f"{note.key} {note.n} ({note.id}) was acknowledged and is not there")

    def _duplicates(self) -> None:
        again = 0
        for (stream, id), begins in self.begins.items():
            for former, later in pairwise(begins):
                again += 1
                if any(former.at <= note.at <= later.at for note in self.fails[stream, id]):
                    continue
                if self.promise.effects:
                    continue  # a run that was rolled back had no effect
                if not any(self._explains(window, former, later) for window in self.windows):
                    gap = (later.at - former.at) / SECOND
                    self.report.blame(
                        "duplicate", f"{id} again after {gap:.2f} s, first by {former.who}, then by {later.who}"
                    )
        self.report.figures["duplicates"] = again

    @staticmethod
    def _explains(window: Window, former: Note, later: Note) -> bool:
        if window.again:
            return former.at <= window.end + AFTER and later.at >= window.begin
        return window.duplicates and window.begin - BEFORE <= former.at <= window.end + AFTER

    def _order(self) -> None:
        keys: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for id, message in self.truth.items():
            if not message.key.startswith(self.promise.unordered_keys):
                keys[message.key].append((message.n, id))
        for stream in self.promise.streams:
            for key, numbered in keys.items():
                for (before, former), (number, id) in pairwise(sorted(numbered)):
                    begins, dones = self.begins.get((stream, id)), self.dones.get((stream, former))
                    if begins and (not dones or begins[0].at < dones[0].at):
                        self.report.blame("order", f"{key}: {number} began before {before} was handled{_to(stream)}")

    def _effects(self) -> None:
        assert self.effects is not None
        for id, message in self.truth.items():
            count = self.effects.get(id, 0)
            if count == 0:
                self.report.blame("lost", f"{message.key} {message.n} ({id}) has no effect")
            elif count > 1:
                self.report.blame("effect", f"{message.key} {message.n} ({id}) has its effect {count} times")
        for id in self.effects.keys() - self.truth.keys():
            if not self.forgotten:
                self.report.blame("effect", f"{id} has an effect and was never accepted")

    def _late(self) -> None:
        stopping: dict[str, int] = {}
        for note in self.notes:
            if note.op == "stopping":
                stopping.setdefault(note.who, note.at)
            elif note.op == "begin" and note.who in stopping and note.at > stopping[note.who] + LATE:
                after = (note.at - stopping[note.who]) / SECOND
                self.report.blame("late", f"{note.id} began in {note.who} {after:.2f} s after it was told to stop")


def _to(stream: str) -> str:
    return f" to {stream}" if stream else ""


def tally(notes: Iterable[Note]) -> Counter[str]:
    return Counter(note.op for note in notes)
