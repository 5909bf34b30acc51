"""`relaybox demo`: the promises of relaybox on a temporary SQLite file, told, shown and checked.

Only the public API is used. Waiting is for facts that relaybox reports, bounded by one deadline; a promise
that is not kept makes the exit code 1.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.syntax import Syntax

from relaybox import Event, Listeners, Outbox, Retry, Settings
from relaybox.clock import SYSTEM_CLOCK
from relaybox.settings import DeliverySettings

from .output import console, emit, table
from .status import document, look, view

DEADLINE = 9.0
ATTEMPTS = 3
SETTINGS = Settings(delivery=DeliverySettings(workers=2, retry=Retry(attempts=ATTEMPTS, base="50ms", max="200ms")))


def demo(json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """See relaybox at work: needs no database server and no options, takes a few seconds."""
    with TemporaryDirectory(prefix="relaybox-demo-") as folder, _quiet():
        show = Show(Path(folder, "shop.db"), console(), silent=json)
        status = show.play()
    if json:
        emit({"ok": show.kept, "checks": show.checks, "status": status, "seconds": round(show.seconds, 3)})
    if not show.kept:
        raise typer.Exit(1)


@contextmanager
def _quiet() -> Iterator[None]:
    """The failures are part of the play; their log lines would only frighten."""
    log = logging.getLogger("relaybox")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


class Show:
    def __init__(self, file: Path, out: Console, *, silent: bool) -> None:
        self._file = file
        self._out = out
        self._silent = silent
        self._begun = SYSTEM_CLOCK.monotonic()
        self._news = threading.Condition()
        self._delivered: list[tuple[str, int, datetime]] = []  # event id, attempt, when
        self._smtp_works = False
        self.checks: list[dict[str, Any]] = []

    @property
    def kept(self) -> bool:
        return bool(self.checks) and all(check["ok"] for check in self.checks)

    @property
    def seconds(self) -> float:
        return SYSTEM_CLOCK.monotonic() - self._begun

    # -- the play -------------------------------------------------------------------------------------

    def play(self) -> dict[str, Any]:
        url = f"sqlite:///{self._file}"
        with closing(sqlite3.connect(self._file)) as db:
            db.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)")
        with closing(Outbox(url)) as outbox:
            outbox.migrate()
        box = Outbox(url, settings=SETTINGS, observers=[lambda _: self._tell()])
        with box, box.deliver(self._listeners()), closing(sqlite3.connect(self._file)) as db:
            self._committed(box, db)
            self._rolled_back(box, db)
            self._retried(box, db)
            self._dies_and_comes_back(box, db)
            self._delayed(box, db)
            self._nothing_left(box)
            self._title("6. What is left")
            found = look(box)
            self._print(view(found))
        self._verdict()
        return document(found)

    def _listeners(self) -> Listeners:
        listeners = Listeners()

        @listeners.on("OrderPlaced")
        def confirm(event: Event, delivery: Any) -> None:
            self._done(event, delivery.attempts)

        @listeners.on("PaymentRequested")
        def pay(event: Event, delivery: Any) -> None:
            if delivery.attempts < 3:
                raise ConnectionError("the bank does not answer")
            self._done(event, delivery.attempts)

        @listeners.on("InvoiceSent")
        async def mail(event: Event, delivery: Any) -> None:
            if not self._smtp_works:
                raise ConnectionError("the mail server is down")
            self._done(event, delivery.attempts)

        @listeners.on("ReminderDue")
        async def remind(event: Event, delivery: Any) -> None:
            self._done(event, delivery.attempts)

        return listeners

    def _committed(self, box: Outbox, db: sqlite3.Connection) -> None:
        self._title("1. An event commits with its rows and is delivered")
        self._code(
            "with db:                                          # your transaction, any driver\n"
            '    db.execute("INSERT INTO orders (item) VALUES (?)", ["lamp"])\n'
            '    outbox.write(db, Event("OrderPlaced", {"item": "lamp"}, key="order-1"))'
        )
        event = Event("OrderPlaced", {"item": "lamp"}, key="order-1")
        with db:
            db.execute("INSERT INTO orders (item) VALUES (?)", ["lamp"])
            box.write(db, event)
        self._check("a committed event is delivered", self._until(lambda: self._times(event) == 1))

    def _rolled_back(self, box: Outbox, db: sqlite3.Connection) -> None:
        self._title("2. A rollback takes the event with it")
        self._code(
            "with db:\n"
            '    outbox.write(db, Event("OrderPlaced", {"item": "ghost"}))\n'
            '    raise RuntimeError("out of stock")            # rolls back rows and event'
        )
        self._ghost = Event("OrderPlaced", {"item": "ghost"}, key="order-2")
        try:
            with db:
                db.execute("INSERT INTO orders (item) VALUES (?)", ["ghost"])
                box.write(db, self._ghost)
                raise RuntimeError("out of stock")
        except RuntimeError:
            pass
        (orders,) = db.execute("SELECT count(*) FROM orders").fetchone()
        stored = box.resolve([self._ghost.id])[self._ghost.id]
        self._check("a rollback leaves neither row nor event", orders == 1 and not stored)

    def _retried(self, box: Outbox, db: sqlite3.Connection) -> None:
        self._title("3. A listener that fails is tried again")
        self._code(
            '@listeners.on("PaymentRequested")\n'
            "def pay(event, delivery):\n"
            "    if delivery.attempts < 3:\n"
            '        raise ConnectionError("the bank does not answer")'
        )
        event = Event("PaymentRequested", {"amount": 42}, key="order-1")
        with db:
            box.write(db, event)
        arrived = self._until(lambda: self._times(event) == 1)
        attempts = next((attempt for event_id, attempt, _ in self._delivered if event_id == event.id), None)
        self._check("a failing listener is retried and succeeds at the third attempt", arrived and attempts == 3)

    def _dies_and_comes_back(self, box: Outbox, db: sqlite3.Connection) -> None:
        self._title(f"4. After {ATTEMPTS} attempts an event is a dead letter, kept until you replay it")
        self._code("for letter in outbox.dead.list(): print(letter.event.type, letter.attempts, letter.error)")
        event = Event("InvoiceSent", {"order": 1}, key="order-1")
        with db:
            box.write(db, event)
        self._until(lambda: box.dead.count() == 1)
        letters = box.dead.list()
        if letters:
            rows = [(d.event.type, d.attempts, d.error) for d in letters]
            self._print(table(None, ("type", "attempts", "error"), rows))
        dead = [d.event for d in letters] == [event] and letters[0].attempts == ATTEMPTS
        self._check("an event that keeps failing becomes a dead letter", dead and self._times(event) == 0)
        self._code("outbox.dead.replay(letter.event.id)                # the mail server is back")
        self._smtp_works = True
        replayed = box.dead.replay(event.id)
        came_back = self._until(lambda: self._times(event) == 1)
        self._check("a replayed dead letter is delivered", replayed == 1 and came_back and box.dead.count() == 0)

    def _delayed(self, box: Outbox, db: sqlite3.Connection) -> None:
        self._title("5. An event may wait for its time")
        self._code('outbox.write(db, Event("ReminderDue", None, deliver_at=in_one_second))')
        due = SYSTEM_CLOCK.now() + timedelta(seconds=1)
        event = Event("ReminderDue", None, key="order-1", deliver_at=due)
        with db:
            box.write(db, event)
        arrived = self._until(lambda: self._times(event) == 1)
        when = next((moment for event_id, _, moment in self._delivered if event_id == event.id), due)
        in_time = when >= due - timedelta(milliseconds=10)  # SQLite's clock ticks in milliseconds
        self._check("a delayed event is delivered, and not before its time", arrived and in_time)

    def _nothing_left(self, box: Outbox) -> None:
        def idle() -> bool:
            state = box.status()
            return state.due == state.delayed == state.claimed == state.dead == 0

        self._check("nothing is left waiting, claimed or dead", self._until(idle))
        once = len({event_id for event_id, _, _ in self._delivered}) == len(self._delivered) == 4
        self._check("every event arrived once, the rolled-back one never", once and self._times(self._ghost) == 0)

    def _verdict(self) -> None:
        kept = sum(check["ok"] for check in self.checks)
        self._print(f"\n[bold]{kept} of {len(self.checks)} promises kept[/] in {self.seconds:.1f} s")

    # -- what the play needs ---------------------------------------------------------------------------

    def _done(self, event: Event, attempt: int) -> None:
        self._delivered.append((event.id, attempt, SYSTEM_CLOCK.now()))
        self._tell()

    def _tell(self) -> None:
        with self._news:
            self._news.notify_all()

    def _times(self, event: Event) -> int:
        return sum(event_id == event.id for event_id, _, _ in self._delivered)

    def _until(self, happened: Callable[[], bool]) -> bool:
        """Looks again at each fact that relaybox reports, and a few times a second in case one came too early."""
        while not happened():
            left = DEADLINE - self.seconds
            if left <= 0:
                return False
            with self._news:
                self._news.wait(min(left, 0.2))
        return True

    def _check(self, promise: str, ok: bool) -> None:
        self.checks.append({"promise": promise, "ok": ok})
        self._print(f"[green]✓[/] {promise}" if ok else f"[bold red]✗ {promise}[/]")

    def _title(self, text: str) -> None:
        self._print(f"\n[bold]{text}[/]")

    def _code(self, text: str) -> None:
        self._print(Syntax(text, "python", background_color="default", padding=(0, 2)))

    def _print(self, what: Any) -> None:
        if not self._silent:
            self._out.print(what)
