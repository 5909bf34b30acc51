"""Thresholds, and what was measured against them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    threshold: str
    measured: str
    passed: bool


@dataclass(slots=True)
class Verdict:
    test: str
    about: str
    blocker: bool
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def check(self, name: str, threshold: str, measured: object, passed: bool) -> None:
        self.checks.append(Check(name, threshold, str(measured), bool(passed)))

    @property
    def passed(self) -> bool:
        return bool(self.checks) and all(check.passed for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Verdict:
        return cls(**{**found, "checks": [Check(**check) for check in found["checks"]]})
