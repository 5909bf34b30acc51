"""What a server's settings mean for delivery: facts in, findings out.

The `doctor.*` blocks of a dialect answer rows of (name, value). `vitals` collects them as one op; the judges
(here what the dialects share, the rest in `<dialect>/doctor.py`) are pure and know nothing of connections,
so every verdict can be tested without breaking a server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from ..clock import Clock
from ..errors import StoreError
from ..op import Op, Query

Severity = Literal["ok", "warning", "critical"]

LONG_TRANSACTION = 300.0
LONG_IDLE = 60.0
CLOCK_TOLERANCE = 1.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One verdict. `critical`: committed events may be lost or not delivered. `fix` is empty when all is well."""

    level: Severity
    check: str
    text: str
    fix: str = ""


def verdict(good: bool, check: str, well: str, level: Severity, ill: str, fix: str) -> Finding:
    return Finding("ok", check, well) if good else Finding(level, check, ill, fix)


@dataclass(slots=True)
class Vitals:
    """What the server said, the clock offset in seconds, and what it would not say (query name -> error)."""

    facts: dict[str, Any] = field(default_factory=dict)
    clock_offset: float | None = None
    unread: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What a judge cannot learn from the server: how we are connected, where the file lies, who else is there."""

    announced_pid: int | None = None
    file_system: str | None = None
    processes: int = 1


def vitals(queries: Mapping[str, Query], clock: Clock) -> Op[Vitals]:
    """Ask everything; a refused question (a missing table, a missing privilege) does not end the look."""
    seen = Vitals()
    for name, query in queries.items():
        if not name.startswith("doctor."):
            continue
        before = clock.now()
        try:
            result = yield query.bind()
        except StoreError as error:
            seen.unread[name] = str(error)
            continue
        after = clock.now()
        seen.facts.update({str(row[0]): _text(row[1]) for row in result.rows})
        if name == "doctor.clock":
            seen.clock_offset = _offset(float(seen.facts["clock"]), before, after)
    return seen


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _offset(there: float, before: datetime, after: datetime) -> float:
    """How far the database's clock is outside the time the question took: latency is not skew."""
    moment = datetime.fromtimestamp(there, UTC)
    if moment < before:
        return (moment - before).total_seconds()
    return max(timedelta(0), moment - after).total_seconds()


class Facts:
    """Typed access: a fact that is not there is None, never a wrong verdict."""

    def __init__(self, seen: Vitals) -> None:
        self._all = {name.lower(): value for name, value in seen.facts.items()}

    def text(self, name: str) -> str | None:
        value = self._all.get(name)
        return None if value is None else str(value).lower()

    def number(self, name: str) -> float | None:
        value = self._all.get(name)
        return None if value is None else float(value)

    def starting(self, prefix: str) -> dict[str, str]:
        return {n.removeprefix(prefix): str(v) for n, v in self._all.items() if n.startswith(prefix)}


def version(text: str) -> tuple[int, ...]:
    """`5.5.5-10.6.18-MariaDB` is 10.6.18: old clients needed the prefix."""
    numbers = re.findall(r"\d+(?:\.\d+)+", text.removeprefix("5.5.5-"))
    return tuple(int(part) for part in numbers[0].split(".")) if numbers else ()


def judge_clock(seen: Vitals) -> Iterator[Finding]:
    offset = seen.clock_offset
    if offset is None:
        return
    yield verdict(
        abs(offset) <= CLOCK_TOLERANCE,
        "clock",
        "the clocks agree within a second",
        "warning",
        f"the database's clock is {abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} this machine's; "
        "delayed events (deliver_at) and purges are that much off",
        "synchronise both clocks (NTP)",
    )


Switch = tuple[str, Callable[[str], bool], Severity, str, str]


def judge_switches(facts: Facts, switches: tuple[Switch, ...]) -> Iterator[Finding]:
    for name, good, level, text, fix in switches:
        value = facts.text(name)
        if value is not None:
            yield verdict(good(value), name, f"{name} = {value}", level, text, fix)


def judge_ages(facts: Facts) -> Iterator[Finding]:
    checks = (
        ("longest_transaction", "transactions", LONG_TRANSACTION, "a transaction has been open for", "end it"),
        (
            "longest_idle_in_transaction",
            "idle in transaction",
            LONG_IDLE,
            "a session sits idle in a transaction for",
            "commit before waiting; set idle_in_transaction_session_timeout",
        ),
        (
            "oldest_prepared",
            "prepared transactions",
            LONG_TRANSACTION,
            "a prepared transaction (two-phase commit) waits for",
            "COMMIT PREPARED or ROLLBACK PREPARED it (see pg_prepared_xacts)",
        ),
    )
    for name, check, limit, text, fix in checks:
        age = facts.number(name) or 0.0
        ill = f"{text} {age:,.0f} s: its events stay invisible, vacuum cannot clean up and polls become slow"
        yield verdict(age <= limit, check, f"none older than {limit:.0f} s", "warning", ill, fix)


def judge_headroom(used: float | None, limit: float | None) -> Iterator[Finding]:
    if not used or not limit:
        return
    ill = f"{used:.0f} of {limit:.0f} connections are in use: the next process may be refused"
    fix = "raise max_connections, or put a pooler before the writers"
    yield verdict(used <= 0.9 * limit, "connections", f"{used:.0f} of {limit:.0f} in use", "warning", ill, fix)
