"""Claims on rows and what becomes of them, the same for outbox and inbox."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from ..event import MAX_PAYLOAD


class Claim(NamedTuple):
    """Who holds rows: set at insert by the hot path, or by a claim. It brings payloads up to `room` bytes each: see
    payloads.py."""

    owner: int
    token: int
    lease: timedelta
    room: int = MAX_PAYLOAD


class HeldRow(NamedTuple):
    """A claim on one row: what every later write must present."""

    seq: int
    token: int


class RetryRow(NamedTuple):
    seq: int
    token: int
    delay: timedelta
    error: str
    counted: bool = True  # False: this attempt was nobody's fault


class Death(NamedTuple):
    seq: int
    token: int
    error: str
