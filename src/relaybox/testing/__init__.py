"""The kit for testing code that uses relaybox. Nothing is imported before it is asked for.

    from relaybox.testing import ManualClock, Probe, assert_published, crash_at, deliver_pending

pytest finds the fixtures `outbox`, `async_outbox`, `relaybox_url` and `relaybox_clock` by itself (plugin.py).
Private servers are in `relaybox.testing.servers`, the suites for sinks and sources in `sink_contract` and
`source_contract`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..later import later

if TYPE_CHECKING:
    from .assertions import Filters, assert_published, published
    from .clock import ManualClock
    from .crash import CrashPoint, InjectedFault, arm_from_environment, crash_at
    from .drain import Drained, deliver_pending
    from .probe import Probe
else:  # hidden from type checkers, to which a module with __getattr__ has every name
    __getattr__ = later(
        __name__,
        {
            "ManualClock": "testing.clock",
            "Probe": "testing.probe",
            **dict.fromkeys(("CrashPoint", "InjectedFault", "arm_from_environment", "crash_at"), "testing.crash"),
            **dict.fromkeys(("Drained", "deliver_pending"), "testing.drain"),
            **dict.fromkeys(("Filters", "assert_published", "published"), "testing.assertions"),
        },
    )

__all__ = [
    "CrashPoint",
    "Drained",
    "Filters",
    "InjectedFault",
    "ManualClock",
    "Probe",
    "arm_from_environment",
    "assert_published",
    "crash_at",
    "deliver_pending",
    "published",
]
