"""A role that may write calls the function by itself, with what no program of ours gives it: honest events are
delivered all the same, and what it wrote is delivered, a dead letter, or refused."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from kit import wait_until
from relaybox import Event, Outbox, Reject

from .kit import CALLING, Estate

PARAMETERS = (
    *("event_ids", "event_types", "aggregate_types", "aggregate_ids", "tenant_ids", "content_types"),
    *("payloads", "headers", "occurred_ats", "deliver_ats"),
)
USUAL = {
    **dict.fromkeys(PARAMETERS, "NULL"),
    "event_ids": "ARRAY[gen_random_uuid()::text]",
    "event_types": "ARRAY['Hostile']",
    "payloads": "ARRAY['{}'::bytea]",
    "occurred_ats": "ARRAY[now()]",
}
ATTACKS: dict[str, dict[str, str]] = {
    "a time that never was": {"occurred_ats": "ARRAY['infinity'::timestamptz]"},
    "due for ever": {"deliver_ats": "ARRAY['-infinity'::timestamptz]"},
    "due never": {"deliver_ats": "ARRAY['infinity'::timestamptz]"},
    "due before all": {"deliver_ats": "ARRAY['4713-01-01 BC'::timestamptz]"},
    "one array is longer": {"event_ids": "ARRAY[gen_random_uuid()::text, gen_random_uuid()::text]"},
    "no arrays": {**dict.fromkeys(PARAMETERS, "NULL")},
    "empty arrays": {**dict.fromkeys(PARAMETERS, "'{}'")},
    "two dimensions": {"event_types": "ARRAY[ARRAY['A'], ARRAY['B']]"},
    "a payload of 100 MB": {"payloads": "ARRAY[convert_to(repeat('x', 100000000), 'UTF8')]"},
    "a payload that is NULL": {"payloads": "ARRAY[NULL::bytea]"},
    "JSON that is nested deeply": {"payloads": "ARRAY[convert_to(repeat('[', 100000), 'UTF8')]"},
    "headers of 1 MB": {"headers": "ARRAY[repeat('h', 1000000)]"},
    "headers that are no JSON": {"headers": "ARRAY['{']"},
    "headers with half a character": {"headers": """ARRAY['{"a": "\\ud800"}']"""},
    "headers that are numbers": {"headers": """ARRAY['{"traceparent": 7, "relaybox-topic": [1]}']"""},
    "headers that say it is sealed": {
        "headers": """ARRAY['{"relaybox-key-id": "no-such-key"}']""",
        "content_types": "ARRAY['application/vnd.relaybox.sealed']",
    },
    "a topic that is none": {"headers": """ARRAY['{"relaybox-topic": "\\u0000; DROP"}']"""},
    "a type with lines": {"event_types": "ARRAY[E'a\\nERROR b\\x1b[2J']"},
    "a long type": {"event_types": "ARRAY[repeat('t', 100000)]"},
    "an empty id": {"event_ids": "ARRAY['']"},
    "the id of a place": {"event_ids": "ARRAY['at:c/0/1']"},
    "the id of another": {"event_ids": "ARRAY['kept']"},
    "an empty key": {"aggregate_ids": "ARRAY['']"},
    "a thousand at once": {
        "event_ids": "ARRAY(SELECT gen_random_uuid()::text FROM generate_series(1, 1000))",
        "event_types": "ARRAY(SELECT 'Hostile' FROM generate_series(1, 1000))",
        "payloads": "ARRAY(SELECT '{'::bytea FROM generate_series(1, 1000))",
        "occurred_ats": "ARRAY(SELECT now() FROM generate_series(1, 1000))",
    },
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_whatever_it_writes_honest_events_are_delivered(estate: Estate, attack: dict[str, str]) -> None:
    seen: list[Any] = []
    given = ", ".join({**USUAL, **attack}[name] for name in PARAMETERS)

    def handle(event: Event) -> None:
        if event.type != "Honest":
            _ = event.payload, event.headers
            raise Reject("no")
        seen.append(event.payload)

    refusal: Exception | None = None
    with psycopg.connect(estate.at("writer"), autocommit=True) as hostile:
        try:
            hostile.execute(f"SELECT outbox_event_write({given})".encode())
        except psycopg.Error as error:
            refusal = error
    assert not isinstance(refusal, (psycopg.errors.UndefinedFunction, psycopg.errors.SyntaxError))
    with Outbox(estate.at("writer"), settings=CALLING) as box, psycopg.connect(estate.at("writer")) as session:
        box.write_all(session, [Event("Honest", n, key="k") for n in range(3)])
        session.commit()
    with Outbox(estate.at("worker")) as worker:
        with worker.deliver(handle) as service:
            wait_until(lambda: len(seen) == 3)
            service.drain(timeout="30s")
        assert sorted(seen) == [0, 1, 2]
    with Outbox(estate.at("operator")) as operator:
        repr(operator.dead.list(limit=1000))
        operator.events.list(limit=1000)
        operator.status()
        operator.purge(done="0s", dead="0s", reason="the next attack")
