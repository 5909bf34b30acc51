"""Named fault points: places where a test can kill, fail, delay or cancel the process on purpose.

`hit("settle.before")` costs one global read unless a test armed something. The names are a closed
list, so that "every fault point killed once" can be a loop over `POINTS`.
"""

from __future__ import annotations

from collections.abc import Callable

POINTS: tuple[str, ...] = (
    "write.before",  # before the INSERT, inside the caller's transaction
    "write.after",  # after the INSERT, before the caller's COMMIT
    "write.committed",  # after the COMMIT, before the hand-over to the hot queue
    "claim.before",
    "claim.after",  # rows are claimed in the database, nothing is in memory yet
    "deliver.before",  # just before the listener is called
    "deliver.after",  # the listener has returned, nothing is settled
    "settle.before",
    "settle.after",
    "release.before",
    "renew.before",
    "takeover.after",  # a dead instance's rows have been freed
    "replay.before",
    "replay.after",
    "purge.before",
    "purge.after",
    "migrate.step",  # between two migrations
)

armed: Callable[[str], None] | None = None


def hit(name: str) -> None:
    if armed is not None:
        armed(name)


def arm(action: Callable[[str], None] | None) -> None:
    """Install the one action that every point calls; None disarms. For tests: see relaybox.testing.crash."""
    global armed
    armed = action
