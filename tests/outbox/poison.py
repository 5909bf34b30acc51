"""Rows that no writer of ours makes, one table of kinds per engine. Each kind changes an event that was just written.

`{s}` is the number of that event. A kind marked with `!` is refused by the constraints of the tables; without them (an
older table, an operator's mistake) its row is there all the same.
"""

from __future__ import annotations

from kit import rows
from kit.impossible import bare_sqlite

E, P, C, D = "outbox_event", "outbox_event_pending", "outbox_event_claim", "outbox_event_dead"


def event(change: str) -> str:
    return f"UPDATE {E} SET {change} WHERE seq = {{s}}"


def pending(change: str) -> str:
    return f"UPDATE {P} SET {change} WHERE seq = {{s}}"


def both(seq: str) -> list[str]:
    """Another number for the event and its pending row."""
    return [event(f"seq = {seq}"), pending(f"seq = {seq}")]


NESTED = "[" * 20_000
LETTER = f"INSERT INTO {D} (seq, {{hash}} attempts, dead_at) VALUES ({{s}}, {{zero}} 1, {{now}})"

SHARED: dict[str, str | list[str]] = {
    "headers that are no JSON": event("headers = 'a: b'"),
    "headers that are a list": event("headers = '[1, 2]'"),
    "headers that are numbers": event("headers = '{{\"a\": 1}}'"),
    "headers nested deeply": event(f"headers = '{NESTED}'"),
    "! headers that are too large": event("headers = '" + "h" * 60_000 + "'"),
    "a payload that is no JSON": event("payload = 'a'"),
    "a payload that is empty": event("payload = ''"),
    "a payload that is nested deeply": event(f"payload = '{NESTED}'"),
    "a content type that is none": event("content_type = 'x'"),
    "! an empty id": event("event_id = ''"),
    "! an empty type": event("event_type = ''"),
    "a type with lines": event("event_type = 'a\nERROR b'"),
    "a key with lines": event("aggregate_id = '\x1b[2J\n'"),
    "an empty key": event("aggregate_id = ''"),
    "a tenant of blanks": event("tenant_id = '  '"),
    "an event that is gone": f"DELETE FROM {E} WHERE seq = {{s}}",
    "! a number that is zero": both("0"),
    "! a number below zero": both("-5"),
    "a number that is the largest": both("140737488355326"),
    "attempts at the end": pending("attempts = 2147483647"),
    "attempts beyond what is counted": pending("attempts = 65536"),
    "attempts at the end of what is counted": pending("attempts = 65535"),
    "attempts below zero": pending("attempts = -1"),
    "attempts at the other end": pending("attempts = -2147483648"),
    "a hash below zero": pending("key_hash = -1"),
    "a hash at the other end": pending("key_hash = -9223372036854775808"),
    "a hash that is the largest": pending("key_hash = 9223372036854775807"),
    "a hash of another key": pending("key_hash = 12345"),
    "an error that is too long": pending("last_error = '" + "e" * 60_000 + "'"),
    "a dead letter that waits": LETTER,
    "a dead letter of no attempts": [
        f"INSERT INTO {D} (seq, {{hash}} attempts, dead_at) VALUES ({{s}}, {{zero}} -7, {{now}})",
        f"DELETE FROM {P} WHERE seq = {{s}}",
    ],
    "a dead letter of no event": f"INSERT INTO {D} (seq, {{hash}} attempts, dead_at) "
    "VALUES ({s} + 1000000, {zero} 1, {now})",
    "a pending row of no event": f"INSERT INTO {P} (seq, due, key_hash, attempts) "
    "VALUES ({s} + 2000000, {now}, 1, 0)",
    "a dead letter that waits and is no event": [
        LETTER,
        f"DELETE FROM {E} WHERE seq = {{s}}",
    ],
}

_CLAIM = f"INSERT INTO {C} (token, owner, until, claimed_at, items, since) VALUES "
_AGO, _NOW = "now() - interval '1 day'", "now()"


def claim(items: str, owner: str = "77", until: str = _AGO, since: str = "NULL", token: str = "{s}") -> list[str]:
    """The event is in a claim instead of pending."""
    return [f"{_CLAIM}({token}, {owner}, {until}, {_AGO}, {items}, {since})", f"DELETE FROM {P} WHERE seq = {{s}}"]


