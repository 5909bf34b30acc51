"""Processes of the trial from a feed to its replicas that are not the command line's own, to be killed at any moment:

python -m chaos.feed_to_replica_services writer SOURCE FOLDER SEED ITEMS
python -m chaos.feed_to_replica_services processor WAY SOURCE TARGET KIND PLANT      from an inbox into a table
python -m chaos.feed_to_replica_services group WAY SOURCE TARGET                     from a group into a table
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from relaybox import AsyncInbox, AsyncReplica, Event, Feed, Inbox, Outbox, Replica, StartFrom
from relaybox.types import FeedSource

from .leases import AS_SETTINGS

SHOPS = 6
STOCK = 100  # of each item at the beginning: what all items have together stays
ROLLED_BACK = 0.1
# Each version of an item and of a shop is written down where it is made. A version is drawn when nobody else can touch
# the item any more, so versions of an item are in the order of their commits.
TABLES = """
CREATE SEQUENCE version;
CREATE SEQUENCE shop_version;
CREATE TABLE shop (id integer PRIMARY KEY, name text NOT NULL, version bigint NOT NULL);
CREATE TABLE item (kind integer NOT NULL, code text NOT NULL, shop integer NOT NULL, price numeric(12,2),
                   stock bigint NOT NULL, note json, version bigint, PRIMARY KEY (kind, code));
CREATE INDEX ON item (shop);
CREATE TABLE shop_was (id integer, version bigint, name text);
CREATE TABLE item_was (kind integer, code text, version bigint, gone boolean, shop integer, price numeric,
                       stock bigint);
CREATE INDEX ON item_was (version);

CREATE FUNCTION shop_before() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.version := nextval('shop_version');
  INSERT INTO shop_was VALUES (NEW.id, NEW.version, NEW.name);
  RETURN NEW;
END $$;
CREATE FUNCTION item_before() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP <> 'INSERT' THEN
    PERFORM pg_advisory_xact_lock(OLD.kind, hashtext(OLD.code));
    IF TG_OP = 'DELETE' OR (OLD.kind, OLD.code) <> (NEW.kind, NEW.code) THEN
      INSERT INTO item_was VALUES (OLD.kind, OLD.code, nextval('version'), true);
    END IF;
    IF TG_OP = 'DELETE' THEN
      RETURN OLD;
    END IF;
  END IF;
  PERFORM pg_advisory_xact_lock(NEW.kind, hashtext(NEW.code));
  NEW.version := nextval('version');
  RETURN NEW;
END $$;
CREATE FUNCTION item_after() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO item_was VALUES (NEW.kind, NEW.code, NEW.version, false, NEW.shop, NEW.price, NEW.stock);
  RETURN NULL;
