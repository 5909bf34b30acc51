"""Redis Streams: one script per batch adds its messages and remembers their ids.

    RedisStreamSink("rediss://relay:secret@redis.example:6379/0", dedup_window="10m")

The destination is the name of the stream. An entry has the fields `id`, `type`, `key` (left out when there is none),
`content_type`, `data` (the body, byte for byte) and `attributes` (a JSON object). The set is fixed: no header can take
the place of another field, and Redis stores the names once for many entries.

The script runs without interruption and Redis checks its memory before the first write only, so a batch is never cut in
the middle; what fails for another reason (no stream there, no permission) holds back the later messages of its key.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import RedisClusterException, RedisError

from ...durations import Duration, parse_duration
from ...errors import BrokerUnavailable, Closed, ConfigError, DeliveryError
from ..batches import grouped, parts
from ..connection import Connected
from ..options import check_least
from ..spi import Answer, Features, Message
from .connection import RedisConnection, reason

log = logging.getLogger("relaybox")

PROBE_SECONDS = 1.0  # a connection into nowhere must not keep the next probe waiting
MOST_BYTES = 4 * 1024 * 1024  # of one script call: it stops everybody else's commands while it runs

# ARGV: the window in ms, then for each message its ordering key, its dedup key, the number of arguments of XADD, and
# these. Answers 1 (added), 0 (seen before) or the text of an error.
# Names are no KEYS (but for the one that finds the node of a cluster): a stream the account may not use would fail the
# whole script and not just its own messages.
# The id is remembered after the entry was added: an XADD that fails must not make the next try look like a repetition.
# A repetition renews the window; being a write, it also makes WAIT wait for the entry itself.
SCRIPT = """
local window, at, failed, answers = tonumber(ARGV[1]), 2, {}, {}
while at < #ARGV do
  local key, seen, last, answer = ARGV[at], ARGV[at + 1], at + 2 + ARGV[at + 2], 0
  if failed[key] then
    answer = 'HELD'
  elseif window == 0 or redis.call('EXISTS', seen) == 0 then
    local reply = redis.pcall('XADD', unpack(ARGV, at + 3, last))
    answer = not reply and 'NOSTREAM' or reply.err or 1
  end
  if type(answer) == 'string' then
    failed[key] = key ~= ''
  elseif window > 0 then
    redis.call('SET', seen, 1, 'PX', window)
  end
  answers[#answers + 1] = answer
  at = last + 1
end
return answers
"""

# What a server says while it, or its operator, has to act: no event is to blame.
UNAVAILABLE = {
    "OOM",  # maxmemory is reached, and the policy evicts nothing
    "LOADING",  # its data, after a restart
    "READONLY",  # a replica: the master is elsewhere since a failover
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",  # slots are on their way to another node
    "MISCONF",  # it cannot write its snapshots
    "NOREPLICAS",  # fewer than min-replicas-to-write
    "BUSY",  # with somebody's script
    "NOAUTH",
    "WRONGPASS",
}


class RedisStreamSink(Connected[RedisConnection]):
    """Adds events to streams. The first argument is a URL or a RedisConnection.

    cluster         the URL names nodes of a Redis Cluster
    dedup_window    how long ids are remembered; zero turns dedup off
    maxlen          streams are trimmed to about so many entries, also of what nobody has read yet
    create_streams  off: an event for a stream that is not there fails
    wait_replicas   so many replicas have a batch before it counts as sent
    wait_fsync      the append-only file has it on disk too (WAITAOF, Redis 7.2)
    connections     batches at a time
    namespace       first part of the keys by which ids are remembered
    """

    name = "redis"
    connection_type = RedisConnection

    def __init__(
        self,
        connection: str | RedisConnection = "redis://localhost:6379/0",
        *,
        cluster: bool = False,
        dedup_window: Duration = "10m",
        maxlen: int | None = None,
        create_streams: bool = True,
        wait_replicas: int = 0,
        wait_fsync: bool = False,
        connections: int = 8,
        namespace: str = "relaybox",
    ) -> None:
        self._connection = RedisConnection.of(connection)
        check_least(1, connections=connections, maxlen=maxlen)
        check_least(0, wait_replicas=wait_replicas)
        window = parse_duration(dedup_window, "dedup_window")
        if window < timedelta(0):
            raise ConfigError(f"expected dedup_window to be a duration, or zero for no dedup, got {window}")
        if not namespace or set(namespace) & set("{}"):
            raise ConfigError(f"expected namespace to be a name without braces, got {namespace!r}")
        if cluster and (wait_replicas or wait_fsync):
            raise ConfigError("wait_replicas and wait_fsync do not work with cluster: leave one of them out")
        self._settings = self._connection.settings(cluster=cluster)
        self._cluster = cluster
        self._free = asyncio.Semaphore(connections)
        self._namespace = namespace
        self._window = window // timedelta(milliseconds=1)
        self._add = [] if create_streams else ["NOMKSTREAM"]
        self._add += [] if maxlen is None else ["MAXLEN", "~", str(maxlen)]
        # The server gives up before we do, so that its answer "too few" arrives.
        limit = int(self._connection.timeout.total_seconds() * 800)
        self._wait: tuple[str | int, ...] = ()
        if wait_fsync:
            self._wait = ("WAITAOF", 1, wait_replicas, limit)
        elif wait_replicas:
            self._wait = ("WAIT", wait_replicas, limit)
        self._client: Redis | RedisCluster | None = None
        self.features = Features(
            keyed_order=True,
            dedup=self._window > 0,
            dedup_window=window if self._window > 0 else None,
            # A lost reply repeats a batch: without dedup its last message of a key would come before its first again.
            sequences=self._window > 0 and not cluster,
        )

    # Life

    async def open(self) -> None:
        client = self._client = (RedisCluster if self._cluster else Redis)(**self._settings)
        try:
            await self._try_write()
            if isinstance(client, Redis):
                await self._warn(client)
        except BaseException as error:
            await self.close()
            if "unknown command" in str(error) or "appendonly" in str(error):
                raise ConfigError(f"wait_fsync needs Redis 7.2 with its append-only file: {error}") from None
            raise

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def probe(self) -> None:
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                await self._try_write()
        except TimeoutError:
            raise self._unavailable(f"no answer within {PROBE_SECONDS:g} s") from None

    async def _try_write(self) -> None:
        """A server that is full, a replica or loading would answer a PING."""
        await self._execute("SET", f"{self._namespace}:dedup:probe", 1, "PX", 1)

    async def _warn(self, client: Redis) -> None:
        """Warns of settings under which a server loses what it acknowledged."""
        try:
            info = await client.info()
        except RedisError:
            return  # not allowed to ask; a lost connection will show
        if info.get("maxmemory") and str(info.get("maxmemory_policy")).startswith("allkeys"):
            log.warning("%r evicts whole streams when its memory is full: %s", self, info["maxmemory_policy"])
        if info.get("aof_enabled") == 0:
            log.warning("%r has no append-only file: a crash loses events that it acknowledged", self)

    # Publishing

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        answers: dict[int, Answer] = {}
        failed: set[str | None] = set()
        rest: DeliveryError = _held()
        for part in self._parts(messages):
            due = [number for number in part if messages[number].key not in failed]
            if not due:
                continue
            try:
                replies = await self._send([messages[number] for number in due])
            except BrokerUnavailable as error:
                if not self._cluster:
                    rest = error
                    break
                replies = [error] * len(due)  # of one node: the streams of the others go on
            answers.update(zip(due, replies, strict=True))
            failed.update(messages[number].key for number in due if answers[number] is not None)
            failed.discard(None)
        return [answers.get(number, rest) for number in range(len(messages))]

    def _parts(self, messages: Sequence[Message]) -> Iterator[list[int]]:
        """What goes into one script: not too many bytes, and in a cluster one stream, because it lives on one node."""
        numbers = range(len(messages))
        streams = grouped(numbers, lambda n: messages[n].destination).values() if self._cluster else [numbers]
        for stream in streams:
            yield from parts(stream, lambda n: len(messages[n].body), MOST_BYTES)

    async def _send(self, messages: Sequence[Message]) -> list[Answer]:
        arguments: list[str | bytes | int] = [self._window]
        for message in messages:
            command = [message.destination, *self._add, "*", *_fields(message)]
            arguments += [message.key or "", self._dedup_key(message), len(command), *command]
        keys = [messages[0].destination] if self._cluster else []
        async with self._free:
            replies = await self._execute("EVAL", SCRIPT, len(keys), *keys, *arguments)
        answers: list[Answer] = [
            _answer(reply.decode(errors="replace"), message.destination) if isinstance(reply, bytes) else None
            for message, reply in zip(messages, replies, strict=True)
        ]
        if any(isinstance(answer, BrokerUnavailable) for answer in answers):
            await self._drop_idle()
        return answers

    def _dedup_key(self, message: Message) -> str:
        """With the hash tag of the stream, so that a cluster keeps both on one node."""
        stream = message.destination
        tagged = stream.partition("{")[2].find("}") > 0
        return f"{self._namespace}:dedup:{stream if tagged else f'{{{stream}}}'}:{message.id}"

    async def _execute(self, *command: Any) -> Any:
        """The reply, when as many servers have the write as asked for. Raises BrokerUnavailable for everything else."""
        client = self._client
        if client is None:
            raise Closed(f"{self!r} is not open")
        try:
            if not self._wait or isinstance(client, RedisCluster):
                return await client.execute_command(*command)
            pipeline = client.pipeline(transaction=False)
            pipeline.execute_command(*command)
            pipeline.execute_command(*self._wait)
            reply, copies = await pipeline.execute(raise_on_error=False)
        except (RedisError, RedisClusterException, OSError, TimeoutError) as error:
            reply = error
        if isinstance(reply, Exception):
            await self._drop_idle()
            raise self._unavailable(reason(reply)) from None
        if (missing := self._missing(copies)) is not None:
            raise self._unavailable(missing)
        return reply

    def _missing(self, copies: Any) -> str | None:
        """What a reply to WAIT (replicas) or WAITAOF (local, replicas) falls short of."""
        if isinstance(copies, Exception):
            return reason(copies)
        has = copies if isinstance(copies, list) else [copies]
        if all(got >= wanted for got, wanted in zip(has, self._wait[1:-1], strict=True)):
            return None
        return f"{self._wait[0]} asked for {self._wait[1:-1]} copies, got {tuple(has)}"

    async def _drop_idle(self) -> None:
        """After a failover the name leads to another server; connections to the old one would go on refusing."""
        if isinstance(self._client, Redis):
            with suppress(RedisError, OSError):
                await self._client.connection_pool.disconnect(inuse_connections=False)


def _fields(message: Message) -> Iterator[str | bytes]:
    yield from ("id", message.id, "type", message.event.type)
    if message.key is not None:
        yield from ("key", message.key)
    yield from ("content_type", message.content_type, "data", message.body)
    yield from ("attributes", json.dumps(dict(message.attributes), ensure_ascii=False, separators=(",", ":")))


def _answer(text: str, stream: str) -> DeliveryError:
    """Why XADD refused one message."""
    code = text.partition(" ")[0]
    if code in UNAVAILABLE:
        return BrokerUnavailable(f"Redis refuses to write: {text}")
    if code == "NOPERM" or "user executing the script" in text or "ACL failure in script" in text:  # from 7.2 on
        return BrokerUnavailable(f"the account may not add to the stream {stream!r}: {text}", destination=stream)
    if code == "HELD":
        return _held()
    if code == "NOSTREAM":
        return DeliveryError(f"there is no stream {stream!r}, and create_streams is off")
    if code == "WRONGTYPE":
        return DeliveryError(f"the key {stream!r} is not a stream; use another destination or remove it")
    return DeliveryError(f"Redis refused to add to {stream!r}: {text}")


def _held() -> DeliveryError:
    return DeliveryError("held back: an earlier message of its key failed in this batch")
