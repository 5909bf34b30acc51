"""Webhooks. Their signatures can be made and verified without the client library of the sink."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...later import later
from .signature import new_key_pair, new_secret, parse_secret, sign, verify

if TYPE_CHECKING:
    from ...ingest.webhook import WebhookReceiver
    from .sink import Endpoint, WebhookSink
else:  # hidden from type checkers, to which a module with __getattr__ has every name
    __getattr__ = later(
        __name__,
        {
            "WebhookReceiver": "ingest.webhook",
            **dict.fromkeys(("Endpoint", "WebhookSink"), "brokers.webhook.sink"),
        },
    )

__all__ = ["Endpoint", "WebhookReceiver", "WebhookSink", "new_key_pair", "new_secret", "parse_secret", "sign", "verify"]