ITEM = "{s}::bigint * 65536"
POSTGRES: dict[str, str | list[str]] = {
    **{name: text for name, text in SHARED.items() if name != "a payload that is no JSON"},
    "a payload that is not text": event("payload = '\\xff00'"),
    "! a payload that is too large": event("payload = convert_to(repeat('x', 3000000), 'UTF8')"),
    "a payload that is NULL": event("payload = NULL"),
    "a type that is NULL": event("event_type = NULL"),
    "an id that is NULL": event("event_id = NULL"),
    "a time that is NULL": event("occurred_at = NULL"),
    "! a number of 2^47": both("140737488355328"),
    "! a number of 2^63 - 1": both("9223372036854775807"),
    "! a number of -2^63": both("-9223372036854775808"),
    **{
        f"! {column} is {name}": event(f"{column} = '{value}'")
        for column in ("occurred_at", "deliver_at", "created_at")
        for name, value in {
            "infinite": "infinity",
            "before all": "-infinity",
            "far away": "294276-01-01 00:00Z",
        }.items()
    },
    "due never": pending("due = 'infinity'"),
    "due for ever": pending("due = '-infinity'"),
    "due before Christ": pending("due = '4713-01-01 00:00Z BC'"),
    "due far away": pending("due = '294276-01-01 00:00Z'"),
    "since never": pending("since = 'infinity'"),
    "since ever": pending("since = '-infinity'"),
    "an expired claim that names a pending event": claim(f"ARRAY[{ITEM} + 1]")[0],
    "an expired claim that names a foreign event": claim("ARRAY[({s} + 3000000)::bigint * 65536 + 1]")[0],
    "an expired claim that names one event twice": claim(f"ARRAY[{ITEM} + 1, {ITEM} + 2]"),
    "two expired claims that name one event": [
        *claim(f"ARRAY[{ITEM} + 1]"),
        claim(f"ARRAY[{ITEM} + 1]", token="-{s}")[0],
    ],
    "an expired claim of a dead letter": [
        *claim(f"ARRAY[{ITEM} + 1]"),
        f"INSERT INTO {D} (seq, attempts, dead_at) VALUES ({{s}}, 1, now())",
    ],
    "a claim that names nothing": claim("'{{}}'")[0],
    "a claim of NULL": claim("ARRAY[NULL]::bigint[]"),
    "a claim of numbers below zero": claim("ARRAY[-1, -65536, -9223372036854775808]"),
    "a claim in two dimensions": claim(f"ARRAY[ARRAY[{ITEM} + 1], ARRAY[{ITEM} + 2]]"),
    "a claim that begins at zero": claim(f"('[0:0]={{{{' || {ITEM} + 1 || '}}}}')::bigint[]"),
    "a claim at the end of the numbers": claim("ARRAY[9223372036854775807]")[0],
    "a claim that never ends": claim(f"ARRAY[{ITEM} + 1]", until="'infinity'"),
    "a claim that has ended for ever": claim(f"ARRAY[{ITEM} + 1]", until="'-infinity'"),
    "a claim since never": claim(f"ARRAY[{ITEM} + 1]", since="'infinity'"),
    "a claim since ever": claim(f"ARRAY[{ITEM} + 1]", since="'-infinity'"),
    "a batch that names a pending event": claim(f"ARRAY[{ITEM}]", owner="NULL")[0],
    "a batch that names a foreign event": claim("ARRAY[({s} + 3000000)::bigint * 65536]", owner="NULL")[0],
    "a batch that names one event twice": claim(f"ARRAY[{ITEM}, {ITEM}]", owner="NULL"),
    "a batch of worn events": claim(f"ARRAY[{ITEM} + 65535]", owner="NULL"),
    "a batch of NULL": claim("ARRAY[NULL]::bigint[]", owner="NULL"),
    "a batch of numbers below zero": claim("ARRAY[-1, -65537]", owner="NULL"),
    "a batch in two dimensions": claim(f"ARRAY[ARRAY[{ITEM}], ARRAY[{ITEM}]]", owner="NULL"),
    "a batch that waits for ever": claim(f"ARRAY[{ITEM}]", owner="NULL", until="'infinity'"),
    "a batch since ever": claim(f"ARRAY[{ITEM}]", owner="NULL", until="'-infinity'"),
    "a dead letter of the end of time": [
        f"INSERT INTO {D} (seq, attempts, dead_at) VALUES ({{s}}, 1, 'infinity')",
        f"DELETE FROM {P} WHERE seq = {{s}}",
    ],
}

