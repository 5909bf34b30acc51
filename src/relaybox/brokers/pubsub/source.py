"""Google Pub/Sub: pulls from one subscription.

    PubSubSource("pubsub://shop-prod?endpoint=europe-west3-pubsub.googleapis.com", subscription="orders-billing")

A subscription with message ordering keeps the order of a key, also when messages come again: then everything behind
them does. Without it Pub/Sub promises no order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, timedelta
from typing import Any

import grpc
from grpc import StatusCode

from ...durations import Duration, parse_duration
from ...errors import BrokerUnavailable, ConfigError
from ..connection import Connected
from ..door import taken
from ..leased import LeasedSource
from ..options import check_given
from ..spi import Incoming, take_content_type
from .connection import LONGEST_TEXT, PubSubChannel, PubSubConnection

PULL_SECONDS = 30.0  # a pull that is given up earlier might have taken messages along
PER_REQUEST = 1000
SUBSCRIPTION = re.compile(r"projects/[^/]+/subscriptions/[A-Za-z][\w.~+%-]{2,254}", re.ASCII)


class PubSubSource(Connected[PubSubConnection], LeasedSource):
    """Reads one subscription. The first argument is a URL or a PubSubConnection.

    subscription  a name in the project, or `projects/…/subscriptions/…`
    ack_deadline  after so long without a word from us a message comes again
    """

    name = "pubsub"
    connection_type = PubSubConnection

    def __init__(
        self,
        connection: str | PubSubConnection,
        *,
        subscription: str,
        ack_deadline: Duration = "1m",
    ) -> None:
        check_given(subscription=subscription)
        deadline = parse_duration(ack_deadline, "ack_deadline")
        if not timedelta(seconds=1) <= deadline <= timedelta(minutes=10):
            raise ConfigError(f"expected ack_deadline to be one second to ten minutes, got {deadline}")
        connection = PubSubConnection.of(connection)
        full = subscription if "/" in subscription else f"projects/{connection.project}/subscriptions/{subscription}"
        if not SUBSCRIPTION.fullmatch(full):
            raise ConfigError(f"expected a subscription's name or projects/…/subscriptions/…, got {subscription!r}")
        super().__init__(deadline)
        self._channel = PubSubChannel(connection)
        self._subscription = full
        self._name = full.rpartition("/")[2]

    def __repr__(self) -> str:
        return f"PubSubSource({self._subscription!r})"

    # Life

    async def _connect(self) -> None:
        try:
            await self._channel.open()
            await self._call("GetSubscription")
        except ConnectionError as error:
            raise self._unavailable(error) from None
        except _Failed as error:
            if error.code is StatusCode.NOT_FOUND:
                raise ConfigError(f"there is no subscription {self._subscription!r}") from None
            if error.code is not StatusCode.PERMISSION_DENIED:  # who may only read need not look
                raise

    async def _disconnect(self) -> None:
        await self._channel.close()

    # Messages

    async def _fetch(self, limit: int, wait: float) -> Sequence[Incoming]:
        try:
            answer = await self._call("Pull", PULL_SECONDS, max_messages=min(limit, PER_REQUEST))
        except _Failed as error:
            if error.code is StatusCode.DEADLINE_EXCEEDED:
                return []
            raise
        messages = [self._incoming(each) for each in answer.received_messages]
        if messages:
            await self._extend(messages)  # the subscription's own deadline may be shorter
        return messages

    async def _settle(self, messages: Sequence[Incoming]) -> None:
        await self._each("Acknowledge", messages)

    async def _extend(self, messages: Sequence[Incoming]) -> None:
        await self._each("ModifyAckDeadline", messages, ack_deadline_seconds=int(self._lease))

    async def _give_back(self, messages: Sequence[Incoming]) -> None:
        await self._each("ModifyAckDeadline", messages, ack_deadline_seconds=0)

    async def _each(self, method: str, messages: Sequence[Incoming], **fields: int) -> None:
        for start in range(0, len(messages), PER_REQUEST):
            receipts = [message.receipt for message in messages[start : start + PER_REQUEST]]
            await self._call(method, ack_ids=receipts, **fields)

    async def _call(self, method: str, seconds: float | None = None, **fields: Any) -> Any:
        try:
            return await self._channel.call(f"Subscriber/{method}", seconds, subscription=self._subscription, **fields)
        except grpc.aio.AioRpcError as error:
            raise _Failed(self, error) from None
        except ConnectionError as error:
            raise self._unavailable(error) from None

    def _incoming(self, received: Any) -> Incoming:
        message, receipt = received.message, received.ack_id
        place = f"{self._name}:{message.message_id}"

        def read() -> Incoming:
            headers = dict(message.attributes)
            return Incoming(
                channel=self._name,
                place=place,
                body=message.data,
                headers=headers,
                content_type=take_content_type(headers),
                key=message.ordering_key or None,
                sent_at=message.publish_time.ToDatetime(UTC),
                receipt=receipt,
            )

        return taken(read, channel=self._name, place=place, body=message.data, receipt=receipt)


class _Failed(BrokerUnavailable):
    def __init__(self, source: PubSubSource, error: grpc.aio.AioRpcError) -> None:
        super().__init__(f"{source!r}: {error.code().name}: {str(error.details())[:LONGEST_TEXT]}")
        self.code = error.code()
