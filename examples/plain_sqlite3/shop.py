"""A shop on SQLite: `python shop.py [FOLDER]`."""

from __future__ import annotations

import sqlite3
import sys
import threading
from pathlib import Path

from relaybox import Event, Listeners, Outbox, Reject

listeners = Listeners()
mailed, refunded = threading.Event(), threading.Event()
till_is_open = threading.Event()


@listeners.on("OrderPlaced")
def send_mail(event, delivery):
    if delivery.attempts == 1:
        raise ConnectionError("the mail server is busy")  # relaybox tries again
    print(f"mail for {event.key}: {event.payload['item']} (attempt {delivery.attempts})")
    mailed.set()


@listeners.on("RefundWanted")
def refund(event):
    if not till_is_open.is_set():
        raise Reject("the till is closed")  # a dead letter at once
    print(f"refund for {event.key}")
    refunded.set()


def place_order(outbox: Outbox, db: sqlite3.Connection, number: int, item: str) -> None:
    """The order and its event commit together, or neither does."""
    with outbox.transaction(db) as tx:
        db.execute("INSERT INTO orders VALUES (?, ?)", [number, item])
        outbox.write(tx, Event("OrderPlaced", {"id": number, "item": item}, key=f"order-{number}"))
        if item == "coffee":
            raise ValueError("we are out of coffee")


def main(folder: Path) -> None:
    file = folder / "shop.db"
    outbox = Outbox(f"sqlite:///{file}")
    outbox.migrate()
    db = sqlite3.connect(file)
    db.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT)")
    with outbox, outbox.deliver(listeners):
        place_order(outbox, db, 1, "tea")
        try:
            place_order(outbox, db, 2, "coffee")
        except ValueError as error:
            print(f"no order 2 and no event: {error}")
        mailed.wait(10)

        with outbox.transaction(db) as tx:
            outbox.write(tx, Event("RefundWanted", {"id": 1}, key="order-1"))
        while not (letters := outbox.dead.list()):
            threading.Event().wait(0.01)
        print(f"dead letter: {letters[0].event.type}, {letters[0].error}")
        till_is_open.set()
        outbox.dead.replay(letters[0].event.id)
        refunded.wait(10)
    db.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
