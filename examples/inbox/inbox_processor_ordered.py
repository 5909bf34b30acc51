"""Numbered messages, each account in sequence: `python inbox_processor_ordered.py postgresql://localhost/bank`."""

from __future__ import annotations

import random
import sys
import time

import psycopg

from relaybox import Event, Inbox
from relaybox.types import Order

ACCOUNTS = ("ann", "bob", "cid")


def booking(account: str, number: int) -> Event:
    headers = {"sequence": str(number)}  # counted by the sender, per key
    return Event("Booked", {"number": number}, key=account, id=f"{account}-{number}", headers=headers)


def book(event: Event, db: psycopg.Connection) -> None:
    db.execute("INSERT INTO booking (account, number) VALUES (%s, %s)", [event.key, event.payload["number"]])


def wait_until(inbox: Inbox, pending: int) -> None:
    while inbox.status().pending > pending:
        time.sleep(0.05)


def main(url: str, count: int = 10) -> dict[str, list[int]]:
    with psycopg.connect(url) as db:
        db.execute("CREATE TABLE booking (id serial, account text, number int)")
    bookings = [booking(account, number) for account in ACCOUNTS for number in range(1, count + 1)]
    random.shuffle(bookings)
    late = next(each for each in bookings if each.id == "bob-3")
    bookings.remove(late)

    with Inbox(url, "bookings_inbox") as inbox:
        inbox.migrate()
        inbox.configure(order=Order(start=1))
        with inbox.process(book), inbox.process(book):  # as if on two machines
            for each in bookings:
                inbox.accept(None, each)
            wait_until(inbox, pending=count - 3)
            (gap,) = inbox.keys.list()
            print(f"{gap.key} waits for number {gap.first}; the others are done")
            inbox.accept(None, late)
            wait_until(inbox, pending=0)

    with psycopg.connect(url) as db:
        rows = db.execute("SELECT account, number FROM booking ORDER BY id").fetchall()
    return {account: [number for owner, number in rows if owner == account] for account in ACCOUNTS}


if __name__ == "__main__":
    for account, numbers in main(sys.argv[1]).items():
        print(account, *numbers)
