"""`relaybox demo`: two services on two SQLite files, one of them killed at the worst moments; told, shown and checked.

Only the public API is used, and what is shown as code is the source of what runs. Waiting is for what the programs
say, bounded by one deadline; a promise that is not kept makes the exit code 1.
"""

from __future__ import annotations

import io
import signal
import sys
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from sqlite3 import connect
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.text import Text

from relaybox import Inbox, Outbox, Where
from relaybox.types import StoredEvent

from ..output import console, emit
from . import billing, shop
from .picture import Trail, picture
from .stage import Program, Stage

PROGRAMS = {"shop": shop.__spec__.name, "billing": billing.__spec__.name}
MOMENTS = {  # facts that an observer hears of, and what they mean
    "Written": "the rows are inserted, COMMIT is yet to come",
    "Claimed": "the relay has taken the event and not sent it",
    "Published": "billing has the message, the outbox does not know",
}
LEDGER = {
    1: ["invoice"],
    3: ["invoice"],
    4: ["invoice"],
    5: ["invoice", "receipt", "note"],
    6: ["invoice"],
    7: ["invoice"],
}


def demo(json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """See relaybox at work: needs no database server and no options, takes a few seconds."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # where there is no ✓
    with TemporaryDirectory(prefix="relaybox-demo-") as folder:
        stage = Stage(Path(folder), None if json else console())
        with closing(stage), Play(stage) as play:
            play.run()
            document = play.document()
        if not stage.kept:
            for log in sorted(Path(folder).glob("*.log")):
                sys.stderr.write(log.read_text(encoding="utf-8")[-4000:])
    if json:
        emit(document, schema="demo/1")
    if not stage.kept:
        raise typer.Exit(1)


class Play:
    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._trails: dict[int, Trail] = {}
        self._shop: Program
        self._billing: Program
        self._open = ExitStack()

    def __enter__(self) -> Play:
        folder = self._stage.folder
        shop.set_up(folder)
        billing.set_up(folder)
        self._outbox = self._open.enter_context(Outbox(f"sqlite:///{folder / shop.FILE}", settings=shop.SETTINGS))
        inbox = Inbox(f"sqlite:///{folder / billing.FILE}", billing.INBOX, settings=billing.SETTINGS)
        self._inbox = self._open.enter_context(inbox)
        self._shop_db = self._open.enter_context(closing(connect(folder / shop.FILE)))
        self._billing_db = self._open.enter_context(closing(connect(folder / billing.FILE)))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(self) -> None:
        self._billing, self._shop = self._start("billing"), self._start("shop")
        self._committed()
        self._killed_in_the_transaction()
        self._killed_before_delivery()
        self._killed_after_delivery()
        self._in_order()
        self._dead()
        self._end()

    # -- the acts -------------------------------------------------------------------------------------

    def _committed(self) -> None:
        stage = self._stage
        stage.show(Text("A shop with an outbox, billing with an inbox: two processes, a file each."))
        stage.title("1. One transaction for the order and its event, one for the invoice")
        stage.code(shop.place, shop.sending, billing.invoice)
        self._place(1, "tea")
        arrived = self._arrived(1)
        stage.check("an order that commits is invoiced", arrived)

    def _killed_in_the_transaction(self) -> None:
        stage = self._stage
        stage.title("2. kill -9 in the middle of the transaction")
        stage.code(shop.die)
        killed = self._killed_at("Written", 2, "coffee")
        gone = not self._orders(2) and not self._messages(self._outbox, 2)
        stage.check("neither the order nor its event is there", killed and gone)
        self._restart()

    def _killed_before_delivery(self) -> None:
        stage = self._stage
        stage.title("3. kill -9 after the commit, before the delivery")
        killed = self._killed_at("Claimed", 3, "milk")
        stage.check("the order is there, billing knows nothing", killed and self._orders(3) and not self._ledger(3))
        self._restart()
        stage.check("what was committed arrives: nothing is lost", self._arrived(3))

    def _killed_after_delivery(self) -> None:
        stage = self._stage
        stage.title("4. kill -9 after the delivery, before the shop has noted it")
        killed = self._killed_at("Published", 4, "bread")
        self._restart()
        again = stage.until(lambda: bool(self._shop.heard("Published")))
        stage.line("shop", "sends it again, because it cannot know better")
        arrived = self._arrived(4)
        twice = self._trails[4].sent == 2 and len(self._messages(self._inbox, 4)) == 1
        stage.check("sent twice, takes effect once", killed and again and arrived and twice)

    def _in_order(self) -> None:
        stage = self._stage
        stage.title("5. A listener fails: its order waits and is tried again, the others go on")
        stage.code(billing.receipt)
        self._place(5, "salt")
        for step, state in enumerate(("paid", "shipped"), 2):
            self._shop_does("move_on", number=5, state=state, step=step)
            self._trails[5].shop.append(state)
            stage.line("shop", f"order 5 {state}, committed with its event")
        failed = stage.until(lambda: len(self._billing.heard("Retried")) >= 2)
        for told in self._billing.heard("Retried")[:2]:
            stage.line("billing", f"attempt {told['attempts']} for order 5: {told['error']}")
        self._place(6, "rice")
        passed = stage.until(lambda: self._ledger(6) == ["invoice"])
        stage.check("another order passes, order 5 waits", failed and passed and self._ledger(5) == ["invoice"])
        self._billing.do("answer")
        stage.line("billing", "the bank answers")
        stage.check("then all of it takes effect, once and in order", self._arrived(5, 6))

    def _dead(self) -> None:
        stage = self._stage
        stage.title("6. What cannot succeed becomes a dead letter, kept until you replay it")
        self._place(7, "lamp")
        died = stage.until(lambda: self._inbox.dead.count() == 1)
        for letter in self._inbox.dead.list():
            stage.line("billing", f"{letter.event.type} of {letter.event.key} is dead after {letter.attempts} attempts")
            stage.line("billing", letter.error or "")
        limit = billing.SETTINGS.delivery.retry.attempts
        tried = [told["attempts"] for told in self._billing.heard("Died")] == [limit]
        stage.check(f"after {limit} attempts it is a dead letter", died and tried and not self._ledger(7))
        stage.code(billing.repair)
        replayed = billing.repair(self._inbox, self._billing_db)
        stage.line("you", f"repaired the price, replayed {replayed}")
        arrived = self._arrived(7)
        stage.check("replayed, it takes effect", replayed == 1 and arrived and not self._inbox.dead.count())

    def _end(self) -> None:
        stage = self._stage
        for program in (self._shop, self._billing):
            program.end()
        stopped = stage.until(lambda: self._shop.code is not None and self._billing.code is not None)
        self._look_back()
        stage.title("What became of it")
        stage.show(picture(list(self._trails.values()), self._outbox.status().due, self._inbox.dead.count()))
        stage.show(Text("✗ kill -9   ↻ tried again   † dead letter   ─n─► messages sent", style="dim"))
        entries = {number: self._ledger(number) for number in self._trails if self._ledger(number)}
        stage.check("every entry of the ledger is there once, and none without an order", entries == LEDGER)
        stage.check("nothing waits, and both services stop when they are asked to", stopped and self._settled())
        kept = sum(check["ok"] for check in stage.checks)
        stage.show(Text(f"\n{kept} of {len(stage.checks)} promises kept in {stage.seconds:.1f} s", style="bold"))

    # -- what the acts have in common -----------------------------------------------------------------

    def _start(self, name: str) -> Program:
        program = self._stage.start(name, PROGRAMS[name])
        self._stage.until(lambda: bool(program.heard("ready")))
        return program

    def _restart(self) -> None:
        self._shop = self._start("shop")
        self._stage.line("shop", "starts again")

    def _shop_does(self, what: str, **about: Any) -> None:
        before = len(self._shop.heard("did"))
        self._shop.do(what, **about)
        self._stage.until(lambda: len(self._shop.heard("did")) > before or self._shop.code is not None)

    def _place(self, number: int, item: str) -> None:
        trail = self._trails[number] = Trail(number, item)
        self._shop_does("place", number=number, item=item)
        if self._orders(number):
            trail.shop.append("placed")
            self._stage.line("shop", f"order {number}, {item}, committed with its event")

    def _killed_at(self, fact: str, number: int, item: str) -> bool:
        self._shop_does("arm", at=fact)
        self._shop.doomed = True
        self._place(number, item)
        self._stage.until(lambda: self._shop.code is not None)
        self._trails[number].shop.append("✗ killed")
        self._stage.line("shop", f"killed by signal {-(self._shop.code or 0)}: {MOMENTS[fact]}")
        return self._shop.code == -signal.SIGKILL

    def _arrived(self, *numbers: int) -> bool:
        """Until billing has these orders as it should, and all that was committed is sent and noted."""

        def seen() -> bool:
            stored = sum(len(self._messages(self._inbox, number)) for number in self._trails)
            as_wanted = all(self._ledger(number) == LEDGER[number] for number in numbers)
            return as_wanted and self._settled() and self._published() >= stored

        arrived = self._stage.until(seen)
        more = self._published() - sum(trail.sent for trail in self._trails.values())
        for number in numbers:
            self._trails[number].sent = self._trails[number].stored = len(self._messages(self._inbox, number))
            self._stage.line("billing", f"order {number}: {', '.join(self._ledger(number))}")
        self._trails[numbers[0]].sent += more - sum(self._trails[number].stored for number in numbers)
        return arrived

    def _look_back(self) -> None:
        """At what each order has met in billing."""
        for trail in self._trails.values():
            ids = {message.event.id for message in self._messages(self._inbox, trail.number)}
            trail.retries = sum(told["id"] in ids for told in self._billing.heard("Retried"))
            trail.died = sum(told["id"] in ids for told in self._billing.heard("Died"))
            trail.entries = self._ledger(trail.number)

    def _published(self) -> int:
        return sum(told["count"] for told in self._stage.heard("Published"))

    def _settled(self) -> bool:
        shop = self._outbox.status()
        return shop.due == shop.delayed == shop.claimed == shop.dead == self._inbox.status().pending == 0

    def _messages(self, box: Outbox | Inbox, number: int) -> list[StoredEvent]:
        return box.events.list(Where(key=f"order-{number}"))

    def _orders(self, number: int) -> bool:
        return self._shop_db.execute("SELECT 1 FROM orders WHERE number = ?", [number]).fetchone() is not None

    def _ledger(self, number: int) -> list[str]:
        query = "SELECT entry FROM ledger WHERE number = ? ORDER BY place"
        return [entry for (entry,) in self._billing_db.execute(query, [number])]

    def document(self) -> dict[str, Any]:
        return {
            "ok": self._stage.kept,
            "checks": self._stage.checks,
            "orders": [asdict(trail) | {"dropped": trail.dropped} for trail in self._trails.values()],
            "shop": asdict(self._outbox.status()),
            "billing": asdict(self._inbox.status()),
            "seconds": round(self._stage.seconds, 3),
        }
