"""Settings of PostgreSQL sessions that relaybox opens itself; skipped behind a pooler, whose sessions are shared."""

from __future__ import annotations

OUR_SESSIONS = {
    # Bounds every wait of ours that PostgreSQL could otherwise make endless.
    "idle_in_transaction_session_timeout": "60s",
    "lock_timeout": "30s",
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
