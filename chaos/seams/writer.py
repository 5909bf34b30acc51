"""The writing process of a trial:  python -m chaos.seams.writer SPEC

A transaction takes the next number of each of its keys, notes the message in `seam_truth` and hands it to the product:
what is in that table was committed. It writes to the database itself, not by way of a gate, and asks a file where the
database is, because a fail-over moves it.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
import uuid
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from relaybox import Event, Inbox, Outbox

from .command import STALL
from .notes import Notes
from .products import GROUP, INBOX, PRODUCTS, SQLITE, TOPIC, TYPE, Product, connect, execute

KEYS = 12
ROLLED_BACK = 0.05


class OnPurpose(Exception):
    """Rolls a transaction back."""


def number(connection: Any, key: str) -> int:
    """A writer of the same key waits here for our commit, so numbers are in the order of commits."""
    if not execute(connection, "SELECT 1 FROM seam_key WHERE k = %s", (key,)):
        execute(connection, "INSERT INTO seam_key VALUES (%s, 0)", (key,))
    execute(connection, "UPDATE seam_key SET n = n + 1 WHERE k = %s", (key,))
    return int(execute(connection, "SELECT n FROM seam_key WHERE k = %s", (key,))[0][0])


def make(connection: Any, keys: list[str], product: Product) -> list[Event]:
    """Numbered, noted, not yet handed over."""
    events = []
    for key in sorted(keys):
        n = number(connection, key)
        event = Event(
            TYPE,
            {"n": n},
            key=key,
            topic=TOPIC if product.topic else None,
            headers={"sequence": str(n)} if product.inbox else {},
            id=str(uuid.uuid4()),
        )
        execute(connection, "INSERT INTO seam_truth VALUES (%s, %s, %s)", (event.id, key, n))
        events.append(event)
    return events


class Writer:
    def __init__(self, spec: dict[str, Any]) -> None:
        self.folder = Path(spec["folder"])
        self.product = PRODUCTS[spec["product"]]
        self.engine = spec["engine"]
        self.pace = float(spec["pace"])
        self.notes = Notes(self.folder / f"w{spec['number']}.notes")
        self.chance = random.Random(spec["seed"])
        self.poison = bool(spec.get("poison"))
        self.connection: Any = None
        self.box: Any = None
        self.broker_url = spec.get("broker")
        self.numbers: dict[str, int] = {}

    def run(self) -> None:
        step = self.step if self.product.kind != "ingest" else self.publish
        trial = os.getppid()
        while not (self.folder / "stop").exists() and os.getppid() == trial:
            if (self.folder / "wait").exists():
                time.sleep(0.02)
                continue
            try:
                step(self.keys())
            except OnPurpose:
                pass
            except Exception as error:  # the database is away, or full
                print(f"writer: {type(error).__name__}: {error}"[:300], file=sys.stderr)
                self.close()
                time.sleep(0.1)
            time.sleep(self.pace * self.chance.uniform(0.5, 1.5))
        self.close()

    def keys(self) -> list[str]:
        chosen = [f"k{self.chance.randrange(KEYS)}" for _ in range(self.chance.randint(1, 4))]
        if self.poison and self.chance.random() < 0.1:
            chosen.append(f"p{self.chance.randrange(3)}")
        return chosen

    def close(self) -> None:
        with suppress(Exception):
            if self.connection is not None:
                self.connection.close()
        with suppress(Exception):
            if self.box is not None:
                self.box.close()
        self.connection = self.box = None

    def open(self) -> Any:
        if self.connection is None:
            url = (self.folder / "database").read_text()
            self.connection = connect(url)
            self.box = Inbox(url, INBOX) if self.product.inbox else Outbox(url)
        return self.connection

    def step(self, keys: list[str]) -> None:
        connection = self.open()
        began = time.monotonic()
        execute(connection, "BEGIN IMMEDIATE" if self.engine == SQLITE else "BEGIN")
        try:
            events = make(connection, keys, self.product)
            self.hand_over(connection, events)
            if self.chance.random() < ROLLED_BACK:
                raise OnPurpose
        except Exception:
            with suppress(Exception):
                execute(connection, "ROLLBACK")
            raise
        execute(connection, "COMMIT")
        self.acked(events)
        if (took := time.monotonic() - began) > STALL:  # the database got no processor, or no disk
            self.notes.note("stall", seconds=took)

    def hand_over(self, connection: Any, events: list[Event]) -> None:
        if self.product.adopted:
            now = datetime.now(UTC).replace(tzinfo=None).isoformat(sep=" ")
            for event in events:
                values = (event.id, event.body.decode(), event.type, event.key, now)
                execute(
                    connection, "INSERT INTO seam_theirs (nr, body, kind, k, got) VALUES (%s, %s, %s, %s, %s)", values
                )
        elif self.product.inbox:
            self.box.accept_all(connection, events, sender="writer")
        else:
            self.box.write_all(connection, events)

    def acked(self, events: list[Event]) -> None:
        for event in events:
            self.notes.note("acked", id=event.id, key=event.key, n=event.payload["n"])

    def publish(self, keys: list[str]) -> None:
        """To the broker, as the relay writes entries; what it acknowledged counts."""
        import redis

        if self.box is None:
            self.box = redis.Redis.from_url(self.broker_url or "", socket_timeout=5)
        for key in keys:
            n = self.numbers.get(key, 0) + 1
            event = Event(TYPE, {"n": n}, key=key, id=str(uuid.uuid4()))
            attributes = {"event_id": event.id, "event_type": TYPE, "aggregate_id": key, "sequence": str(n)}
            fields: dict[Any, Any] = {
                "id": event.id,
                "type": TYPE,
                "key": key,
                "content_type": event.content_type,
                "data": event.body,
                "attributes": json.dumps(attributes),
            }
            self.box.xadd(GROUP, fields)
            self.numbers[key] = n
            self.acked([event])


if __name__ == "__main__":
    Writer(json.loads(Path(sys.argv[1]).read_text())).run()
