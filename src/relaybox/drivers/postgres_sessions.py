"""Settings of PostgreSQL sessions that relaybox opens itself; skipped behind a pooler, whose sessions are shared."""

from __future__ import annotations

import math

from ..settings import BATCHES

PULSE = 10.0  # seconds between two questions on a connection that only listens

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"  # of ours behind a pooler, where the session's default is not ours

OUR_SESSIONS = {
    # Whatever the server's default is: after we waited for a lock, we look at what its holder has committed.
    "default_transaction_isolation": "read committed",
    # Bounds every wait of ours that PostgreSQL could otherwise make endless.
    "idle_in_transaction_session_timeout": "60s",
    "lock_timeout": "30s",
    # The server, too, notices that the network is gone: our sessions and what they lock do not stay for hours.
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "30s",
    "timezone": "UTC",
    # Our statements touch few rows, by index. A plan made while the tables were empty or not analysed would
    # scan, and a cached one would go on scanning as they grow.
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_sort": "off",
    # What is switched off counts as endlessly dear where it is used all the same: 200 ms of compiling per statement.
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
}

# The server's allocator (glibc) gives memory back to the system after each claim and asks for it again at the next: a
# fifth of what a claim costs the server. Once it has freed a block of this size, it keeps as much.
KEEP_MEMORY = "SELECT pg_catalog.length(pg_catalog.repeat('x', 2097152))"


def session(timeout: float | None, pause: float | None = None) -> dict[str, str]:
    """With a limit of its ops, a session is never idle in a transaction: if it seems so, its client is cut off, and
    others wait for what it has locked. `pause`: a handler may be, for so long."""
    longest = timeout if pause is None else pause
    if longest is None:
        return OUR_SESSIONS
    return {**OUR_SESSIONS, "idle_in_transaction_session_timeout": _milliseconds(longest)}


def transaction_limit(version: int, timeout: float | None, pause: float | None = None) -> str:
    """A statement of which half arrived is neither idle nor running: from PostgreSQL 17 on, its transaction ends all
    the same."""
    longest = (timeout and BATCHES * timeout) if pause is None else pause
    return f"SET transaction_timeout = '{_milliseconds(longest or 0)}'" if version >= 17 else ""


def _milliseconds(seconds: float) -> str:
    return f"{math.ceil(seconds * 1000)}ms"
