"""Google Pub/Sub: pulls from one subscription.

    PubSubSource("shop-prod", subscription="orders-billing", endpoint="europe-west3-pubsub.googleapis.com")

A subscription with message ordering keeps the order of a key, also when messages come again: then everything behind
them does. Without it Pub/Sub promises no order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any, Self

from ...errors import BrokerUnavailable, ConfigError, MissingExtra
from ..leased import LeasedSource, check_given
from ..options import split_url, typed
from ..spi import Incoming
from .connection import HOST, PubSubConnection

try:
    import grpc
    from google.auth.credentials import Credentials
    from google.protobuf.empty_pb2 import Empty
    from google.pubsub_v1 import types
    from grpc import StatusCode
except ModuleNotFoundError as error:
    raise MissingExtra("google-cloud-pubsub", "pubsub") from error

PULL_SECONDS = 30.0  # a pull that is given up earlier might have taken messages along
PER_REQUEST = 1000
LONGEST_TEXT = 300
SUBSCRIPTION = re.compile(r"projects/[^/]+/subscriptions/[A-Za-z][\w.~+%-]{2,254}", re.ASCII)

PullRequest: Any = types.PullRequest.pb()
PullResponse: Any = types.PullResponse.pb()
AcknowledgeRequest: Any = types.AcknowledgeRequest.pb()
ModifyAckDeadlineRequest: Any = types.ModifyAckDeadlineRequest.pb()
GetSubscriptionRequest: Any = types.GetSubscriptionRequest.pb()
Subscription: Any = types.Subscription.pb()


class PubSubSource(LeasedSource):
    """`subscription` is a name in the project, or `projects/…/subscriptions/…`. Options of the connection are those of
    the sink.

    ack_deadline  after so long without a word from us a message comes again
    """

    name = "pubsub"

    def __init__(
        self,
        project: str,
        *,
        subscription: str,
        ack_deadline: timedelta = timedelta(seconds=60),
        endpoint: str = HOST,
        emulator_host: str | None = None,
        credentials: Credentials | None = None,
        credentials_file: Path | None = None,
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
        timeout: timedelta = timedelta(seconds=8),
    ) -> None:
        check_given(subscription=subscription)
        if not timedelta(seconds=1) <= ack_deadline <= timedelta(minutes=10):
            raise ConfigError(f"expected ack_deadline to be one second to ten minutes, got {ack_deadline}")
        full = subscription if "/" in subscription else f"projects/{project}/subscriptions/{subscription}"
        if not SUBSCRIPTION.fullmatch(full):
            raise ConfigError(f"expected a subscription's name or projects/…/subscriptions/…, got {subscription!r}")
        super().__init__(ack_deadline)
        self._connection = PubSubConnection(
            project,
            endpoint=endpoint,
            emulator_host=emulator_host,
            credentials=credentials,
            credentials_file=credentials_file,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
            timeout=timeout,
        )
        self._subscription = full
        self._channel = full.rpartition("/")[2]
        self._timeout = timeout.total_seconds()

    @classmethod
    def from_url(cls, url: str, options: Mapping[str, Any]) -> Self:
        parts, options = split_url(url, options)
        if parts.scheme != "pubsub" or not parts.netloc or parts.path.strip("/") or "@" in parts.netloc:
            raise ConfigError("expected pubsub://project?subscription=…")
        return cls(parts.netloc, **{"subscription": "", **typed(cls, options, taken={"project"})})

    def __repr__(self) -> str:
        return f"PubSubSource({self._subscription!r})"

    # Life

    async def _connect(self) -> None:
        await self._disconnect()
        try:
            await self._connection.open()
            await self._call("GetSubscription", GetSubscriptionRequest, Subscription)
        except ConnectionError as error:
            raise BrokerUnavailable(f"{self!r}: {error}") from None
        except _Failed as error:
            if error.code is StatusCode.NOT_FOUND:
                raise ConfigError(f"there is no subscription {self._subscription!r}") from None
            if error.code is not StatusCode.PERMISSION_DENIED:  # who may only read need not look
                raise

    async def _disconnect(self) -> None:
        await self._connection.close()

    # Messages

    async def _fetch(self, limit: int, wait: float) -> Sequence[Incoming]:
        try:
            answer = await self._call(
                "Pull", PullRequest, PullResponse, PULL_SECONDS, max_messages=min(limit, PER_REQUEST)
            )
        except _Failed as error:
            if error.code is StatusCode.DEADLINE_EXCEEDED:
                return []
            raise
        messages = [self._incoming(each) for each in answer.received_messages]
        if messages:
            await self._extend(messages)  # the subscription's own deadline may be shorter
        return messages

    async def _settle(self, messages: Sequence[Incoming]) -> None:
        await self._each("Acknowledge", AcknowledgeRequest, messages)

    async def _extend(self, messages: Sequence[Incoming]) -> None:
        await self._each("ModifyAckDeadline", ModifyAckDeadlineRequest, messages, ack_deadline_seconds=int(self._lease))

    async def _give_back(self, messages: Sequence[Incoming]) -> None:
        await self._each("ModifyAckDeadline", ModifyAckDeadlineRequest, messages, ack_deadline_seconds=0)

    async def _each(self, method: str, request: Any, messages: Sequence[Incoming], **fields: int) -> None:
        for start in range(0, len(messages), PER_REQUEST):
            receipts = [message.receipt for message in messages[start : start + PER_REQUEST]]
            await self._call(method, request, Empty, ack_ids=receipts, **fields)

    async def _call(self, method: str, request: Any, response: Any, seconds: float | None = None, **fields: Any) -> Any:
        name = self._subscription
        try:
            return await self._connection.call(
                "Subscriber",
                method,
                request(subscription=name, **fields),
                response,
                self._timeout if seconds is None else seconds,
                subscription=name,
            )
        except grpc.aio.AioRpcError as error:
            raise _Failed(self, error) from None
        except ConnectionError as error:
            raise BrokerUnavailable(f"{self!r}: {error}") from None

    def _incoming(self, received: Any) -> Incoming:
        message = received.message
        headers = dict(message.attributes)
        return Incoming(
            channel=self._channel,
            place=f"{self._channel}:{message.message_id}",
            body=message.data,
            headers=headers,
            content_type=headers.pop("content-type", None),
            key=message.ordering_key or None,
            sent_at=message.publish_time.ToDatetime(UTC),
            receipt=received.ack_id,
        )


class _Failed(BrokerUnavailable):
    def __init__(self, source: PubSubSource, error: grpc.aio.AioRpcError) -> None:
        super().__init__(f"{source!r}: {error.code().name}: {str(error.details())[:LONGEST_TEXT]}")
        self.code = error.code()
