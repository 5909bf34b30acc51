"""The faults: how each begins and ends, what it needs, and what a product may do because of it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .products import LEASE, MARIADB, OUTAGE, POSTGRES, SQLITE, Product, connect, execute
from .world import fake_clock, faketime, mounts, namespaces

if TYPE_CHECKING:
    from .trial import Trial

Act = Callable[["Trial"], None]
SERVERS = (POSTGRES, MARIADB)
ALL = (*SERVERS, SQLITE)
TEN_MINUTES = 600.0


def _nothing(trial: Trial) -> None:
    """A fault that lies in how the trial was started."""


def _fits_all(product: Product) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    about: str
    begin: Act
    end: Act = _nothing
    seconds: float = 1.0  # from begin to end
    duplicates: bool = True
    forgets: bool = False
    needs: Callable[[], str] = lambda: ""  # what is missing on this machine
    engines: tuple[str, ...] = ALL
    unfit: Callable[[Product], str] = _fits_all  # why it cannot happen to a product
    server: str = "plain"
    settings: dict[str, Any] = field(default_factory=dict)
    machine: bool = False  # receivers run on another one
    disk: bool = False  # the database is on a small disk
    clock: bool = False  # the receivers' clocks are wrong
    calm: float = 30.0  # seconds until an inbox must have handled everything
    silent: bool = False  # a synchronous call may hang for as long as the kernel waits
    in_hand: float = 0.15  # seconds a handler takes meanwhile, so that there is work to interrupt
    held: float = 0.0  # seconds for which handlers are kept busy: so old may be what is interrupted


# -- the database is away -------------------------------------------------------------------------------------


def away(trial: Trial) -> None:
    """Longer than every timeout. SQLite: somebody else has it locked."""
    if trial.engine != SQLITE:
        trial.server.stop()
        return
    ready, over = threading.Event(), threading.Event()

    def lock() -> None:
        with closing(connect(trial.direct)) as connection:
            execute(connection, "BEGIN EXCLUSIVE")
            ready.set()
            over.wait(60)
            execute(connection, "ROLLBACK")

    holder = threading.Thread(target=lock, daemon=True)
    holder.start()
    ready.wait(30)
    trial.undo.append(over.set)
    trial.undo.append(holder.join)


def back(trial: Trial) -> None:
    if trial.engine == SQLITE:
        while trial.undo:
            trial.undo.pop(0)()
    else:
        trial.server.start()


def black_hole(trial: Trial) -> None:
    assert trial.gate is not None
    trial.gate.strand()


def fail_over(trial: Trial) -> None:
    """What is committed while the standby receives nothing more is forgotten."""
    assert trial.standby is not None
    trial.standby.cut()
    trial.load(120)


def promoted(trial: Trial) -> None:
    assert trial.standby is not None
    assert trial.gate is not None
    trial.gate.refuse()
    trial.server.kill()
    trial.standby.promote()
    trial.move_to(trial.standby)
    trial.gate.open()


def clock_to(offset: float) -> Act:
    return lambda trial: trial.server.set_clock(offset)


# -- a process ------------------------------------------------------------------------------------------------


def kill(trial: Trial) -> None:
    trial.receivers[0].kill()
    time.sleep(0.3)
    trial.receivers[0].start()


def kill_other(trial: Trial) -> None:
    trial.receivers[1].kill()
    trial.receivers[1].start()


def freeze(trial: Trial) -> None:
    trial.receivers[0].signal(signal.SIGSTOP)


def thaw(trial: Trial) -> None:
    trial.receivers[0].signal(signal.SIGCONT)


def fill_queues(trial: Trial) -> None:
    trial.flag("slow", 0.4)
    trial.load(60)
    trial.receivers[0].stop()


def start_again(trial: Trial) -> None:
    trial.receivers[0].start()


def hog(trial: Trial) -> None:
    trial.flag("hog", LEASE * 1.5)
    trial.begun(8)
    trial.unflag("hog")


def fork(trial: Trial) -> None:
    for receiver in trial.receivers:
        if not receiver.kind:  # a command does not fork
            receiver.signal(signal.SIGUSR1)


# -- the machine ----------------------------------------------------------------------------------------------


def fill_disk(trial: Trial) -> None:
    assert trial.disk is not None
    trial.disk.fill()


def free_disk(trial: Trial) -> None:
    assert trial.disk is not None
    trial.disk.free()


def cut(*, both: bool) -> Act:
    def begin(trial: Trial) -> None:
        assert trial.machine is not None
        trial.machine.cut(both=both)

    return begin


def mend(trial: Trial) -> None:
    assert trial.machine is not None
    trial.machine.mend()


def _has_handlers(product: Product) -> str:
    return "a relay has no handlers" if product.kind == "relay" else ""


def _in_our_process(product: Product) -> str:
    return "the command forks nothing" if product.kind == "relay" else ""


FAULTS = {
    fault.name: fault
    for fault in (
        Fault("database away", "stopped for longer than every timeout", away, back, OUTAGE),
        Fault(
            "black hole",
            "connections fall silent without FIN or RST; new ones work",
            black_hole,
            seconds=2.0,
            engines=SERVERS,
            silent=True,
            calm=75.0,  # the server keeps a handler's stranded transaction for a minute
        ),
        Fault(
            "fail-over",
            "to a standby that lost its tail",
            fail_over,
            promoted,
            0.1,
            forgets=True,
            engines=(POSTGRES,),
            server="primary",
            in_hand=0.4,
        ),
        Fault(
            "clock set back",
            "the database's, by two seconds",
            clock_to(-2),
            seconds=2.5,
            needs=faketime,
            engines=(POSTGRES,),
            server="clocked",
        ),
        Fault(
            "clock set ahead",
            "the database's, by a minute",
            clock_to(60),
            seconds=2.0,
            needs=faketime,
            engines=(POSTGRES,),
            server="clocked",
        ),
        Fault("kill -9", "both receivers, one after the other", kill, kill_other, 1.0),
        Fault("freeze", "a receiver stands still beyond its lease", freeze, thaw, LEASE * 1.5),
        Fault(
            "SIGTERM",
            "with full queues",
            fill_queues,
            start_again,
            0.2,
            duplicates=False,
            settings={"delivery.stop_timeout": 5.0},
        ),
        Fault(
            "pool exhausted",
            "every handler holds a transaction beyond the lease",
            hog,
            held=LEASE * 1.5,
            seconds=LEASE * 1.5,
            duplicates=False,
            unfit=_has_handlers,
            settings={"delivery.timeout": 20.0, "delivery.stop_timeout": 8.0},
        ),
        Fault(
            "client's clock",
            "of one receiver ten minutes ahead, of the other ten behind",
            _nothing,
            duplicates=False,
            needs=faketime,
            clock=True,
        ),
        Fault(
            "fork",
            "of receivers that run; the children write and end",
            fork,
            seconds=1.0,
            duplicates=False,
            unfit=_in_our_process,
        ),
        Fault(
            "disk full",
            "no page can be added to the database's files",
            fill_disk,
            free_disk,
            2.5,
            needs=mounts,
            engines=(POSTGRES, SQLITE),
            disk=True,
        ),
        Fault(
            "link cut both ways",
            "between receivers and database",
            cut(both=True),
            mend,
            OUTAGE,
            needs=namespaces,
            engines=SERVERS,
            machine=True,
        ),
        Fault(
            "link cut one way",
            "questions arrive, answers do not",
            cut(both=False),
            mend,
            OUTAGE,
            needs=namespaces,
            engines=SERVERS,
            machine=True,
        ),
    )
}


def environment(fault: Fault | None, number: int) -> dict[str, str]:
    """Of a receiver."""
    if fault is None or not fault.clock:
        return {}
    return fake_clock(TEN_MINUTES if number % 2 else -TEN_MINUTES)


def unfit(fault: Fault, product: Product, engine: str) -> str:
    """Why the pair does not exist; empty if it does."""
    if engine not in fault.engines:
        return f"not on {engine}"
    return fault.unfit(product)
