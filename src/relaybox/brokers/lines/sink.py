"""JSON lines: every message is one line of a file or of standard output.

    {"id":…,"type":…,"key":…,"destination":…,"time":…,"content_type":…,"attributes":{…},"data":…}

`data` is the body itself, byte for byte, when that is JSON on one line; any other body is `data_base64`. Lines are
written whole and in order: a batch that does not fit is taken back, and what a killed process left unfinished is cut.
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import os
import select
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self, TypeVarTuple
from urllib.parse import unquote

from ...errors import BrokerUnavailable, Closed, ConfigError
from ..formats import timestamp
from ..json_members import STRICT
from ..options import split_url, typed
from ..spi import Answer, Features, Message

Ts = TypeVarTuple("Ts")
STDOUT = 1
PATIENCE = 1.0  # for a probe, and for a write under way at close
PROBE_BYTES = bytes(65_536)


class JsonLinesSink:
    """Appends to `path`, or writes to standard output without one.

    path    a file, made if it is not there, and opened anew when it was renamed or removed (log rotation).
            Several relays may share it.
    fsync   a message is accepted when it is on the disk, not when it is in the system's cache
    """

    name = "json-lines"
    features = Features(keyed_order=True, dedup=False, sequences=True)

    def __init__(self, path: str | Path | None = None, *, fsync: bool = True) -> None:
        if path is not None and not str(path):
            raise ConfigError("expected path to be the name of a file, got an empty one; leave it out for stdout")
        self._path = None if path is None else Path(path)
        self._fsync = fsync
        self._file: int | None = None
        self._writer = ThreadPoolExecutor(1, "relaybox-json-lines")  # one thread: writes keep their order
        self._closed = False

    @classmethod
    def from_url(cls, url: str, options: Mapping[str, Any]) -> Self:
        """`jsonl://-` is standard output, `jsonl:///var/log/events.jsonl` a file, `jsonl://events.jsonl` one in the
        working folder."""
        parts, options = split_url(url, options)
        path = unquote(parts.netloc + parts.path)
        return cls(None if path in ("", "-") else path, **typed(cls, options))

    def __repr__(self) -> str:
        return f"JsonLinesSink({self._where!r})"

    @property
    def _where(self) -> str:
        return "stdout" if self._path is None else str(self._path)

    async def open(self) -> None:
        await self._in_thread(self._open_and_check)

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        if messages:
            await self._in_thread(self._append, messages)
        return [None] * len(messages)

    async def probe(self) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._in_thread(self._check)
        except TimeoutError:
            raise BrokerUnavailable(f"{self._where} takes no output: nobody reads it, or its disk hangs") from None

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            ending = asyncio.get_running_loop().run_in_executor(self._writer, self._release)  # behind what is written
            self._writer.shutdown(wait=False)
            await asyncio.wait([ending], timeout=PATIENCE)

    async def _in_thread(self, job: Callable[[*Ts], None], *arguments: *Ts) -> None:
        if self._closed:
            raise Closed(f"{self!r} is closed")
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, job, *arguments)
        except OSError as error:
            raise BrokerUnavailable(f"cannot write to {self._where}: {error.strerror}") from error

    # In the writer's thread

    def _open_and_check(self) -> None:
        try:
            file = self._current()
            if self._path is not None and _is_regular(file) and os.pread(file, 1, 0) not in (b"", b"{"):
                raise ConfigError(
                    f"{self._where} is not a file of JSON lines; expected a new file or one that we wrote"
                )
            self._check()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
            raise ConfigError(f"cannot open {self._where}: {error.strerror}; expected a file we may write") from error

    def _check(self) -> None:
        """Whether there is room, by a file that is made beside ours and is gone at once."""
        if self._path is not None and _is_regular(self._current()):
            with tempfile.TemporaryFile(dir=self._path.resolve().parent, buffering=0) as room:
                room.write(PROBE_BYTES)
                os.fsync(room.fileno())

    def _append(self, messages: Sequence[Message]) -> None:
        data = b"".join([line(message) for message in messages])
        file = self._current()
        if not _is_regular(file):
            _write(file, data)
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            self._append_or_take_back(file, data)
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    def _append_or_take_back(self, file: int, data: bytes) -> None:
        end = os.lseek(file, 0, os.SEEK_END) if self._path is None else _cut_unfinished(file)
        try:
            _write(file, data)
            if self._fsync:
                os.fsync(file)
        except OSError:
            os.ftruncate(file, end)
            os.lseek(file, end, os.SEEK_SET)  # not every standard output is in append mode
            raise

    def _current(self) -> int:
        """The open file; a new one if ours is no longer what its name stands for."""
        if self._path is None:
            self._file = os.dup(STDOUT) if self._file is None else self._file
            return self._file
        if self._file is not None:
            try:
                if os.path.samestat(os.stat(self._path), os.fstat(self._file)):
                    return self._file
            except FileNotFoundError:
                pass  # renamed, and nobody made a new one yet
            self._release()
        special = self._path.exists() and not self._path.is_file()  # a pipe that we could read would never break
        access = os.O_WRONLY if special else os.O_RDWR
        self._file = os.open(self._path, access | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        return self._file

    def _release(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file)


def line(message: Message) -> bytes:
    event = message.event
    head = {
        "id": event.id,
        "type": event.type,
        "key": message.key,
        "destination": message.destination,
        "time": timestamp(event.occurred_at),
        "content_type": message.content_type,
        "attributes": dict(message.attributes),
    }
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()
    if _is_json(message) and _fits_one_line(message.body):
        return text[:-1] + b',"data":' + message.body + b"}\n"
    return text[:-1] + b',"data_base64":"' + base64.b64encode(message.body) + b'"}\n'


def _is_json(message: Message) -> bool:
    kind = message.content_type.partition(";")[0].rstrip()
    return kind == "application/json" or kind.endswith("+json")


def _fits_one_line(body: bytes) -> bool:
    """Whether the body can stand in a line as it is: JSON in UTF-8 without line breaks between its tokens."""
    if b"\n" in body or b"\r" in body:
        return False
    try:
        STRICT.decode(body.decode())
    except (ValueError, RecursionError):
        return False
    return True


def _is_regular(file: int) -> bool:
    return stat.S_ISREG(os.fstat(file).st_mode)


def _write(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(file, rest) :]
        except BlockingIOError:  # somebody shares our standard output and made it so
            select.select([], [file], [])


def _cut_unfinished(file: int) -> int:
    """Remove what a killed process left without an end; returns where the last whole line ends."""
    end = begin = os.lseek(file, 0, os.SEEK_END)
    tail = os.pread(file, 1, end - 1) if end else b"\n"
    if tail == b"\n":
        return end
    while begin and b"\n" not in tail:
        size = min(begin, 65_536)
        begin -= size
        tail = os.pread(file, size, begin)
    keep = begin + tail.rfind(b"\n") + 1
    os.ftruncate(file, keep)
    return keep
