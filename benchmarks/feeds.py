"""What a feed costs: its writers, its refreshes as tables grow, its deltas, and those who read them.

    python -m benchmarks.feeds                          # all of it; some minutes, private servers
    python -m benchmarks.feeds --only capture,growth --rows 10000,100000

capture   commits a second with a feed on the table and without, in turn, on a server that writes durably: one row at a
          time, and a thousand in a statement
growth    milliseconds for a refresh of 100 changed rows, by the rows of the feed; median of --repeat
delta     refreshes with their delta and without (its step is replaced by one that does nothing), in turn, as ratio:
          10,000 rows in the event, 50,000 by claim check, and the first load of --first rows
poll      milliseconds to take 100 deltas where --deltas wait
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import psycopg

from relaybox import Feed, Outbox, StartFrom
from relaybox.testing.servers import PostgresServer

TOTALS = Feed(
    "totals",
    "SELECT customer, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY customer",
    key="customer",
    sources={"orders": "customer"},
)
TABLE = "CREATE TABLE orders (id integer PRIMARY KEY, customer integer NOT NULL, amount numeric NOT NULL)"
INDEX = "CREATE INDEX ON orders (customer)"


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.feeds", description=__doc__)
    parser.add_argument("--only", default="capture,growth,delta,poll")
    parser.add_argument("--rows", default="10000,100000,1000000,10000000", help="sizes of the feed for growth")
    parser.add_argument("--first", type=int, default=1_000_000, help="rows of the first load")
    parser.add_argument("--deltas", type=int, default=10_000, help="that wait for the poll")
    parser.add_argument("--commits", type=int, default=400, help="in each turn of capture")
    parser.add_argument("--repeat", type=int, default=7)
    return parser.parse_args(argv)


class Shop:
    """A database with orders, one for each customer, and an outbox."""

    def __init__(self, server: PostgresServer, customers: int) -> None:
        self.url = server.create_database()
        self.owner = psycopg.connect(self.url, autocommit=True)
        self.box = Outbox(self.url)
        self.box.migrate()
        self.owner.execute(TABLE)
        self.owner.execute("INSERT INTO orders SELECT g, g, g FROM generate_series(1, %s::integer) g", (customers,))
        self.owner.execute(INDEX)
        self.owner.execute("VACUUM ANALYZE orders")

    def __enter__(self) -> Shop:
        return self

    def __exit__(self, *error: object) -> None:
        self.box.close()
        self.owner.close()

    def change(self, first: int, rows: int) -> None:
        self.owner.execute("UPDATE orders SET amount = amount + 1 WHERE id > %s AND id <= %s", (first, first + rows))

    def refresh(self) -> float:
        began = time.perf_counter()
        self.box.feeds.refresh(None, "totals")
        return (time.perf_counter() - began) * 1000

    def analyze(self) -> None:
        self.owner.execute("VACUUM ANALYZE feed_totals")


# -- what writers pay ---------------------------------------------------------------------------------


def insert(shop: Shop, number: int, rows: int) -> None:
    shop.owner.execute(
        "INSERT INTO orders SELECT %s::integer * 1000 + g, g, 1 FROM generate_series(1, %s::integer) g",
        (number + 1_000, rows),
    )


def update(shop: Shop, number: int, rows: int) -> None:
    shop.change(number * rows % 50_000, rows)


def delete(shop: Shop, number: int, rows: int) -> None:
    shop.owner.execute(
        "DELETE FROM orders WHERE id > %s::integer * 1000 AND id <= %s::integer * 1000 + %s::integer",
        (number + 1_000, number + 1_000, rows),
    )


def capture(given: argparse.Namespace) -> None:
    with PostgresServer.from_wheel() as server, Shop(server, 100_000) as plain, Shop(server, 100_000) as fed:
        fed.box.feeds.create(TOTALS)
        fed.refresh()
        done = 0
        for rows, commits in ((1, given.commits), (1000, given.commits // 10)):
            for work in (insert, update, delete):
                times: dict[int, list[float]] = {0: [], 1: []}
                first = done - commits * given.repeat if work is delete else done
                for turn in range(given.repeat):
                    for side, shop in enumerate((plain, fed)):
                        began = time.perf_counter()
                        for n in range(commits):
                            work(shop, first + turn * commits + n, rows)
                        times[side].append((time.perf_counter() - began) / commits * 1e6)
                    fed.refresh()
                if work is insert:
                    done += commits * given.repeat
                without, having = median(times[0]), median(times[1])
                print(
                    f"capture  {work.__name__:6} of {rows:5,}: {without:9,.0f} us without, {having:9,.0f} with a feed, "
                    f"{having / without:.2f}",
                    flush=True,
                )


# -- refreshes ----------------------------------------------------------------------------------------


def growth(given: argparse.Namespace) -> None:
    with PostgresServer.from_wheel(durable=False) as server:
        for size in map(int, given.rows.split(",")):
            with Shop(server, size) as shop:
                shop.box.feeds.create(TOTALS)
                whole = shop.refresh()
                shop.analyze()
                times = []
                for n in range(given.repeat + 2):
                    shop.change(n * 100, 100)
                    times.append(shop.refresh())
                nothing = median(shop.refresh() for _ in range(given.repeat))
                print(
                    f"growth   {size:10,} rows: {median(times[2:]):6.1f} ms for 100 changed ones, {nothing:5.2f} "
                    f"for none, {whole:9,.0f} for all",
                    flush=True,
                )
                server_drop = shop.url
            server.drop_database(server_drop)


def delta(given: argparse.Namespace) -> None:
    with PostgresServer.from_wheel(durable=False) as server, Shop(server, max(given.first, 50_000)) as shop:
        emit = shop.owner.execute("SELECT pg_get_functiondef('outbox_event_feed_emit'::regproc)").fetchone()
        given_to = shop.owner.execute("SELECT pg_get_function_arguments('outbox_event_feed_emit'::regproc)").fetchone()
        assert emit is not None
        assert given_to is not None

        def silent(yes: bool) -> None:
            body = " LANGUAGE plpgsql AS $$BEGIN done.n := f.n + 1; done.claim_check := false; END$$"
            head = f"CREATE OR REPLACE FUNCTION outbox_event_feed_emit({given_to[0]})"
            shop.owner.execute((head + body if yes else emit[0]).encode())

        def compare(name: str, prepare: Callable[[int], Any], repeat: int) -> None:
            times: dict[bool, list[float]] = {True: [], False: []}
            for n in range(repeat):
                for yes in (True, False) if n % 2 else (False, True):
                    silent(yes)
                    prepare(n * 2 + yes)
                    times[yes].append(shop.refresh())
            without, having = median(times[True]), median(times[False])
            print(
                f"delta    {name}: {without:9,.0f} ms without, {having:9,.0f} with, {having / without:.3f}", flush=True
            )

        def changed(rows: int) -> Callable[[int], None]:
            def prepare(n: int) -> None:
                shop.change(0, rows)
                shop.owner.execute("VACUUM ANALYZE orders, feed_totals")

            return prepare

        def anew(n: int) -> None:
            shop.box.feeds.drop("totals")
            shop.box.feeds.create(TOTALS)

        shop.box.feeds.create(TOTALS)
        compare(f"first load of {given.first:,}", anew, 3)
        silent(False)
        anew(0)
        shop.refresh()
        compare("10,000 rows inline", changed(5_000), given.repeat)
        compare("50,000 rows by claim check", changed(25_000), given.repeat)


# -- readers ------------------------------------------------------------------------------------------


def poll(given: argparse.Namespace) -> None:
    with PostgresServer.from_wheel(durable=False) as server, Shop(server, 1_000) as shop:
        shop.box.feeds.create(TOTALS)
        group = shop.box.topics.group("totals", "reader", start=StartFrom.earliest())
        group.create()
        for n in range(given.deltas):
            shop.change(n % 1_000, 1)
            shop.refresh()
        times = []
        with group.consumer() as consumer:
            for _ in range(min(given.deltas // 100, 50)):
                began = time.perf_counter()
                batch = consumer.poll(100)
                times.append((time.perf_counter() - began) * 1000)
                assert len(batch) == 100
                consumer.commit(batch)
        print(f"poll     100 of {given.deltas:,} deltas: {median(times):.2f} ms, slowest {max(times):.2f}", flush=True)


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "capture": capture,
    "growth": growth,
    "delta": delta,
    "poll": poll,
}


def main() -> None:
    given = arguments()
    for name in given.only.split(","):
        PARTS[name](given)


if __name__ == "__main__":
    main()
