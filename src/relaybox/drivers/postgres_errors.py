"""SQLSTATE to our error tree, shared by every PostgreSQL client.

Only the server's primary message is kept: DETAIL repeats row values, which may be payloads.
"""

from __future__ import annotations

import re

from ..errors import (
    MIGRATE,
    ConnectionLost,
    DuplicateEvent,
    FeedError,
    SchemaMissing,
    StoreBusy,
    StoreError,
    StoreFull,
)

# The old table of a queue that was moved: only a transaction that sees the time before still writes there.
_MOVED = re.compile(r"\w+_(?:queue|log)_\d+_closed")
_WRITE = re.compile(r"function \S*_write\(text\[\]")  # what a writer calls, see store/grants
# What the functions of feeds raise.
_FEED = {
    "RBF00": "unknown",
    "RBF01": "no_key",
    "RBF02": "key_not_unique",
    "RBF03": "unmapped",
    "RBF04": "not_local",
    "RBF05": "volatile",
    "RBF06": "columns_changed",
    "RBF07": "rights",
    "RBF08": "topic",
    "RBF09": "name_taken",
    "RBF10": "immediate",
    "RBF11": "in_use",
    "RBF12": "isolation",
    "RBF13": "paused",
    "RBF14": "place_changed",
    "RBF15": "dropped",
    "RBF16": "no_delta",
    "RBF17": "no_hand_off",
    "RBF18": "subscribed",
    "RBF19": "query",
    "RBF20": "table",
}
_PASSWORD = re.compile(r"(password\s*=\s*)\S+|(://[^:/@\s]*:)[^@\s]+(@)", re.IGNORECASE)


def redacted(text: str) -> str:
    return _PASSWORD.sub(lambda m: f"{m[1] or m[2]}***{m[3] or ''}", text)


def connection_lost(text: str) -> ConnectionLost:
    return ConnectionLost(f"no connection to PostgreSQL: {redacted(text.strip())}")


def translate_sqlstate(sqlstate: str, message: str) -> StoreError:
    message = redacted(message)
    match sqlstate:
        case "23505":
            return DuplicateEvent(message)
        case "42P01" | "42703" | "3F000":
            return SchemaMissing(f"{message}; {MIGRATE}")
        case "42883" if _WRITE.search(message):
            return SchemaMissing(f"{message}; {MIGRATE}, then run what `relaybox grants writer` prints")
        case "23514" if _MOVED.search(message):
            return StoreBusy("the queue was moved while this transaction was open; repeat the transaction")
        case "40001" | "40P01" | "55P03" | "57014":
            return StoreBusy(f"PostgreSQL gave up on a lock or a conflict ({sqlstate}): {message}; retry")
        case "53100" | "53200" | "53400" | "54000":
            return StoreFull(f"PostgreSQL is out of space or memory ({sqlstate}): {message}")
        case "25P02":
            return StoreError("the transaction has failed already; roll it back before writing events")
        case "25006":
            return StoreError(f"this PostgreSQL server is read-only ({message}); connect to the primary")
    if sqlstate in _FEED:
        return FeedError(message, _FEED[sqlstate])
    if sqlstate[:2] == "08" or sqlstate in ("57P01", "57P02", "57P03", "53300", "25P03", "57P05"):
        return connection_lost(message)
    return StoreError(f"PostgreSQL refused{sqlstate and f' ({sqlstate})'}: {message}")
