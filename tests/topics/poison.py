"""Rows that no writer of ours makes in the tables of a topic. Each kind changes an event that was just written, or
puts rows beside it.

`{log}` is the log, `{mark}` the marks, `{s}` the number of that event, `{h}` that of an honest one of another key. A
kind marked with `!` is refused by the constraints of the tables; without them (an older table, an operator's mistake)
its row is there all the same.
"""

from __future__ import annotations

from kit import one, rows

EVENT = (
    "event_id, event_type, aggregate_type, aggregate_id, tenant_id, content_type, payload, headers, occurred_at, "
    "created_at"
)
NESTED = "[" * 20_000


def event(change: str) -> str:
    return f"UPDATE {{log}} SET {change} WHERE seq = {{s}}"


def mark(change: str) -> str:
    return f"UPDATE {{mark}} SET {change} WHERE seq = {{s}}"


def another(seq: str) -> str:
    return f"INSERT INTO {{mark}} (seq, required) VALUES ({seq}, {{all}}) ON CONFLICT DO NOTHING"


def again(seq: str = "seq", xid: str = "xid", shard: str = "shard", count: int = 1) -> str:
    """A copy of the event somewhere else."""
    return (
        f"INSERT INTO {{log}} (seq, xid, shard, {EVENT}) SELECT {seq}, {xid}, {shard}, {EVENT} "
        f"FROM {{log}}, generate_series(1, {count}) n WHERE seq = {{s}} AND event_type = 'Poison'"
    )


