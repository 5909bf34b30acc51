"""The scenario that reaches every fault point:  python -m outbox.fault_child URL FILE

Twenty events in ten transactions, three transactions rolled back, one event that dies and is replayed, one that
runs longer than a third of its lease, one that is still running at the end, and a peer that died with two events.
FILE gets one line per delivery, FILE.ghosts the ids that are about to be rolled back. RELAYBOX_CRASH arms a point.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

from kit import delivering, wait_until
from relaybox import Event, Listeners, Outbox, Reject, Retry, Settings
from relaybox.ids import new_token
from relaybox.store.claims import Claim
from relaybox.testing.crash import InjectedFault, arm_from_environment
from relaybox.types import DeliverySettings, OutboxSettings

T = TypeVar("T")

SETTINGS = Settings(
    delivery=DeliverySettings(
        workers=4,
        instance_ttl="300ms",
        lease="600ms",
        stop_timeout="100ms",
        retry=Retry(base="5ms", max="20ms"),
        poll="50ms",
    ),
    outbox=OutboxSettings(retention="1h", purge_interval="50ms"),
)
BUSINESS = "CREATE TABLE business (id varchar(36) PRIMARY KEY)"


def append(file: Path, line: str) -> None:
    with file.open("ab", buffering=0) as log:
        os.write(log.fileno(), f"{line}\n".encode())


def lines(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def listeners(file: Path, *, finishing: bool) -> Listeners:
    """Events with a mood: they behave when `finishing`."""
    made = Listeners()

    def note(event: Event) -> None:
        append(file, event.id)

    @made.on("Slow")
    def slow(event: Event) -> None:
        if not finishing:
            time.sleep(0.35)
        note(event)

    @made.on("Dying")
    def dying(event: Event) -> None:
        if not finishing and not Path(f"{file}.allow").exists():
            raise Reject("not yet")
        note(event)

    @made.on("Endless")
    def endless(event: Event) -> None:
        if not finishing:
            Path(f"{file}.endless").touch()
            threading.Event().wait(2)
            return  # too late: nobody listens to this thread any more
        note(event)

    made.on("Happened")(note)
    return made


def insist(action: Callable[[], T]) -> T:
    """What a caller does with an injected error: again."""
    while True:
        try:
            return action()
        except InjectedFault:
            continue


def write(box: Outbox, *events: Event, abort: Path | None = None) -> None:
    try:
        with box.transaction() as tx:
            for event in events:
                tx.connection.cursor().execute(f"INSERT INTO business VALUES ('{event.id}')")
            box.write_all(tx, events)
            if abort is not None:
                for event in events:
                    append(abort, event.id)
                raise ZeroDivisionError
    except ZeroDivisionError:
        return


def a_peer_that_died(box: Outbox) -> None:
    """An instance that has expired, holding two events under a lease of a minute."""
    insist(lambda: write(box, *(Event("Happened", {"n": n}) for n in range(2))))
    dead = box._db.run(box.store.register("dead", "multi", timedelta(milliseconds=1), None))
    taken = box._db.run(box.store.claim(Claim(dead, new_token(), timedelta(minutes=1)), 10, None))
    assert len(taken) >= 2


def main(url: str, file: Path) -> None:
    plain = Outbox(url)
    insist(plain.migrate)
    a_peer_that_died(plain)
    box = insist(lambda: delivering(Outbox, url, listeners(file, finishing=False), settings=SETTINGS).__enter__())
    for n in range(10):
        insist(lambda n=n: write(box, *(Event("Happened", {"n": n, "i": i}, key=f"k{i}") for i in range(2))))
    for _ in range(3):
        insist(lambda: write(box, Event("Happened", None), abort=Path(f"{file}.ghosts")))
    insist(lambda: write(box, Event("Slow", None), Event("Dying", None)))
    wait_until(lambda: box.dead.count() == 1, "dead letter")
    wait_until(lambda: len(set(lines(file))) >= 23, "deliveries")
    Path(f"{file}.allow").touch()
    letter = box.dead.list()[0]
    insist(lambda: box.dead.replay(letter.event.id))
    wait_until(lambda: letter.event.id in lines(file), "replay")
    insist(lambda: write(box, Event("Endless", None)))
    wait_until(Path(f"{file}.endless").exists, "endless event")
    box.close()
    plain.close()


if __name__ == "__main__":
    arm_from_environment()
    main(sys.argv[1], Path(sys.argv[2]))
    os._exit(0)  # the endless listener's thread would keep us here
