"""The two services of the end-to-end trial, as processes that can be killed at any instruction:

python -m chaos.end_to_end_services writer URL FOLDER SEED ACCOUNTS      service A
python -m chaos.end_to_end_services processor URL SEED ORDER KIND        service B
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg

from relaybox import AsyncInbox, AsyncOutbox, Event, Inbox, Outbox
from relaybox.errors import RelayboxError
from relaybox.types import Order

from .leases import AS_SETTINGS

KINDS = ("sync", "async", "batch")
ROLLED_BACK = 0.1  # of A's transactions
FAILED = 0.003  # of B's attempts

TABLES_A = """
CREATE TABLE account (id integer PRIMARY KEY, moves integer NOT NULL);
CREATE TABLE movement (event_id text NOT NULL, account text NOT NULL, number integer NOT NULL, amount integer NOT NULL);
"""
# No key of the ledger forbids that an event is there twice.
TABLES_B = """
CREATE TABLE balance (account text PRIMARY KEY, amount integer NOT NULL, turn integer NOT NULL);
CREATE TABLE ledger (event_id text NOT NULL, account text NOT NULL, number integer NOT NULL, amount integer NOT NULL,
                     turn integer NOT NULL);
"""
MOVE = """
WITH moved AS (UPDATE account SET moves = moves + 1 WHERE id = %(id)s RETURNING moves)
INSERT INTO movement SELECT %(event_id)s, %(account)s, moves, %(amount)s FROM moved RETURNING number
"""
# First: until the commit nobody else touches the account, so turns are in the order of commits.
BOOK = """
INSERT INTO balance AS b VALUES ($1, $2, 1)
ON CONFLICT (account) DO UPDATE SET amount = b.amount + excluded.amount, turn = b.turn + 1 RETURNING turn
"""
ENTER = "INSERT INTO ledger VALUES ($1, $2, $3, $4, $5)"


class OnPurpose(Exception):
    pass


# -- service A ----------------------------------------------------------------------------------------------------


def writer(url: str, folder: Path, seed: int, accounts: int) -> None:
    chance = random.Random(seed)
    while not (folder / "stop").exists():
        try:
            with Outbox(url) as box, psycopg.connect(url, connect_timeout=5) as connection:
                print("service A writes", flush=True)
                while not (folder / "stop").exists():
                    if (folder / "wait").exists():
                        time.sleep(0.02)
                    else:
                        move(box, connection, chance, accounts)
        except (psycopg.Error, RelayboxError) as error:  # the database is away
            print(f"writer: {type(error).__name__}", file=sys.stderr)
            time.sleep(0.1)


def move(box: Outbox, connection: psycopg.Connection[Any], chance: random.Random, accounts: int) -> None:
    """Some accounts in one transaction, always in the same order: writers do not lock each other out."""
    try:
        with connection.transaction():
            events = []
            for account in sorted(chance.choices(range(accounts), k=chance.randint(1, 20))):
                event_id, key, amount = str(uuid4()), f"account-{account}", chance.randint(-500, 500)
                values = {"id": account, "event_id": event_id, "account": key, "amount": amount}
                row = connection.execute(MOVE, values).fetchone()
                assert row is not None
                numbered = {"sequence": str(row[0])}
                events.append(Event("Moved", {"amount": amount}, id=event_id, key=key, headers=numbered))
            box.write_all(connection, events)
            if chance.random() < ROLLED_BACK:
                raise OnPurpose
    except OnPurpose:
        return


# -- service B ----------------------------------------------------------------------------------------------------


def processor(url: str, seed: int, order: str, kind: str) -> None:
    with Inbox(url) as inbox:
        inbox.configure(order=Order() if order == "ordered" else None)
    chance = random.Random(seed)
    if kind == "sync":
        _process(url, chance)
    else:
        asyncio.run(_aprocess(url, chance, batch=20 if kind == "batch" else 1))


def _process(url: str, chance: random.Random) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    box = Outbox(url)

    def handle(event: Event, connection: psycopg.Connection[Any]) -> None:
        cursor = psycopg.RawCursor(connection)
        row = cursor.execute(BOOK, [event.key, event.payload["amount"]]).fetchone()
        assert row is not None
        cursor.execute(ENTER, _entry(event, row[0]))
        box.write(connection, _reply(event, row[0]))
        _fail(chance)

    with Inbox(url, settings=AS_SETTINGS) as inbox, inbox.process(handle):
        print("service B processes", flush=True)
        stop.wait()
    box.close()


async def _aprocess(url: str, chance: random.Random, batch: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    box = AsyncOutbox(url)

    async def handle(event: Event, connection: Any) -> None:
        turn = await connection.fetchval(BOOK, event.key, event.payload["amount"])
        await connection.execute(ENTER, *_entry(event, turn))
        await box.write(connection, _reply(event, turn))
        _fail(chance)

    inbox = AsyncInbox(url, settings=AS_SETTINGS)
    async with inbox.process(handle, batch=batch):
        print("service B processes", flush=True)
        await stop.wait()
    await inbox.close()
    await box.close()


def _entry(event: Event, turn: int) -> Sequence[Any]:
    return event.id, event.key, int(event.headers["sequence"]), event.payload["amount"], turn


def _reply(event: Event, turn: int) -> Event:
    return Event("Booked", {"cause": event.id, "account": event.key, "turn": turn}, key=event.key)


def _fail(chance: random.Random) -> None:
    if chance.random() < FAILED:
        raise OnPurpose("by chance, after all its writes")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["writer", url, folder, seed, accounts]:
            writer(url, Path(folder), int(seed), int(accounts))
        case ["processor", url, seed, order, kind]:
            processor(url, int(seed), order, kind)
