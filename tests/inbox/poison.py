"""Rows that no receiver of ours makes, one table of kinds per engine. Each kind changes a message that was just
accepted, or puts rows beside it.

`{s}` is the number of that message. A kind marked with `!` is refused by the constraints of the tables; without them
(an older table, an operator's mistake) its row is there all the same.
"""

from __future__ import annotations

from kit import rows
from kit.impossible import bare_sqlite

M, P, D, F, T, J = "inbox", "inbox_pending", "inbox_dead", "inbox_done", "inbox_state", "inbox_journal"


def message(change: str) -> str:
    return f"UPDATE {M} SET {change} WHERE seq = {{s}}"


def pending(change: str) -> str:
    return f"UPDATE {P} SET {change} WHERE seq = {{s}}"


def both(seq: str) -> list[str]:
    """Another number for the message and its pending row."""
    return [message(f"seq = {seq}"), pending(f"seq = {seq}")]


def letter(attempts: str = "1", at: str = "{now}", seq: str = "{s}", position: str = "NULL") -> str:
    return (
        f"INSERT INTO {D} (seq, key_hash, position, priority, replayed, attempts, dead_at) "
        f"VALUES ({seq}, 0, {position}, 0, false, {attempts}, {at})"
    )


def done(waited: str = "1", at: str = "{now}", attempts: str = "1") -> str:
    return f"INSERT INTO {F} (seq, processed_at, attempts, waited) VALUES ({{s}}, {at}, {attempts}, {waited})"


def journal(
    pending: str = "0", processed: str = "0", dead: str = "0", waited: str = "0", type: str = "'Poison'"
) -> str:
    return (
        f"INSERT INTO {J} (event_type, pending, processed, dead, waited) "
        f"VALUES ({type}, {pending}, {processed}, {dead}, {waited})"
    )


GONE = f"DELETE FROM {M} WHERE seq = {{s}}"
WAITS_NOT = f"DELETE FROM {P} WHERE seq = {{s}}"
NESTED = "[" * 20_000

SHARED: dict[str, str | list[str]] = {
    "headers that are no JSON": message("headers = 'sequence: b'"),
    "headers that are a list": message("headers = '[\"sequence\", 2]'"),
    "headers that are numbers": message("headers = '{{\"sequence\": 1}}'"),
    "headers nested deeply": message(f"headers = 'sequence{NESTED}'"),
    "headers of another number": message('headers = \'{{"sequence": "7"}}\''),
    "! headers that are too large": message("headers = '" + "h" * 60_000 + "'"),
    "a payload that is no JSON": message("payload = 'a'"),
    "a payload that is empty": message("payload = ''"),
    "a payload that is nested deeply": message(f"payload = '{NESTED}'"),
    "a content type that is none": message("content_type = 'x'"),
    "! an empty id": message("event_id = ''"),
    "! an empty type": message("event_type = ''"),
    "a type with lines": message("event_type = 'a\nERROR b'"),
    "a key with lines": message("aggregate_id = '\x1b[2J\n'"),
    "an empty key": message("aggregate_id = ''"),
    "a tenant of blanks": message("tenant_id = '  '"),
    "a sender with lines": message("sender = 'a\nb'"),
    "the sender that stands for all": message("sender = '*'"),
    "a message that is gone": GONE,
    "! a number that is zero": both("0"),
    "! a number below zero": both("-5"),
    "attempts at the end": pending("attempts = 2147483647"),
    "attempts below zero": pending("attempts = -1"),
    "attempts at the other end": pending("attempts = -2147483648"),
    "strikes at the end": pending("strikes = 2147483647"),
    "strikes at the other end": pending("strikes = -2147483648"),
    "strikes enough to go alone": pending("strikes = 9"),
    "a hash below zero": pending("key_hash = -1"),
    "a hash at the other end": pending("key_hash = -9223372036854775808"),
    "a hash that is the largest": pending("key_hash = 9223372036854775807"),
    "a hash of another key": pending("key_hash = 12345"),
    "a hash and a number of a key that goes on": pending("key_hash = {honest}, position = 2"),
    "a hash of a key that goes on, and a number far away": pending("key_hash = {honest}, position = 1000000000"),
    "a number among its key that is the largest": pending("position = 9223372036854775807"),
    "a number among its key that is the last but one": pending("position = 9223372036854775806"),
    "a number among its key below zero": pending("position = -1"),
    "a number among its key at the other end": pending("position = -9223372036854775808"),
    "a priority at the end": pending("priority = 32767"),
    "a priority at the other end": pending("priority = -32768"),
    "held and due": pending("held = true"),
    "held and replayed": pending("held = true, replayed = true"),
    "of nobody": pending("token = -1, owner = 77"),
    "of nobody since ever": pending("token = 1, owner = -1, claimed_at = {early}"),
    "an error that is too long": pending("last_error = '" + "e" * 60_000 + "'"),
    "a dead letter that waits": letter(),
    "a dead letter of no attempts": [letter("-7"), WAITS_NOT],
    "a dead letter of all attempts": [letter("2147483647"), WAITS_NOT],
    "a dead letter of no message": letter(seq="{s} + 1000000"),
    "a dead letter that waits and is no message": [letter(), GONE],
    "a dead letter with the largest number of its key": [letter(position="9223372036854775807"), WAITS_NOT],
    "a pending row of no message": f"INSERT INTO {P} (seq, due, key_hash, priority, attempts) "
    "VALUES ({s} + 2000000, {now}, 1, 0, 0)",
    "a numbered pending row of no message": f"INSERT INTO {P} (seq, due, key_hash, position, priority, attempts) "
    "VALUES ({s} + 3000000, {now}, {honest}, 2, 0, 0)",
    "processed and waiting": done(),
    "processed in too long a time": [done("1e300"), WAITS_NOT],
    "processed in less": [done("-1e300"), WAITS_NOT],
    "processed before any attempt": [done(attempts="-2147483648"), WAITS_NOT],
    "processed and gone": [done(), WAITS_NOT, GONE],
    "processed, dead and waiting": [done(), letter()],
    "a journal that counts to the end": journal("2147483647", "2147483647", "2147483647", "9223372036854775807"),
    "a journal that counts to the end again": journal(waited="9223372036854775807"),
    "a journal that counts to the other end": journal(
        "-2147483648", "-2147483648", "-2147483648", "-9223372036854775808"
    ),
    "a journal of nothing": journal("NULL", "NULL", "NULL", "NULL"),
    "a journal of no type": journal("5", type="''"),
    "a journal of a type with lines": journal("-5", "7", "-9", type="'a\nb'"),
    "a key whose next number is the last": f"INSERT INTO {T} (key_hash, aggregate_id, next, moved_at) "
    "VALUES ({own}, 'p{n}', 9223372036854775807, {early})",
    "a key whose next number is below zero": f"INSERT INTO {T} (key_hash, aggregate_id, next, moved_at) "
    "VALUES ({own}, 'p{n}', -9223372036854775808, {early})",
}

