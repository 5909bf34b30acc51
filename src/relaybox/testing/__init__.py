"""The kit for testing code that uses relaybox. Nothing is imported before it is asked for.

    from relaybox.testing import ManualClock, Probe, assert_published, crash_at, deliver_pending

pytest finds the fixtures `outbox`, `async_outbox`, `relaybox_url` and `relaybox_clock` by itself (plugin.py).
Private servers are in `relaybox.testing.servers`, the suites for sinks and sources in `sink_contract` and
`source_contract`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .assertions import assert_published, published
    from .clock import ManualClock
    from .crash import CrashPoint, InjectedFault, arm_from_environment, crash_at
    from .drain import Drained, deliver_pending
    from .probe import Probe

__all__ = [
    "CrashPoint",
    "Drained",
    "InjectedFault",
    "ManualClock",
    "Probe",
    "arm_from_environment",
    "assert_published",
    "crash_at",
    "deliver_pending",
    "published",
]

_HOMES = {
    "clock": ("ManualClock",),
    "crash": ("CrashPoint", "InjectedFault", "arm_from_environment", "crash_at"),
    "drain": ("Drained", "deliver_pending"),
    "probe": ("Probe",),
    "assertions": ("assert_published", "published"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