END $$;
CREATE TRIGGER shop_before BEFORE INSERT OR UPDATE ON shop FOR EACH ROW EXECUTE FUNCTION shop_before();
CREATE TRIGGER item_before BEFORE INSERT OR UPDATE OR DELETE ON item FOR EACH ROW EXECUTE FUNCTION item_before();
CREATE TRIGGER item_after AFTER INSERT OR UPDATE ON item FOR EACH ROW EXECUTE FUNCTION item_after();
"""
QUERY = """
SELECT i.kind, i.code, i.version, s.version AS shop_version, s.id AS shop, s.name, i.price, i.stock, i.note
FROM item i JOIN shop s ON s.id = i.shop
"""
KEY = ("kind", "code")
COLUMNS = {
    "kind": "integer",
    "code": "text",
    "version": "bigint",
    "shop_version": "bigint",
    "shop": "integer",
    "name": "text",
    "price": "numeric(12,2)",
    "stock": "bigint",
    "note": "json",
}
FEED = Feed(
    "goods",
    QUERY,
    key=KEY,
    sources={
        "item": KEY,
        "shop": FeedSource("id", resolve="SELECT i.kind, i.code FROM touched t JOIN item i ON i.shop = t.id"),
    },
    inline_rows=20,
    chunk_rows=7,
    every="300ms",
)
WRITES = tuple[Callable[[psycopg.Connection[Any], random.Random, int], None], ...]


class OnPurpose(Exception):
    pass


# -- the source -------------------------------------------------------------------------------------------------------


def code(number: int) -> str:
    return f'c"é\\{number}'


def any_item(chance: random.Random, items: int) -> tuple[int, str]:
    number = chance.randrange(items)
    return number % 3, code(number)


def fill(connection: psycopg.Connection[Any], items: int) -> None:
    connection.execute(TABLES.encode())
    for shop in range(SHOPS):
        connection.execute("INSERT INTO shop VALUES (%s, 'new', 0)", (shop,))
    for number in range(items):
        connection.execute(
            "INSERT INTO item VALUES (%s, %s, %s, 1.50, %s, '{}')",
            (number % 3, code(number), number % SHOPS, STOCK),
        )


def change(connection: psycopg.Connection[Any], chance: random.Random, items: int) -> None:
    note = json.dumps({"é": chance.random(), "n": [1, "x" * chance.randrange(40)]})
    connection.execute(
        "UPDATE item SET price = %s, note = %s WHERE (kind, code) = (%s, %s)",
        (chance.randrange(10_000) / 100, note, *any_item(chance, items)),
    )


def hand_over(connection: psycopg.Connection[Any], chance: random.Random, items: int) -> None:
    """Some stock, if both items are there."""
    one, other = any_item(chance, items), any_item(chance, items)
    if one != other:
        _give(connection, chance.randint(1, 20), one, other)


def _give(connection: psycopg.Connection[Any], amount: int, one: tuple[int, str], other: tuple[int, str]) -> bool:
    for item, by in ((one, -amount), (other, amount)):
        done = connection.execute("UPDATE item SET stock = stock + %s WHERE (kind, code) = (%s, %s)", (by, *item))
        if done.rowcount == 0:
            raise OnPurpose
    return True


def remove(connection: psycopg.Connection[Any], chance: random.Random, items: int) -> None:
    """Its stock goes to another; it may come back in the same transaction."""
    one, other = any_item(chance, items), any_item(chance, items)
    if one == other:
        return
    row = connection.execute("SELECT stock, shop FROM item WHERE (kind, code) = (%s, %s) FOR UPDATE", one).fetchone()
    if row is None:
        return
    _give(connection, row[0], one, other)
    connection.execute("DELETE FROM item WHERE (kind, code) = (%s, %s)", one)
    if chance.random() < 0.2:
        connection.execute("INSERT INTO item VALUES (%s, %s, %s, 2, 0, NULL)", (*one, row[1]))


def add(connection: psycopg.Connection[Any], chance: random.Random, items: int) -> None:
    connection.execute(
        "INSERT INTO item VALUES (%s, %s, %s, 1.00, 0, '[]') ON CONFLICT DO NOTHING",
        (*any_item(chance, items), chance.randrange(SHOPS)),
    )


def move(connection: psycopg.Connection[Any], chance: random.Random, items: int) -> None:
    """To another key, if that is free."""
    old, new = any_item(chance, items), any_item(chance, items)
    connection.execute(
        "UPDATE item SET kind = %(kind)s, code = %(code)s WHERE (kind, code) = (%(old_kind)s, %(old_code)s) "
        "AND NOT EXISTS (SELECT 1 FROM item WHERE (kind, code) = (%(kind)s, %(code)s))",
        dict(zip(("kind", "code", "old_kind", "old_code"), (*new, *old), strict=True)),
    )


def change_shop(connection: psycopg.Connection[Any], chance: random.Random, items: int) -> None:
    """The item's, or the name of a shop that many items have."""
    if chance.random() < 0.5:
        shop = chance.randrange(SHOPS)
        connection.execute("UPDATE shop SET name = %s WHERE id = %s", (f"s{chance.random()}", shop))
    else:
        connection.execute(
            "UPDATE item SET shop = %s WHERE (kind, code) = (%s, %s)",
            (chance.randrange(SHOPS), *any_item(chance, items)),
        )


def change_many(connection: psycopg.Connection[Any], chance: random.Random, items: int) -> None:
    connection.execute(
        "UPDATE item SET price = price + 0.10 WHERE shop = %s AND kind = %s",
        (chance.randrange(SHOPS), chance.randrange(3)),
    )


SMALL: WRITES = (change, change, change, hand_over, hand_over, remove, add, add, move)
LARGE: WRITES = (change_shop, change_many)


