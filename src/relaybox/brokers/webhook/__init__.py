"""Webhooks. Their signatures can be made and verified without the client library of the sink."""

from __future__ import annotations

from typing import Any

from ...errors import InvalidSignature
from .signature import new_secret, parse_secret, sign, verify

__all__ = ["InvalidSignature", "WebhookSink", "new_secret", "parse_secret", "sign", "verify"]


def __getattr__(name: str) -> Any:
    if name == "WebhookSink":
        from .sink import WebhookSink

        return WebhookSink
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