LOG: dict[str, str | list[str]] = {
    "headers that are no JSON": event("headers = 'a: b'"),
    "headers that are a list": event("headers = '[1, 2]'"),
    "headers that are numbers": event("headers = '{{\"a\": 1}}'"),
    "headers nested deeply": event(f"headers = '{NESTED}'"),
    "! headers that are too large": event("headers = '" + "h" * 60_000 + "'"),
    "a payload that is empty": event("payload = ''"),
    "a payload that is not text": event("payload = '\\xff00'"),
    "a payload that is nested deeply": event(f"payload = '{NESTED}'"),
    "! a payload that is too large": event("payload = convert_to(repeat('x', 3000000), 'UTF8')"),
    "a payload that is NULL": event("payload = NULL"),
    "a content type that is none": event("content_type = 'x'"),
    "! an empty id": event("event_id = ''"),
    "an id that is NULL": event("event_id = NULL"),
    "an id of another": event("event_id = (SELECT event_id FROM {log} WHERE seq = {h} LIMIT 1)"),
    "! an empty type": event("event_type = ''"),
    "a type that is NULL": event("event_type = NULL"),
    "a type with lines": event("event_type = 'a\nERROR b'"),
    "a key with lines": event("aggregate_id = '\x1b[2J\n'"),
    "an empty key": event("aggregate_id = ''"),
    "no key": event("aggregate_id = NULL"),
    "a tenant of blanks": event("tenant_id = '  '"),
    "! a number that is zero": event("seq = 0"),
    "! a number below zero": event("seq = -5"),
    "! a number of -2^63": event("seq = -9223372036854775808"),
    "a number of 2^47": event("seq = 140737488355328 + seq"),
    "a number of 2^63 - 1": event("seq = 9223372036854775807"),
    "a number that is the first": event("seq = 1"),
    "a number of another": event("seq = {h}"),
    "a number that many have": again("{h}", shard="{hshard}", count=300),
    "a number that is next": again("{h} + 2", shard="{hshard}", count=300),
    "an event that is there twice": again(),
    "many of one number that cannot be read": [event("headers = 'a: b'"), again(count=50)],
    "large ones of one number": [event("payload = convert_to(repeat('x', 200000), 'UTF8')"), again(count=20)],
    "an event that is there in all shards": again(shard="n", count=15),
    "a transaction of the future": event("xid = '9223372036854775807'::xid8"),
    "a transaction that comes soon": event("xid = (xid::text::bigint + 50)::text::xid8"),
    "the first transaction": event("xid = '3'::xid8"),
    "no transaction": event("xid = '0'::xid8"),
    "a shard that is the last": event("shard = 32767"),
    "a shard below zero": event("shard = -1"),
    "a shard at the other end": event("shard = -32768"),
    "a time that is NULL": event("occurred_at = NULL"),
    **{
        f"! {column} is {name}": event(f"{column} = '{value}'")
        for column in ("occurred_at", "created_at")
        for name, value in {
            "infinite": "infinity",
            "before all": "-infinity",
            "far away": "294276-01-01 00:00Z",
            "before Christ": "4713-01-01 00:00Z BC",
        }.items()
    },
    "a time long ago": event("created_at = '0001-01-01 00:00Z'"),
    "a time at the end": event("created_at = '9999-12-31 23:59:59Z'"),
    "a time tomorrow": event("created_at = created_at + interval '1 day'"),
    "a time in some days": event("created_at = created_at + interval '3 days'"),
    "a time in a month": event("created_at = created_at + interval '1 month'"),
    "an event that is gone": "DELETE FROM {log} WHERE seq = {s}",
}
MARKS: dict[str, str] = {
    "a mark that is gone": "DELETE FROM {mark} WHERE seq = {s}",
    "a mark of no event": another("{s} + 1000000"),
    "a mark of the last number": another("9223372036854775807"),
    "a mark of the first number": another("-9223372036854775808"),
    "a mark that nobody must have": mark("required = {none}"),
    "a mark that all must have": mark("required = {all}"),
    "a mark that is complete": mark("completed_at = now()"),
    "a mark that completes never": mark("completed_at = 'infinity'"),
    "a mark that completed ever": mark("completed_at = '-infinity'"),
    "a mark of the end of time": mark("created_at = 'infinity'"),
    "a mark of the beginning": mark("created_at = '-infinity'"),
}
BITMAP: dict[str, str | list[str]] = {
    **LOG,
    **MARKS,
    "a mark of the last bit": mark("required = -9223372036854775808"),
    "a mark that all are done with": mark("done = -1"),
    "a mark that the wrong ones are done with": mark("done = ~required"),
}
ACKS: dict[str, str | list[str]] = {
    **LOG,
    **MARKS,
    "a mark of NULL": mark("required = ARRAY[NULL]::integer[]"),
    "a mark of nobody known": mark("required = ARRAY[-1, 2147483647, -2147483648]"),
    "a mark in two dimensions": mark("required = ARRAY[ARRAY[1], ARRAY[2]]"),
    "a mark that begins at zero": mark("required = '[0:0]={{1}}'::integer[]"),
    "a mark that names one often": mark("required = array_fill(1, ARRAY[10000])"),
    "an ack of no group": "INSERT INTO {ack} (seq, group_id) VALUES ({s}, -1)",
    "an ack of all groups": "INSERT INTO {ack} (seq, group_id) SELECT {s}, g FROM generate_series(1, 100) g",
    "an ack of no event": "INSERT INTO {ack} (seq, group_id) VALUES ({s} + 2000000, 1)",
}
KINDS = {"offset": LOG, "bitmap": BITMAP, "acks": ACKS}
WORDS = {
    "offset": {"all": "", "none": ""},
    "bitmap": {"all": "-1", "none": "0"},
    "acks": {"all": "ARRAY[1, 2, 3]", "none": "'{}'"},
}


def names(topic_id: int) -> dict[str, str]:
    return {name: f"outbox_event_{name}_{topic_id}" for name in ("log", "mark", "ack")}


def statement(tracking: str, kind: str, topic_id: int, seq: int, honest: int, url: str) -> str:
    log = names(topic_id)["log"]
    shard = one(url, f"SELECT shard FROM {log} WHERE seq = {honest} AND event_type <> 'Poison' LIMIT 1")
    values = {"s": seq, "h": honest, "hshard": shard, **names(topic_id), **WORDS[tracking]}
    found = KINDS[tracking][kind]
    return ";".join(text.format(**values) for text in ([found] if isinstance(found, str) else found))


def unguarded(url: str, topic_id: int) -> None:
    """The tables without constraints, but for their keys."""
    log = names(topic_id)["log"]
    rows(url, f"ALTER TABLE {log} DROP CONSTRAINT {log}_limits")
    for column in ("event_id", "event_type", "payload", "occurred_at"):
        rows(url, f"ALTER TABLE {log} ALTER COLUMN {column} DROP NOT NULL")
