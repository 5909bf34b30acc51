"""Amazon SQS: long polls of one queue, standard or FIFO, also of one that an SNS topic fills.

    SqsSource("sqs://eu-central-1", queue="orders.fifo")

A FIFO queue gives out nothing more of a message group while one of its messages is not deleted, so the order of a group
survives crashes. The group is the key. What SNS wrapped in its JSON envelope is unwrapped.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from botocore.exceptions import ClientError, ParamValidationError

from ...durations import Duration, parse_duration
from ...errors import ConfigError
from ..connection import Connected
from ..door import taken
from ..leased import LeasedSource
from ..options import check_given
from ..spi import Incoming, moment
from .connection import FAILURES, MISSING, AwsConnection
from .messages import decode
from .sqs_sink import queue_url

PER_REQUEST = 10
CONNECTIONS = 10
LONGEST_POLL = 20  # seconds
LONGEST_TEXT = 300
DELETE_TRIES = 3
MOST_VISIBILITY = timedelta(hours=12)
SHORTEST_READ = timedelta(seconds=2)


class SqsSource(Connected[AwsConnection], LeasedSource):
    """Reads one queue. The first argument is a URL or an AwsConnection.

    queue         a name, a URL or an ARN
    visibility    after so long without a word from us a message comes again
    unwrap_sns    off: a body that looks like SNS's envelope is left as it is
    read_timeout  of one answer; a long poll takes half of it
    """

    name = "sqs"
    connection_type = AwsConnection

    def __init__(
        self,
        connection: str | AwsConnection = "sqs://",
        *,
        queue: str,
        visibility: Duration = "1m",
        unwrap_sns: bool = True,
        read_timeout: Duration = "30s",
    ) -> None:
        check_given(queue=queue)
        hidden, patience = parse_duration(visibility, "visibility"), parse_duration(read_timeout, "read_timeout")
        if not timedelta(seconds=1) <= hidden <= MOST_VISIBILITY:
            raise ConfigError(f"expected visibility to be one second to 12 hours, got {hidden}")
        if patience < SHORTEST_READ:
            raise ConfigError(f"expected read_timeout to be at least two seconds, for long polls, got {patience}")
        super().__init__(hidden)
        self._connection = AwsConnection.of(connection)
        self._read_timeout = patience
        self._stack = AsyncExitStack()
        self._queue = queue
        self._unwrap = unwrap_sns
        self._visibility = math.ceil(self._lease)
        self._longest_poll = min(LONGEST_POLL, int(patience.total_seconds() / 2))
        self._client: Any = None
        self._address = ""

    def __repr__(self) -> str:
        return f"SqsSource({str(self._connection)!r}, queue={self._queue!r})"

    # Life

    async def _connect(self) -> None:
        try:
            self._client = await self._connection.open(
                self.name, self._stack, connections=CONNECTIONS, read_timeout=self._read_timeout
            )
            self._address = await queue_url(self._client, self._queue, self._connection.account)
            await self._client.get_queue_attributes(QueueUrl=self._address, AttributeNames=["QueueArn"])
        except FAILURES as error:
            if isinstance(error, ClientError) and error.response["Error"].get("Code", "").rpartition(".")[2] in MISSING:
                raise ConfigError(f"there is no queue {self._queue!r} at {self._connection}") from None
            raise self._unavailable(_reason(error)) from None

    async def _disconnect(self) -> None:
        self._client = None
        await self._stack.aclose()

    # Messages

    async def _fetch(self, limit: int, wait: float) -> Sequence[Incoming]:
        """A long poll for the first ten; if there are ten there may be more, which nobody waits for."""
        poll = min(math.ceil(wait), self._longest_poll)
        messages = await self._receive(min(limit, PER_REQUEST), poll)
        while PER_REQUEST <= len(messages) < limit:
            rest = range(len(messages), limit, PER_REQUEST)[:CONNECTIONS]
            sizes = [min(PER_REQUEST, limit - start) for start in rest]
            parts = await asyncio.gather(*(self._receive(size, 0) for size in sizes), return_exceptions=True)
            more = [message for part in parts if not isinstance(part, BaseException) for message in part]
            messages += more
            if len(more) < sum(sizes):
                break
        return messages

    async def _receive(self, limit: int, poll: int) -> list[Incoming]:
        answer = await self._call(
            "receive_message",
            MaxNumberOfMessages=limit,
            WaitTimeSeconds=poll,
            VisibilityTimeout=self._visibility,
            MessageAttributeNames=["All"],
            AttributeNames=["SentTimestamp", "MessageGroupId"],
        )
        return [self._incoming(message) for message in answer.get("Messages", ())]

    async def _settle(self, messages: Sequence[Incoming]) -> None:
        rest: Sequence[Incoming] = messages
        for _ in range(DELETE_TRIES):
            rest = await self._change("delete_message_batch", rest)
            if not rest:
                return
        raise self._unavailable(f"{len(rest)} of {len(messages)} messages could not be deleted")

    async def _extend(self, messages: Sequence[Incoming]) -> None:
        await self._change("change_message_visibility_batch", messages, VisibilityTimeout=self._visibility)

    async def _give_back(self, messages: Sequence[Incoming]) -> None:
        await self._change("change_message_visibility_batch", messages, VisibilityTimeout=0)

    async def _change(self, method: str, messages: Sequence[Incoming], **settings: int) -> list[Incoming]:
        """Returns those to try again. A receipt that is no longer valid is no failure: that message comes again."""

        async def some(part: Sequence[Incoming]) -> list[Incoming]:
            entries = [{"Id": str(n), "ReceiptHandle": m.receipt, **settings} for n, m in enumerate(part)]
            failed = (await self._call(method, Entries=entries)).get("Failed", ())
            return [part[int(entry["Id"])] for entry in failed if not entry.get("SenderFault")]

        parts = [messages[start : start + PER_REQUEST] for start in range(0, len(messages), PER_REQUEST)]
        return [message for failed in await asyncio.gather(*map(some, parts)) for message in failed]

    async def _call(self, method: str, **arguments: Any) -> Any:
        if self._client is None:
            raise self._unavailable("closed")
        try:
            return await getattr(self._client, method)(QueueUrl=self._address, **arguments)
        except FAILURES as error:
            raise self._unavailable(_reason(error)) from None

    def _incoming(self, message: Mapping[str, Any]) -> Incoming:
        body = message["Body"].encode(errors="replace")
        about = {"channel": self._queue, "place": message["MessageId"], "receipt": message["ReceiptHandle"]}
        return taken(lambda: self._message(message), body=body, **about)

    def _message(self, message: Mapping[str, Any]) -> Incoming:
        given, text = None, message["Body"]
        values = {name: _text(value) for name, value in message.get("MessageAttributes", {}).items()}
        if self._unwrap and (wrapped := _unwrapped(text)) is not None:
            given, text, values = wrapped
        content = decode(text, values)
        about = message.get("Attributes", {})
        return Incoming(
            channel=self._queue,
            place=message["MessageId"],
            id=given,
            body=content.body,
            headers=content.headers,
            key=about.get("MessageGroupId"),
            content_type=content.content_type,
            sent_at=moment(int(about["SentTimestamp"])) if "SentTimestamp" in about else None,
            receipt=message["ReceiptHandle"],
        )


def _reason(error: Exception) -> str:
    if isinstance(error, ParamValidationError):
        return "botocore refuses a parameter"  # its own text shows the values
    return f"{type(error).__name__}: {str(error)[:LONGEST_TEXT]}"


def _text(value: Mapping[str, Any]) -> str:
    return str(value["StringValue"]) if "StringValue" in value else base64.b64encode(value["BinaryValue"]).decode()


def _unwrapped(text: str) -> tuple[str, str, dict[str, str]] | None:
    """Id, message and attributes of what SNS sends without raw message delivery; None: it is something else. The id is
    that of the publish: it is the same when SNS delivers twice."""
    if not text.startswith("{") or '"Notification"' not in text:
        return None
    try:
        envelope = json.loads(text)
        if envelope["Type"] != "Notification" or not envelope["TopicArn"].startswith("arn:"):
            return None
        attributes = envelope.get("MessageAttributes", {})
        values = {name: str(value["Value"]) for name, value in attributes.items()}
        return str(envelope["MessageId"]), str(envelope["Message"]), values
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