POSTGRES: dict[str, str | list[str]] = {
    **{name: text for name, text in SHARED.items() if name != "a payload that is no JSON"},
    "a payload that is not text": message("payload = '\\xff00'"),
    "! a payload that is too large": message("payload = convert_to(repeat('x', 9000000), 'UTF8')"),
    "a payload larger than an event's": message("payload = convert_to(repeat('x', 3000000), 'UTF8')"),
    "a payload that is NULL": message("payload = NULL"),
    "a type that is NULL": message("event_type = NULL"),
    "an id that is NULL": message("event_id = NULL"),
    "a sender that is NULL": message("sender = NULL"),
    "a time that is NULL": message("occurred_at = NULL"),
    "a number of 2^47": both("140737488355328 + {s}"),
    "a number of 2^63 - 1": both("9223372036854775807"),
    "! a number of -2^63": both("-9223372036854775808"),
    **{
        f"! {column} is {name}": message(f"{column} = '{value}'")
        for column in ("occurred_at", "received_at")
        for name, value in {
            "infinite": "infinity",
            "before all": "-infinity",
            "far away": "294276-01-01 00:00Z",
            "before Christ": "4713-01-01 00:00Z BC",
        }.items()
    },
    "due never": pending("due = 'infinity'"),
    "due for ever": pending("due = '-infinity'"),
    "due before Christ": pending("due = '4713-01-01 00:00Z BC'"),
    "due far away": pending("due = '294276-01-01 00:00Z'"),
    "a claim that never ends": pending("due = 'infinity', token = 5, owner = 77"),
    "a claim since never": pending("claimed_at = 'infinity', token = 5, owner = 77"),
    "a dead letter of the end of time": [letter(at="'infinity'"), WAITS_NOT],
    "a dead letter of the beginning": [letter(at="'-infinity'"), WAITS_NOT],
    "processed at the end of time": [done(at="'infinity'"), WAITS_NOT],
    "processed at the beginning": [done(at="'-infinity'"), WAITS_NOT],
    "processed in what is no number": [done("'NaN'"), WAITS_NOT],
    "processed in an infinite time": [done("'infinity'"), WAITS_NOT],
    "a key that moved on at the end of time": f"INSERT INTO {T} (key_hash, aggregate_id, next, moved_at) "
    "VALUES ({own}, 'p{n}', 5, 'infinity')",
}