SQLITE: dict[str, str | list[str]] = {
    **SHARED,
    "headers that are not UTF-8": event("headers = CAST(x'FF' AS text)"),
    "headers that are bytes": event("headers = x'FF'"),
    "headers that are a number": event("headers = 17"),
    "an id that is not UTF-8": event("event_id = CAST(x'FF' AS text)"),
    "a type that is not UTF-8": event("event_type = CAST(x'FF' AS text)"),
    "a key that is not UTF-8": event("aggregate_id = CAST(x'FF' AS text)"),
    "a tenant that is not UTF-8": event("tenant_id = CAST(x'FF' AS text)"),
    "a payload that is not UTF-8": event("payload = CAST(x'FF' AS text)"),
    "a payload that is a number": event("payload = 17"),
    "a payload that is NULL": event("payload = NULL"),
    "! a payload that is too large": event("payload = zeroblob(3000000)"),
    "a type that is NULL": event("event_type = NULL"),
    "an id that is NULL": event("event_id = NULL"),
    "! an id that is too long": event("event_id = '" + "i" * 300 + "'"),
    "! a key that is too long": event("aggregate_id = '" + "k" * 300 + "'"),
    "a number of 2^62": both("4611686018427387904"),
    "! a number of -2^63": both("-9223372036854775808"),
    **{
        f"! {column} is {name}": event(f"{column} = {value}")
        for column in ("occurred_at", "deliver_at", "created_at")
        for name, value in {"text": "'soon'", "far away": "9223372036854775807", "a large number": "1e300"}.items()
    },
    "due is text": pending("due = 'soon'"),
    "due is bytes": pending("due = x'FF'"),
    "due is before all": pending("due = -9223372036854775808"),
    "due is a large number": pending("due = 1e300"),
    "due is below all numbers": pending("due = -1e300"),
    "attempts are text": pending("attempts = 'many'"),
    "attempts are a large number": pending("attempts = 1e300"),
    "a hash that is text": pending("key_hash = 'hash'"),
    "a hash that is bytes": pending("key_hash = x'FF'"),
    "a hash that is a large number": pending("key_hash = 1e300"),
    "since is text": pending("since = 'then'"),
    "since before all": pending("since = -9223372036854775808"),
    "an error that is not UTF-8": pending("last_error = CAST(x'FF' AS text)"),
    "a token of nobody": pending("token = -1, owner = 77"),
    "a token that is text": pending("token = 'mine', owner = 'me'"),
    "a claim that never ends": pending("token = 1, owner = 77, due = 253402300799999999"),
    "a dead letter of the end of time": [
        f"INSERT INTO {D} (seq, key_hash, attempts, dead_at) VALUES ({{s}}, 0, 1, 'soon')",
        f"DELETE FROM {P} WHERE seq = {{s}}",
    ],
    "a dead letter of no key": f"INSERT INTO {D} (seq, key_hash, attempts, dead_at) VALUES ({{s}}, 'x', 1, 1)",
}

MARIADB: dict[str, str | list[str]] = {
    **SHARED,
    "a payload that is not text": event("payload = x'FF00'"),
    "! a payload that is too large": event("payload = repeat('x', 3000000)"),
    "a payload that is NULL": event("payload = NULL"),
    "a type that is NULL": event("event_type = NULL"),
    "a time that is NULL": event("occurred_at = NULL"),
    "a number of 2^62": both("4611686018427387904"),
    "! a number of -2^63": both("-9223372036854775808"),
    **{
        f"! {column} never was": event(f"{column} = '0000-00-00'")
        for column in ("occurred_at", "deliver_at", "created_at")
    },
    **{
        f"{column} is at the end": event(f"{column} = '9999-12-31 23:59:59.999999'")
        for column in ("occurred_at", "deliver_at", "created_at")
    },
    "due never was": pending("due = '0000-00-00'"),
    "due at the end": pending("due = '9999-12-31 23:59:59.999999'"),
    "due in no month": pending("due = '2026-00-00'"),
    "since never was": pending("since = '0000-00-00'"),
    "since the end": pending("since = '9999-12-31 23:59:59'"),
    "a token of nobody": pending("token = -1, owner = 77"),
    "a claim that never ends": pending("token = 1, owner = 77, due = '9999-12-31 23:59:59'"),
    "a dead letter that never died": [
        f"INSERT INTO {D} (seq, key_hash, attempts, dead_at) VALUES ({{s}}, 0, 1, '0000-00-00')",
        f"DELETE FROM {P} WHERE seq = {{s}}",
    ],
    "a dead letter of the end of time": [
        f"INSERT INTO {D} (seq, key_hash, attempts, dead_at) VALUES ({{s}}, 0, 1, '9999-12-31 23:59:59')",
        f"DELETE FROM {P} WHERE seq = {{s}}",
    ],
    "a dead letter of no key": LETTER.replace("{zero}", "-1,"),
}

# A CHECK there cannot name an AUTO_INCREMENT column.
MARIADB = {name.removeprefix("! ") if "a number" in name else name: kind for name, kind in MARIADB.items()}
KINDS = {"postgres": POSTGRES, "sqlite": SQLITE, "mariadb": MARIADB}
WORDS = {
    "postgres": {"hash": "", "zero": "", "now": "now()"},
    "sqlite": {"hash": "key_hash,", "zero": "0,", "now": "1"},
    "mariadb": {"hash": "key_hash,", "zero": "0,", "now": "utc_timestamp()"},
}


def statements(engine: str, kind: str, seq: int) -> list[str]:
    found = KINDS[engine][kind]
    return [text.format(s=seq, **WORDS[engine]) for text in ([found] if isinstance(found, str) else found)]


UNGUARDED = [
    f"ALTER TABLE {E} DROP CONSTRAINT {E}_limits",
    *(
        f"ALTER TABLE {E} ALTER COLUMN {name} DROP NOT NULL"
        for name in ("payload", "event_type", "event_id", "occurred_at")
    ),
]
UNGUARDED_MARIADB = [
    f"ALTER TABLE {E} DROP CONSTRAINT {E}_limits",
    f"ALTER TABLE {E} MODIFY payload longblob, MODIFY event_type varchar(128), MODIFY occurred_at datetime(6)",
]


def unguarded(engine: str, url: str) -> None:
    """The tables without constraints, but for their keys."""
    if engine == "sqlite":
        bare_sqlite(url, "event_id|event_type|payload")
        return
    for text in UNGUARDED if engine == "postgres" else UNGUARDED_MARIADB:
        rows(url, text)
