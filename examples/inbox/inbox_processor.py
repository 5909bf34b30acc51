"""Every message takes effect once: `python inbox_processor.py [FOLDER]`."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

from relaybox import ALL, Event, Inbox, Reject

TABLES = """
CREATE TABLE customer (name TEXT PRIMARY KEY);
CREATE TABLE invoice (key TEXT, customer TEXT);
INSERT INTO customer VALUES ('ann');
"""


def book(event: Event, db: sqlite3.Connection) -> None:
    """This INSERT and the mark "processed" are one transaction: both, or neither."""
    (customer,) = db.execute("SELECT count(*) FROM customer WHERE name = ?", [event.payload["customer"]]).fetchone()
    if not customer:
        raise Reject("no such customer")  # a dead letter at once; any other error is tried again
    db.execute("INSERT INTO invoice VALUES (?, ?)", [event.key, event.payload["customer"]])


def main(folder: Path) -> None:
    file = folder / "invoices.db"
    db = sqlite3.connect(file)
    db.executescript(TABLES)
    with Inbox(f"sqlite:///{file}", "orders_inbox") as inbox:
        inbox.migrate()
        order = Event("OrderPlaced", {"customer": "ann"}, key="order-1", id="evt-1")
        print("accepted:", inbox.accept(None, order, sender="shop"))
        print("accepted:", inbox.accept(None, order, sender="shop"), "(it was there already)")
        inbox.accept(None, Event("OrderPlaced", {"customer": "bob"}, key="order-2", id="evt-2"))

        print(inbox.process(book).once())
        for letter in inbox.dead.list():
            print(f"dead letter: {letter.event.key}, {letter.error}")

        db.executescript("INSERT INTO customer VALUES ('bob')")
        inbox.dead.replay(ALL, reason="bob is a customer now")
        print(inbox.process(book).once())
    print("invoices:", db.execute("SELECT key, customer FROM invoice ORDER BY key").fetchall())
    db.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