SQLITE: dict[str, str | list[str]] = {
    **SHARED,
    "headers that are not UTF-8": message("headers = CAST(x'FF' AS text)"),
    "headers that are bytes": message("headers = x'FF'"),
    "headers that are a number": message("headers = 17"),
    **{
        f"{name} that is not UTF-8": message(f"{column} = CAST(x'FF' AS text)")
        for name, column in {
            "an id": "event_id",
            "a type": "event_type",
            "a key": "aggregate_id",
            "a tenant": "tenant_id",
            "a sender": "sender",
            "a payload": "payload",
        }.items()
    },
    "a payload that is a number": message("payload = 17"),
    "a payload that is NULL": message("payload = NULL"),
    "! a payload that is too large": message("payload = zeroblob(9000000)"),
    "a type that is NULL": message("event_type = NULL"),
    "an id that is NULL": message("event_id = NULL"),
    "! an id that is too long": message("event_id = '" + "i" * 300 + "'"),
    "! a key that is too long": message("aggregate_id = '" + "k" * 300 + "'"),
    "a number of 2^62": both("4611686018427387904 + {s}"),
    "! a number of -2^63": both("-9223372036854775808"),
    **{
        f"! {column} is {name}": message(f"{column} = {value}")
        for column in ("occurred_at", "received_at")
        for name, value in {
            "text": "'soon'",
            "bytes": "x'FF'",
            "far away": "9223372036854775807",
            "a large number": "1e300",
            "before all": "-9223372036854775808",
        }.items()
    },
    "due is text": pending("due = 'soon'"),
    "due is bytes": pending("due = x'FF'"),
    "due is before all": pending("due = -9223372036854775808"),
    "due is a large number": pending("due = 1e300"),
    "due is below all numbers": pending("due = -1e300"),
    "attempts are text": pending("attempts = 'many'"),
    "attempts are a large number": pending("attempts = 1e300"),
    "strikes are text": pending("strikes = 'many'"),
    "a hash that is text": pending("key_hash = 'hash'"),
    "a hash that is bytes": pending("key_hash = x'FF'"),
    "a hash that is a large number": pending("key_hash = 1e300"),
    "a number among its key that is text": pending("position = 'first'"),
    "a number among its key that is a fraction": pending("position = 1.5"),
    "a priority that is text": pending("priority = 'high'"),
    "an error that is not UTF-8": pending("last_error = CAST(x'FF' AS text)"),
    "a token that is text": pending("token = 'mine', owner = 'me'"),
    "a claim that never ends": pending("token = 1, owner = 77, due = 9000000000000000000"),
    "held as text": pending("held = 'yes'"),
    "replayed as text": pending("replayed = 'yes'"),
    "a dead letter of the end of time": [letter(at="'soon'"), WAITS_NOT],
    "processed at no time": [done(at="'soon'"), WAITS_NOT],
    "processed in a text": [done("'long'"), WAITS_NOT],
    "a journal of text": journal("'many'"),
    "a journal of a large number": journal(waited="1e300"),
}

MARIADB: dict[str, str | list[str]] = {
    **SHARED,
    "a payload that is not text": message("payload = x'FF00'"),
    "! a payload that is too large": message("payload = repeat('x', 9000000)"),
    "a payload that is NULL": message("payload = NULL"),
    "a type that is NULL": message("event_type = NULL"),
    "a time that is NULL": message("occurred_at = NULL"),
    "a number of 2^62": both("4611686018427387904 + {s}"),
    "! a number of -2^63": both("-9223372036854775808"),
    **{f"! {column} never was": message(f"{column} = '0000-00-00'") for column in ("occurred_at", "received_at")},
    **{
        f"{column} is at the end": message(f"{column} = '9999-12-31 23:59:59.999999'")
        for column in ("occurred_at", "received_at")
    },
    "due never was": pending("due = '0000-00-00'"),
    "due at the end": pending("due = '9999-12-31 23:59:59.999999'"),
    "due in no month": pending("due = '2026-00-00'"),
    "a claim that never ends": pending("token = 1, owner = 77, due = '9999-12-31 23:59:59'"),
    "a claim since never": pending("token = 1, owner = 77, claimed_at = '0000-00-00'"),
    "a dead letter that never died": [letter(at="'0000-00-00'"), WAITS_NOT],
    "a dead letter of the end of time": [letter(at="'9999-12-31 23:59:59'"), WAITS_NOT],
    "processed when nothing was": [done(at="'0000-00-00'"), WAITS_NOT],
    "processed at the end of time": [done(at="'9999-12-31 23:59:59'"), WAITS_NOT],
}
# A CHECK there cannot name an AUTO_INCREMENT column.
MARIADB = {name.removeprefix("! ") if "a number" in name else name: kind for name, kind in MARIADB.items()}
KINDS = {"postgres": POSTGRES, "sqlite": SQLITE, "mariadb": MARIADB}
WORDS = {
    "postgres": {"now": "now()", "early": "'0001-01-01 00:00Z'"},
    "sqlite": {"now": "1", "early": "-62135596800000000"},
    "mariadb": {"now": "utc_timestamp()", "early": "'1000-01-01'"},
}


def statements(engine: str, kind: str, **values: int) -> list[str]:
    found = KINDS[engine][kind]
    return [text.format(**values, **WORDS[engine]) for text in ([found] if isinstance(found, str) else found)]


def unguarded(engine: str, url: str) -> None:
    """The tables without constraints, but for their keys."""
    if engine == "sqlite":
        bare_sqlite(url, "event_id|event_type|payload|sender")
        return
    rows(url, f"ALTER TABLE {M} DROP CONSTRAINT {M}_limits")
    if engine == "postgres":
        for column in ("event_type", "event_id", "occurred_at", "sender"):
            rows(url, f"ALTER TABLE {M} ALTER COLUMN {column} DROP NOT NULL")
    else:
        rows(
            url,
            f"ALTER TABLE {M} MODIFY payload longblob, MODIFY event_type varchar(255), MODIFY occurred_at datetime(6)",
        )
