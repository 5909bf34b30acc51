"""The billing of the demo: an inbox in its own SQLite file, and listeners that make entries in a ledger."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from sqlite3 import Connection, connect

from relaybox import Event, Inbox, Listeners, Retry, Settings, Where
from relaybox.facts import Delivered, Died, Fact, Retried
from relaybox.types import DeliverySettings, Order

from .words import heard, say

FILE, INBOX = "billing.db", "orders_inbox"
PRICES = {"tea": 4, "coffee": 6, "milk": 2, "bread": 3, "salt": 1, "rice": 2}  # none for a lamp
PRICE = "SELECT price FROM price WHERE item = ?"
ENTRY = "INSERT INTO ledger (number, entry) VALUES (?, ?)"
SETTINGS = Settings(delivery=DeliverySettings(poll="50ms", retry=Retry(attempts=3, base="50ms", max="100ms")))
PATIENT = Retry(attempts=None, base="50ms", max="100ms")
listeners = Listeners[Connection]()
bank_answers = False


@listeners.on("OrderPlaced")
def invoice(event: Event, db: Connection) -> None:
    if db.execute(PRICE, [event.payload["item"]]).fetchone() is None:
        raise LookupError(f"no price for a {event.payload['item']}")
    # The same transaction marks the message as processed.
    db.execute(ENTRY, [event.payload["number"], "invoice"])


@listeners.on("OrderPaid", retry=PATIENT)
def receipt(event: Event, db: Connection) -> None:
    db.execute(ENTRY, [event.payload["number"], "receipt"])
    if not bank_answers:  # then the receipt is rolled back, and tried again
        raise ConnectionError("the bank does not answer")


@listeners.on("OrderShipped")
def note(event: Event, db: Connection) -> None:
    db.execute(ENTRY, [event.payload["number"], "note"])


def repair(inbox: Inbox, db: Connection) -> int:
    with db:
        db.execute("INSERT INTO price VALUES ('lamp', 30)")
    return inbox.dead.replay(Where(key="order-7"))


def set_up(folder: Path) -> None:
    with closing(Inbox(f"sqlite:///{folder / FILE}", INBOX)) as inbox:
        inbox.migrate()
        inbox.configure(order=Order())  # the events of an order one after the other, by their numbers
    with closing(connect(folder / FILE)) as db, db:
        db.execute("CREATE TABLE price (item TEXT PRIMARY KEY, price INTEGER)")
        db.execute(
            "CREATE TABLE ledger (place INTEGER PRIMARY KEY, number INTEGER, entry TEXT)"
        )  # takes an entry twice
        db.executemany("INSERT INTO price VALUES (?, ?)", PRICES.items())


def _tell(fact: Fact) -> None:
    if isinstance(fact, (Retried, Died)):
        say(type(fact).__name__, id=fact.event_id, attempts=fact.attempts, error=fact.error)
    elif isinstance(fact, Delivered):
        say("Delivered", count=fact.count)


def main(folder: Path) -> None:
    global bank_answers
    inbox = Inbox(f"sqlite:///{folder / FILE}", INBOX, settings=SETTINGS, observers=[_tell])
    with inbox, inbox.process(listeners):
        say("ready")
        for told in heard():
            bank_answers = told["do"] == "answer"
            say("did")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
