"""Event ids and the hash that places a key: pure functions shared by Python and SQL."""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from functools import partial
from typing import Final

from .clock import epoch_ms

# Python's own: OpenSSL's looks for its implementation at every call. 0.18 µs against 0.55, which is 3.6 % of the
# 10.2 µs that an event takes in a batch. To measure it, with _md5 and with hashlib:
# python -m timeit -s "from _md5 import md5" "md5(b'order-7').digest()"
try:
    from _md5 import md5 as _md5  # type: ignore[import-not-found]
except ImportError:
    _md5 = partial(hashlib.md5, usedforsecurity=False)

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS: Final = tuple(a + b for a in _ALPHABET for b in _ALPHABET)


class _UlidSource:
    """Monotonic ULIDs: strictly increasing in this process, across threads, also within one millisecond.

    A new millisecond draws 79 fresh random bits; ids after it count up, so only the last four characters are worked out
    again: 0.5 µs an id, and 6.1 µs if all 26 were (`python -m timeit -s "from relaybox.ids import new_id" "new_id()"`).
    So who has one can guess its neighbours: they are no secrets. docs/operate/threats.md says what is claimed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ms = 0
        self._low = 0
        self._high = 0
        self._head = ""

    def next(self) -> str:
        with self._lock:
            now = epoch_ms()
            if now > self._ms:
                self._ms = now
                drawn = int.from_bytes(os.urandom(10)) >> 1  # head room for counting
                self._high, self._low = drawn >> 20, drawn & 0xFFFFF
                self._head = _text(now, 5) + _text(self._high, 6)
            elif self._low < 0xFFFFF:  # the same millisecond, or the clock stepped back
                self._low += 1
            else:
                self._high, self._low = self._high + 1, 0
                self._head = _text(self._ms, 5) + _text(self._high, 6)
            low = self._low
            return self._head + _PAIRS[low >> 10] + _PAIRS[low & 1023]


def _text(value: int, pairs: int) -> str:
    return "".join([_PAIRS[(value >> shift) & 1023] for shift in range((pairs - 1) * 10, -1, -10)])


_ulids = _UlidSource()


def _restart_ids() -> None:
    """A forked child must not repeat the parent's next ids, nor inherit a held lock."""
    global _ulids
    _ulids = _UlidSource()


os.register_at_fork(after_in_child=_restart_ids)


def new_id() -> str:
    return _ulids.next()


def key_hash(key: str) -> int:
    """63 bits of md5(key); `(key_hash >> 32) % shards` is the shard, the same in Python and in SQL."""
    return int.from_bytes(_md5(key.encode()).digest()[:8]) & 0x7FFF_FFFF_FFFF_FFFF


def shard_of(key: str, shards: int) -> int:
    return (key_hash(key) >> 32) % shards


def rendezvous(shard: int, name: str) -> int:
    """The weight of a process for a shard; the heaviest has it. When one leaves, only its shards move."""
    return key_hash(f"{shard}/{name}")


def new_token() -> int:
    """A fencing token: 63 random bits, unique per claim without asking the database."""
    return secrets.randbits(63)
