"""Whether a server keeps to what it says of locks. Some accept SKIP LOCKED and ignore it: two processes would have each
event at once. So two sessions ask for one row, when tables are made and when a process starts.

A server that cannot be asked (a role that may not lock, an engine with one connection) is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from .clock import Clock
from .drivers.script import Beside, Script, aplay, commit, look
from .drivers.spi import AsyncRunner
from .errors import StoreError, UnsupportedByEngine
from .op import Op
from .store.dialect import DIALECTS
from .store.doctor import version
from .store.schema import Schema

T = TypeVar("T")
LockOne = Callable[[], Op[Sequence[Any]]]

_sound: set[str] = set()  # addresses of databases that this process has asked


def made(store: Schema, op: Op[T]) -> Script[T]:
    """Make or change tables, on a server that can do with them what we want."""
    _refuse((yield from _age(store)))
    done = yield from commit(op)
    _refuse((yield from pretence(store, store.probe)))
    return done


async def ensure_sound(db: AsyncRunner, store: Schema, clock: Clock, ask: LockOne) -> None:
    """Raise UnsupportedByEngine unless it is. Asks a database once in this process."""
    if db.address in _sound:
        return
    await aplay(_sound_or_refused(store, ask), db, clock)
    if isinstance(db.address, str):
        _sound.add(db.address)


def _sound_or_refused(store: Schema, ask: LockOne) -> Script[None]:
    _refuse((yield from _age(store)) or (yield from pretence(store, ask)))


def _refuse(reason: str | None) -> None:
    if reason is not None:
        raise UnsupportedByEngine(reason)


def _age(store: Schema) -> Script[str | None]:
    if not store.capabilities.skip_locked:
        return None
    said = yield from look(store.server_version())
    product, oldest = DIALECTS[store.dialect].product(said)
    if () < version(said) < oldest:
        return (
            f"{product} {said} is older than {'.'.join(map(str, oldest))}, the oldest that relaybox can use: upgrade it"
        )
    return None


def pretence(store: Schema, ask: LockOne) -> Script[str | None]:
    """Why this server's locks are none, if they are not. `ask` locks one row."""
    if not store.capabilities.skip_locked:
        return None
    try:
        both = yield Beside(ask(), ask())
    except StoreError:
        return None
    ours, theirs = both or ((), ())
    if not ours or not theirs or ours[0][0] != theirs[0][0] or ours[0][1] == theirs[0][1]:
        return None
    said = yield from look(store.server_version())
    return (
        f"this server ({said}) accepts SKIP LOCKED and ignores it: two sessions got the same row at once, so several "
        "processes would have every event; use PostgreSQL, MySQL or MariaDB themselves"
    )