def transact(connection: psycopg.Connection[Any], chance: random.Random, items: int) -> None:
    """A few writes in one transaction; some are undone, alone or all, and some commit late."""
    try:
        with connection.transaction():
            for _ in range(chance.choice((1, 1, 2, 4))):
                write = chance.choice(LARGE if chance.random() < 0.04 else SMALL)
                with connection.transaction(force_rollback=chance.random() < 0.1):
                    write(connection, chance, items)
            if chance.random() < 0.2:
                connection.execute("SELECT pg_sleep(%s)", (chance.random() * 0.05,))
            if chance.random() < ROLLED_BACK:
                raise OnPurpose
    except (OnPurpose, psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
        return


def writer(url: str, folder: Path, seed: int, items: int) -> None:
    chance = random.Random(seed)
    while not (folder / "stop").exists():
        try:
            with psycopg.connect(url, connect_timeout=5, autocommit=True) as connection:
                connection.execute("SET deadlock_timeout = '50ms'")
                print("the source is written", flush=True)
                while not (folder / "stop").exists():
                    if (folder / "wait").exists():
                        time.sleep(0.02)
                    else:
                        transact(connection, chance, items)
        except psycopg.OperationalError as error:  # the database is away
            print(f"writer: {type(error).__name__}", file=sys.stderr)
            time.sleep(0.1)


# -- the tables that follow -------------------------------------------------------------------------------------------


def table(way: str) -> str:
    return f"goods_by_{way}"


def options(way: str, source: Any) -> dict[str, Any]:
    """Of the replica of a way: who gets single rows has nothing of the source."""
    if way == "rows":
        return {"feed": FEED.name, "key": KEY, "columns": COLUMNS}
    return {"feed": FEED.name, "source": source}


def inbox(way: str) -> str:
    return f"from_kafka_{way}"


def processor(way: str, source: str, target: str, kind: str, plant: str) -> None:
    PLANTS[plant]()
    if kind == "sync":
        _process(way, source, target)
    else:
        asyncio.run(_aprocess(way, source, target))


def _process(way: str, source: str, target: str) -> None:
    with (
        Outbox(source) as box,
        Replica(target, table(way), **options(way, box)) as replica,
        Inbox(target, inbox(way), settings=AS_SETTINGS) as receiver,
    ):

        def apply(event: Event, connection: Any) -> None:
            replica.apply(connection, event)

        with receiver.process(apply):
            _until_stopped(f"replica by {way}")


async def _aprocess(way: str, source: str, target: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with Outbox(source) as box:
        async with (
            AsyncReplica(target, table(way), **options(way, box)) as replica,
            AsyncInbox(target, inbox(way), settings=AS_SETTINGS) as receiver,
        ):

            async def apply(event: Event, connection: Any) -> None:
                await replica.apply(connection, event)

            async with receiver.process(apply):
                print(f"relaybox runs replica by {way}", flush=True)
                await stop.wait()


def group(way: str, source: str, target: str) -> None:
    with (
        Outbox(source, settings=AS_SETTINGS) as box,
        Replica(target, table(way), **options(way, box)) as replica,
    ):
        reading = box.topics.group(FEED.name, way, start=StartFrom.earliest(), ordered=True)
        with reading.deliver(lambda event: replica.apply(None, event)):
            _until_stopped(f"replica by {way}")


def _until_stopped(what: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    print(f"relaybox runs {what}", flush=True)
    stop.wait()


# -- bugs the judge must find ---------------------------------------------------------------------------------------


def any_version() -> None:
    """A message of a row is applied whatever version the row has; and each comes once more behind the next one."""
    from relaybox.replica.apply import Applying
    from relaybox.store.replica.kept import KeptTable

    take, before = Applying.take, dict[Any, Any]()

    def noted(self: KeptTable, row: Any) -> Any:
        yield from ()
        return 0, False, 0

    def twice(self: Applying, message: Any, *given: Any) -> Any:
        yield from take(self, message, *given)
        older, before[message.key] = before.get(message.key, message), message
        return (yield from take(self, older, *given))

    KeptTable.noted = noted  # type: ignore[method-assign]
    Applying.take = twice  # type: ignore[assignment,method-assign]


def no_tombstones() -> None:
    """A tombstone is passed over, as if the message before it always came."""
    from relaybox.replica.apply import Applied, Applying

    row = Applying._row

    def passed_over(self: Applying, at: Any, message: Any, *given: Any) -> Any:
        return (yield from row(self, at, message, *given)) if message.body else Applied(at, first=False)

    Applying._row = passed_over  # type: ignore[assignment,method-assign]


PLANTS: dict[str, Callable[[], None]] = {
    "none": lambda: None,
    "any-version": any_version,
    "no-tombstones": no_tombstones,
}


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["writer", url, folder, seed, items]:
            writer(url, Path(folder), int(seed), int(items))
        case ["processor", way, source, target, kind, plant]:
            processor(way, source, target, kind, plant)
        case ["group", way, source, target]:
            group(way, source, target)
