"""Redis Streams: a consumer group on one stream.

    RedisStreamSource("rediss://ingest:secret@redis.example:6379/0", stream="orders", group="billing")

After a restart the consumer's own pending entries come first, in their order: give each process a name that stays its
own. Entries of consumers that are gone are claimed when nobody has touched them for `claim_idle`, and come behind newer
ones.

An entry is read as the sink writes it (`data`, `content_type`, `key`, `attributes`); of one without `data` the fields
are the headers, and their JSON is the body.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from redis.asyncio import Redis
from redis.exceptions import RedisError

from ...durations import Duration
from ...errors import ConfigError
from ..connection import Connected
from ..door import taken
from ..leased import LeasedSource
from ..options import check_choice, check_given, positive
from ..spi import Incoming, moment
from .connection import RedisConnection, reason

log = logging.getLogger("relaybox")

FAILURES = (RedisError, OSError, TimeoutError)
BEGINNING = b"0-0"
RedisStart: TypeAlias = Literal["all", "new"]


class RedisStreamSource(Connected[RedisConnection], LeasedSource):
    """Reads one stream as a member of a consumer group. The first argument is a URL or a RedisConnection.

    stream      what is read
    group       the consumer group, made if it does not exist
    start       for a group that is made: the whole stream, or only what is added from now on
    consumer    this process, by a name that survives its restarts; None: the host's name
    claim_idle  entries that another consumer has not touched for so long are taken over
    """

    name = "redis"
    connection_type = RedisConnection

    def __init__(
        self,
        connection: str | RedisConnection = "redis://localhost:6379/0",
        *,
        stream: str,
        group: str = "relaybox",
        consumer: str | None = None,
        start: RedisStart = "all",
        claim_idle: Duration = "1m",
    ) -> None:
        check_given(stream=stream, group=group)
        idle = positive("claim_idle", claim_idle)
        check_choice("start", start, RedisStart)
        super().__init__(idle)
        self._connection = RedisConnection.of(connection)
        self._settings = self._connection.settings()
        self._stream = stream
        self._group = group
        self._consumer = consumer or socket.gethostname()
        self._start = "0" if start == "all" else "$"
        self._idle = max(1, idle // timedelta(milliseconds=1))
        self._longest_block = self._connection.timeout.total_seconds() / 2
        self._client: Any = None
        self._own: str | None = "0"  # how far the pending entries of a former life were read; None: all
        self._next_claim = 0.0
        self._cursor = BEGINNING

    def __repr__(self) -> str:
        return f"RedisStreamSource({str(self._connection)!r}, stream={self._stream!r}, group={self._group!r})"

    # Life

    async def _connect(self) -> None:
        self._client = Redis(**self._settings)
        self._client.response_callbacks.clear()  # replies as the server has them
        try:
            await self._client.execute_command("XGROUP", "CREATE", self._stream, self._group, self._start, "MKSTREAM")
        except FAILURES as error:
            if str(error).startswith("WRONGTYPE"):
                raise ConfigError(f"the key {self._stream!r} at {self._connection} is not a stream") from None
            if not str(error).startswith("BUSYGROUP"):  # it is there already
                raise self._unavailable(reason(error)) from None
        self._start = "0"  # whatever is in a stream whose group has vanished is new to us
        self._own = "0"
        self._next_claim = 0.0
        self._cursor = BEGINNING

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(*FAILURES):
                await client.aclose()

    # Messages

    async def _fetch(self, limit: int, wait: float) -> Sequence[Incoming]:
        if self._own is not None and (pending := await self._pending(limit)):
            return pending
        if claimed := await self._claim(limit):
            return claimed
        until_claim = self._next_claim - asyncio.get_running_loop().time()
        seconds = min(wait, self._longest_block, until_claim)
        block = ("BLOCK", max(1, int(seconds * 1000))) if wait > 0 else ()
        return self._incoming(await self._read(limit, ">", *block))

    async def _pending(self, limit: int) -> list[Incoming]:
        """What this consumer was given before and has not acknowledged. What was trimmed meanwhile is lost."""
        while entries := await self._read(limit, self._own or "0"):
            self._own = entries[-1][0].decode()
            if gone := [entry[0] for entry in entries if entry[1] is None]:
                log.warning("%r: %d entries were trimmed before they were stored", self, len(gone))
                await self._execute("XACK", self._stream, self._group, *gone)
            if found := self._incoming(entries):
                return found
        self._own = None
        return []

    async def _claim(self, limit: int) -> list[Incoming]:
        now = asyncio.get_running_loop().time()
        place = (self._stream, self._group, self._consumer, self._idle)
        found: list[Incoming] = []
        while not found and now >= self._next_claim:
            self._cursor, entries, *_ = await self._execute("XAUTOCLAIM", *place, self._cursor, "COUNT", limit)
            found = self._incoming(entries)
            if self._cursor == BEGINNING:
                self._next_claim = now + self._lease / 2
        return found

    async def _read(self, limit: int, after: str, *block: Any) -> list[Any]:
        reader = ("GROUP", self._group, self._consumer, "COUNT", limit, *block)
        answer = await self._execute("XREADGROUP", *reader, "STREAMS", self._stream, after)
        return list(answer[0][1]) if answer else []

    async def _settle(self, messages: Sequence[Incoming]) -> None:
        if messages:
            await self._execute("XACK", self._stream, self._group, *(message.receipt for message in messages))

    async def _extend(self, messages: Sequence[Incoming]) -> None:
        place = (self._stream, self._group, self._consumer, 0)
        await self._execute("XCLAIM", *place, *(message.receipt for message in messages), "JUSTID")

    async def _give_back(self, messages: Sequence[Incoming]) -> None:
        """Nothing to do: messages stay with this consumer, which reads its own first when it is back."""

    async def _execute(self, *command: Any) -> Any:
        if self._client is None:
            raise self._unavailable("closed")
        try:
            return await self._client.execute_command(*command)
        except FAILURES as error:
            raise self._unavailable(reason(error)) from None

    def _incoming(self, entries: Sequence[Any]) -> list[Incoming]:
        return [self._taken(*entry) for entry in entries if entry is not None and entry[1] is not None]

    def _taken(self, number: bytes, content: list[bytes]) -> Incoming:
        place = f"{self._stream}:{_text(number)}"
        at = content.index(b"data") + 1 if b"data" in content[::2] else None
        body = b"".join(content) if at is None else content[at]
        return taken(
            lambda: self._message(number, place, content), channel=self._stream, place=place, body=body, receipt=number
        )

    def _message(self, number: bytes, place: str, content: list[bytes]) -> Incoming:
        fields = {_text(name): value for name, value in zip(content[::2], content[1::2], strict=True)}
        body = fields.pop("data", None)
        if body is None:
            headers = {name: _text(value) for name, value in fields.items()}
            body, content_type = json.dumps(headers, ensure_ascii=False).encode(), "application/json"
        else:
            content_type = _text(fields.pop("content_type", b""))
            headers = _attributes(fields)
        return Incoming(
            channel=self._stream,
            place=place,
            body=body,
            headers=headers,
            key=_text(fields["key"]) if "key" in fields else None,
            content_type=content_type or None,
            sent_at=moment(int(number.partition(b"-")[0])),  # the server's time, unless the writer chose it
            receipt=number,
        )


def _attributes(fields: Mapping[str, bytes]) -> dict[str, str]:
    """The sink's `attributes`; where somebody else writes, all fields that have no place of their own."""
    with suppress(ValueError):
        found = json.loads(fields.get("attributes", b""))
        if isinstance(found, dict) and all(isinstance(value, str) for value in found.values()):
            return found
    return {name: _text(value) for name, value in fields.items() if name != "key"}


def _text(value: bytes) -> str:
    return value.decode(errors="replace")
