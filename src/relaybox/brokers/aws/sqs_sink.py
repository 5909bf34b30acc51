"""Amazon SQS: SendMessageBatch to standard and FIFO queues.

    SqsSink("sqs://eu-central-1", fifo=True)

The destination is the name of a queue, its URL or its ARN. One that ends in `.fifo` is a FIFO queue: the message group
is the key (the event's id where there is none), the deduplication id is the event's id.
"""

from __future__ import annotations

from typing import Any

from .sink import AwsSink


class SqsSink(AwsSink):
    """Amazon SQS: a destination is a queue, by name or URL."""

    name = "sqs"
    kind = "queue"
    body_field = "MessageBody"

    async def _look_up(self, client: Any, destination: str) -> str:
        return await queue_url(client, destination, self._connection.account)

    async def _request(self, client: Any, address: str, entries: list[dict[str, Any]]) -> Any:
        return await client.send_message_batch(QueueUrl=address, Entries=entries)

    async def _ask(self, client: Any) -> None:
        await client.get_queue_url(QueueName="relaybox-probe")


async def queue_url(client: Any, queue: str, owner: str | None) -> str:
    """The URL of a queue by its name or ARN, asked from SQS; a URL stays as it is."""
    if queue.startswith(("https://", "http://")):
        return queue
    if queue.startswith("arn:"):
        *_, owner, queue = queue.split(":")
    owned = {} if owner is None else {"QueueOwnerAWSAccountId": owner}
    return str((await client.get_queue_url(QueueName=queue, **owned))["QueueUrl"])
