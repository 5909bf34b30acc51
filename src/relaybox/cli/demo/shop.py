"""The shop of the demo: orders and an outbox in one SQLite file, and the relay that sends its events to billing."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from pathlib import Path
from sqlite3 import Connection, connect

from relaybox import Event, Outbox, Relay, Settings
from relaybox.facts import Claimed, Fact, Published, Written
from relaybox.types import DeliverySettings

from .words import heard, say

FILE = "shop.db"
FIRST = {"sequence": "1"}  # of the events of an order
# Of a process that was killed the others know after `instance_ttl`; the default is made for thousands of events.
SETTINGS = Settings(delivery=DeliverySettings(poll="50ms", instance_ttl="800ms", lease="2s"))
armed = ""


def place(outbox: Outbox, db: Connection, number: int, item: str) -> None:
    about = {"number": number, "item": item}
    event = Event("OrderPlaced", about, key=f"order-{number}", headers=FIRST)
    with outbox.transaction(db) as tx:  # both, or neither
        db.execute("INSERT INTO orders VALUES (?, ?)", [number, item])
        outbox.write(tx, event)


def move_on(outbox: Outbox, db: Connection, number: int, state: str, step: int) -> None:
    headers = {"sequence": str(step)}
    with outbox.transaction(db) as tx:
        db.execute("INSERT INTO history VALUES (?, ?)", [number, state])
        event = Event(f"Order{state.title()}", {"number": number}, key=f"order-{number}", headers=headers)
        outbox.write(tx, event)


def sending(outbox: Outbox, folder: Path) -> Relay:
    billing = f"inbox+sqlite:///{folder / 'billing.db'}?sender=shop"
    return Relay(outbox, billing, to="orders_inbox")


def die(fact: Fact) -> None:  # it is told what has just happened
    if type(fact).__name__ == armed:
        os.kill(os.getpid(), signal.SIGKILL)


def set_up(folder: Path) -> None:
    with closing(Outbox(f"sqlite:///{folder / FILE}")) as outbox:
        outbox.migrate()
    with closing(connect(folder / FILE)) as db:
        db.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY, item TEXT)")
        db.execute("CREATE TABLE history (number INTEGER, state TEXT)")


def _tell(fact: Fact) -> None:
    if isinstance(fact, (Written, Claimed, Published)):
        say(type(fact).__name__, count=fact.count)


def main(folder: Path) -> None:
    global armed
    outbox = Outbox(f"sqlite:///{folder / FILE}", settings=SETTINGS, observers=[_tell, die])
    with outbox, sending(outbox, folder), closing(connect(folder / FILE)) as db:
        say("ready")
        for told in heard():
            match told["do"]:
                case "place":
                    place(outbox, db, told["number"], told["item"])
                case "move_on":
                    move_on(outbox, db, told["number"], told["state"], told["step"])
                case "arm":
                    armed = told["at"]
            say("did")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
