"""Amazon SNS: PublishBatch to standard and FIFO topics.

    SnsSink("sns://eu-central-1?account=123456789012")

The destination is the ARN of a topic, or its name in `account`. One that ends in `.fifo` is a FIFO topic: the message
group is the key (the event's id where there is none), the deduplication id is the event's id.
"""

from __future__ import annotations

from typing import Any

from ...errors import DeliveryError
from .sink import AwsSink


class SnsSink(AwsSink):
    """Amazon SNS: a destination is a topic, by name or ARN."""

    name = "sns"
    kind = "topic"
    body_field = "Message"

    async def _look_up(self, client: Any, destination: str) -> str:
        if destination.startswith("arn:"):
            return destination
        if self._connection.account is None:
            raise DeliveryError(f"expected the ARN of a topic, got {destination!r}; for names set the option account")
        return self._arn(client, self._connection.account, destination)

    async def _request(self, client: Any, address: str, entries: list[dict[str, Any]]) -> Any:
        return await client.publish_batch(TopicArn=address, PublishBatchRequestEntries=entries)

    async def _ask(self, client: Any) -> None:
        topic = self._arn(client, self._connection.account or "0" * 12, "relaybox-probe")
        await client.get_topic_attributes(TopicArn=topic)

    def _arn(self, client: Any, account: str, topic: str) -> str:
        return f"arn:{client.meta.partition}:sns:{client.meta.region_name}:{account}:{topic}"
