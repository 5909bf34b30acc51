"""One contract, and whether an event keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from ..errors import ContractViolation
from ..event import Event
from .models import Model

VERSION_HEADER: Final = "event-version"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Contract:
    """What events of one type and version have in common. Made by `Contracts.add`."""

    type: str
    version: int
    to: str  # the destination: topic, queue, subject …
    aggregate_type: str
    content_type: str
    is_json: bool
    key_required: bool
    check_payload: bool  # False: null is still refused, but the payload is not decoded
    model: Model = field(repr=False)

    @property
    def name(self) -> str:
        """Type and version, for messages."""
        return f"{self.type}.v{self.version}"

    def check(self, event: Event) -> None:
        """ContractViolation unless the event keeps the contract."""
        if event.aggregate_type != self.aggregate_type:
            text = f"expected aggregate type {self.aggregate_type!r}, got {event.aggregate_type!r}"
            raise self.refusal(event, "aggregate_type", text)
        if self.key_required and not event.key:
            raise self.refusal(event, "no_key", "it has no key (aggregate id); write it with key=")
        if event.content_type != self.content_type and _media(event.content_type) != _media(self.content_type):
            text = f"expected content type {self.content_type!r}, got {event.content_type!r}"
            raise self.refusal(event, "content_type", text)
        if self.is_json and event.body.strip() == b"null":
            raise self.refusal(event, "null_payload", "the payload is null")
        if self.check_payload:
            self.read(event)

    def read(self, event: Event) -> Any:
        """The payload as its model, or as JSON value or bytes if the contract has none."""
        try:
            return self.model.read(event.body)
        except ContractViolation as error:
            raise self.refusal(event, error.reason, str(error)) from None

    def refusal(self, event: Event, reason: str, text: str) -> ContractViolation:
        """The error that names the event, the contract and why it is not kept."""
        return ContractViolation(f"event {event.id} ({self.type!r} version {self.version}): {text}", reason)


def version_of(event: Event) -> int:
    """From the header `event-version`; an event without it is of version 1."""
    text = event.headers.get(VERSION_HEADER)
    if text is None:
        return 1
    if text.isascii() and text.isdigit() and len(text) <= 9 and text[0] != "0":
        return int(text)
    raise ContractViolation(
        f"event {event.id} ({event.type!r}): its header {VERSION_HEADER} is not a whole number from 1",
        "unknown_version",
    )


def _media(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()
