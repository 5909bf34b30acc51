"""What the sinks for SQS and SNS share: batches, and what an error means.

A request takes ten messages; a publish of `features.batch` messages is one request on every connection.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, ClassVar

from botocore.exceptions import ClientError, ParamValidationError

from ...durations import Duration
from ...errors import BrokerUnavailable, Closed, DeliveryError, Reject
from ..batches import grouped, parts
from ..connection import Connected
from ..options import check_range, positive
from ..spi import Answer, Features, Message
from .connection import FAILURES, MISSING, AwsConnection
from .messages import Encoded, encode, token

PROBE_SECONDS = 2.0
OPEN_SECONDS = 10.0  # the first request also loads what requests need
PER_REQUEST = 10
LONGEST_TEXT = 300
DEDUP_WINDOW = timedelta(minutes=5)
THROTTLE_PAUSE = timedelta(seconds=1)  # AWS names none


def _codes(names: str) -> frozenset[str]:
    return frozenset(names.split())


THROTTLED = _codes(
    "KMSThrottling KmsThrottled OverLimit RequestLimitExceeded RequestThrottled SlowDown Throttled ThrottledException "
    "Throttling ThrottlingException TooManyRequestsException"
)
# The account as such is refused. What is refused for one queue or topic (access, its KMS key) concerns that one alone.
UNKNOWN_ACCOUNT = _codes(
    "AuthFailure ExpiredToken ExpiredTokenException IncompleteSignature InvalidClientTokenId InvalidSecurity "
    "MissingAuthenticationToken NotAuthorized OptInRequired RequestExpired SignatureDoesNotMatch "
    "UnrecognizedClientException"
)
DENIED = _codes("AccessDenied AccessDeniedException AuthorizationError AuthorizationErrorException")
THE_MESSAGE = _codes(
    "BatchRequestTooLong InvalidMessageContents InvalidParameter InvalidParameterException InvalidParameterValue "
    "InvalidParameterValueException MessageTooLong ValidationError ValidationException"
)


class AwsSink(Connected[AwsConnection], ABC):
    """What SqsSink and SnsSink share. The first argument is a URL or an AwsConnection.

    fifo          every destination is FIFO: order per key and dedup by the event's id are declared, others refused
    max_bytes     of a message with its attributes, and of a request; AWS takes 256 KiB, SQS up to 1 MiB where allowed
    connections   requests at a time
    read_timeout  of one answer
    """

    name: ClassVar[str]  # of the service too
    kind: ClassVar[str]  # of a destination
    body_field: ClassVar[str]
    connection_type = AwsConnection

    def __init__(
        self,
        connection: str | AwsConnection = "sqs://",
        *,
        fifo: bool = False,
        max_bytes: int = 262_144,
        connections: int = 10,
        read_timeout: Duration = "8s",
    ) -> None:
        check_range("connections", connections, 1, 100)
        check_range("max_bytes", max_bytes, 1024, 1_048_576)
        self._connection = AwsConnection.of(connection)
        self._connections = connections
        self._read_timeout = positive("read_timeout", read_timeout)
        self._stack = AsyncExitStack()
        self._fifo = fifo
        self._max_bytes = max_bytes
        self._free = asyncio.Semaphore(connections)
        self._client: Any = None
        self._addresses: dict[str, str] = {}
        self.features = Features(
            keyed_order=fifo,
            dedup=fifo,
            dedup_window=DEDUP_WINDOW if fifo else None,
            batch=PER_REQUEST * connections,
            max_bytes=max_bytes,
        )

    # Of each service

    @abstractmethod
    async def _look_up(self, client: Any, destination: str) -> str:
        """URL of the queue or ARN of the topic."""

    @abstractmethod
    async def _request(self, client: Any, address: str, entries: list[dict[str, Any]]) -> Any: ...

    @abstractmethod
    async def _ask(self, client: Any) -> None:
        """The cheapest question that needs credentials."""

    # Life

    async def open(self) -> None:
        try:
            self._client = await self._connection.open(
                self.name, self._stack, connections=self._connections, read_timeout=self._read_timeout
            )
        except FAILURES as error:
            raise self._answer(error, "") from None
        try:
            await self._probe(OPEN_SECONDS)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self._client = None
        await self._stack.aclose()

    async def probe(self) -> None:
        await self._probe(PROBE_SECONDS)

    async def _probe(self, seconds: float) -> None:
        """Any answer will do, but one that does not know the account: a queue may be missing or not ours to see."""
        try:
            async with asyncio.timeout(seconds):
                await self._ask(self._open_client())
        except FAILURES as error:
            answer = self._answer(error, "")
            if isinstance(answer, BrokerUnavailable) and answer.destination is None:
                raise answer from None

    def _open_client(self) -> Any:
        if self._client is None:
            raise Closed(f"{self!r} is not open")
        return self._client

    # Publishing

    async def publish(self, messages: Sequence[Message]) -> Sequence[Answer]:
        client = self._open_client()
        answers: list[Answer] = [self._unavailable("no answer")] * len(messages)
        numbers = grouped(range(len(messages)), lambda number: messages[number].destination)
        await asyncio.gather(*(self._deliver(client, messages, some, answers) for some in numbers.values()))
        return answers

    async def _deliver(
        self, client: Any, messages: Sequence[Message], numbers: Sequence[int], answers: list[Answer]
    ) -> None:
        """What is for one destination."""
        destination = messages[numbers[0]].destination
        try:
            address = await self._address(client, destination)
        except (*FAILURES, DeliveryError) as error:
            answer = self._answer(error, destination)
            for number in numbers:
                answers[number] = DeliveryError(str(answer)) if isinstance(answer, Reject) else answer
            return
        encoded = {number: encode(messages[number]) for number in numbers}
        for number, one in encoded.items():
            if one.size > self._max_bytes:
                text = f"the message is {one.size:,} bytes as {self.name} counts, the limit is {self._max_bytes:,}"
                answers[number] = Reject(text)
        fitting = [number for number in numbers if encoded[number].size <= self._max_bytes]
        batches = parts(fitting, lambda number: encoded[number].size, self._max_bytes, PER_REQUEST)
        requests = [[self._entry(number, messages[number], encoded[number]) for number in batch] for batch in batches]
        await asyncio.gather(*(self._send(client, destination, address, request, answers) for request in requests))

    async def _address(self, client: Any, destination: str) -> str:
        if self._fifo and not destination.endswith(".fifo"):
            raise DeliveryError(f"{destination!r} does not end in .fifo, and this sink is for FIFO destinations")
        if destination not in self._addresses:
            self._addresses[destination] = await self._look_up(client, destination)
        return self._addresses[destination]

    def _entry(self, number: int, message: Message, encoded: Encoded) -> dict[str, Any]:
        entry = {"Id": str(number), self.body_field: encoded.body, "MessageAttributes": encoded.attributes}
        if message.destination.endswith(".fifo"):
            entry["MessageGroupId"] = token(message.key if message.key is not None else message.id)
            entry["MessageDeduplicationId"] = token(message.id)
        return entry

    async def _send(
        self, client: Any, destination: str, address: str, batch: list[dict[str, Any]], answers: list[Answer]
    ) -> None:
        try:
            async with self._free:
                response = await self._request(client, address, batch)
        except FAILURES as error:
            answer = self._answer(error, destination)
            if isinstance(answer, Reject) and len(batch) > 1:  # one of them: find out which
                for entry in batch:
                    await self._send(client, destination, address, [entry], answers)
                return
            for entry in batch:
                answers[int(entry["Id"])] = answer
            return
        for entry in response.get("Successful", ()):
            answers[int(entry["Id"])] = None
        for entry in response.get("Failed", ()):
            code, text = str(entry.get("Code")), str(entry.get("Message"))
            answers[int(entry["Id"])] = self._meaning(code, text, destination, our_fault=bool(entry.get("SenderFault")))

    # What an error means

    def _answer(self, error: BaseException, destination: str) -> DeliveryError:
        if isinstance(error, DeliveryError):
            return error
        if isinstance(error, ParamValidationError):
            return Reject("botocore refuses a parameter of the request")  # its own text shows the values
        if not isinstance(error, ClientError):  # no connection, no answer, no credentials
            reason = f"{type(error).__name__}: {error}" if str(error) else "no answer in time"
            return self._unavailable(reason[:LONGEST_TEXT])
        said, status = error.response["Error"], error.response["ResponseMetadata"]["HTTPStatusCode"]
        return self._meaning(said.get("Code", ""), said.get("Message", ""), destination, status=status)

    def _meaning(
        self, code: str, text: str, destination: str, *, status: int = 200, our_fault: bool = False
    ) -> DeliveryError:
        short = code.rpartition(".")[2]  # without AWS.SimpleQueueService or KMS
        said = f"{self!r}: {code}: {text[:LONGEST_TEXT]}"
        if short in THROTTLED or status == 429:
            return BrokerUnavailable(said, retry_after=THROTTLE_PAUSE)
        if short in DENIED or code.lower().startswith("kms"):
            return BrokerUnavailable(f"{said} ({destination})", destination=destination)
        if short in MISSING:
            self._addresses.pop(destination, None)
            return DeliveryError(f"there is no {self.kind} {destination!r}: {code}")
        if short in UNKNOWN_ACCOUNT or status in (401, 403) or status >= 500:
            return BrokerUnavailable(said)
        if (our_fault or short in THE_MESSAGE) and "TopicArn" not in text:  # a wrong ARN is not the message's fault
            return Reject(said)
        return DeliveryError(said)
