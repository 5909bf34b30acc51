"""Histories: fixed 32-byte records, appended with O_APPEND by the one process that owns the file.

What a process wrote before kill -9 stays in the page cache, so a history is complete up to the last record.
Imports nothing but the standard library: the checker and the processes under trial share only this.
"""

from __future__ import annotations

import os
import struct
import time
from enum import IntEnum
from pathlib import Path

# op u8, incarnation u16, worker u16, attempt u16, event_no u64, key u32, aux u32, mono_ns u64, one byte of padding
FORMAT = struct.Struct("<BHHHQIIQx")
SIZE = FORMAT.size
FIELDS = ("op", "incarnation", "worker", "attempt", "event_no", "key", "aux", "mono_ns")

assert SIZE == 32


class Op(IntEnum):
    PUBLISH = 1  # about to write, inside a transaction
    COMMIT_OK = 2
    COMMIT_UNKNOWN = 3  # the reply was lost
    ABORT = 4  # about to roll back on purpose: transaction or savepoint
    FAILED = 5  # the transaction ended with an error before COMMIT was sent
    OWN_GAIN = 6  # aux: low 32 bits of the claim's token
    DELIVER = 7
    ACK_OK = 8  # the database accepted Done under the token in aux
    FAULT = 9  # event_no: kind; worker, incarnation: whom; aux: milliseconds it lasted
    START = 10  # a process was started


class Fault(IntEnum):
    KILL_WRITER = 1
    KILL_DISPATCHER = 2
    PG_RESTART = 3
    TERMINATE = 4
    PAUSE = 5


class History:
    """The file of one process; one write per call, so nothing is buffered when the process is killed."""

    def __init__(self, path: Path, worker: int, incarnation: int) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._worker = worker
        self._incarnation = incarnation

    def note(
        self,
        op: Op,
        event_no: int = 0,
        *,
        key: int = 0,
        attempt: int = 0,
        aux: int = 0,
        worker: int | None = None,
        incarnation: int | None = None,
        at: int | None = None,
    ) -> None:
        self.many([self.packed(op, event_no, key, attempt, aux, worker, incarnation, at)])

    def packed(
        self,
        op: Op,
        event_no: int,
        key: int = 0,
        attempt: int = 0,
        aux: int = 0,
        worker: int | None = None,
        incarnation: int | None = None,
        at: int | None = None,
    ) -> bytes:
        return FORMAT.pack(
            op,
            self._incarnation if incarnation is None else incarnation,
            self._worker if worker is None else worker,
            min(attempt, 65_535),
            event_no,
            key,
            aux & 0xFFFF_FFFF,
            time.monotonic_ns() if at is None else at,
        )

    def many(self, records: list[bytes]) -> None:
        if records:
            os.write(self._fd, b"".join(records))


class Numbers:
    """Event numbers that no other process or incarnation draws."""

    def __init__(self, worker: int, incarnation: int) -> None:
        self._next = (worker << 40) + (incarnation << 26)

    def draw(self) -> int:
        self._next += 1
        return self._next


def read(path: Path) -> list[tuple[int, ...]]:
    """A file may end with part of a record if the machine died; such a tail is ignored."""
    data = path.read_bytes()
    return list(FORMAT.iter_unpack(data[: len(data) // SIZE * SIZE]))
