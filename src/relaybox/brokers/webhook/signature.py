"""Standard Webhooks signatures: made by the relay, checked by the receiver.

    id = verify(request.headers, await request.body(), [secret])

What is signed is `id.timestamp.body`, with HMAC-SHA256, once per secret: while a secret is being replaced a message
carries a signature of the old and of the new one, and the receiver accepts either. Work on the body as it arrived;
parsing and writing it again changes bytes. https://www.standardwebhooks.com
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets as randomness
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from ...clock import SYSTEM_CLOCK, Clock
from ...errors import ConfigError, InvalidSignature

PREFIX = "whsec_"
SHORTEST, LONGEST = 24, 64  # bytes of a secret
TOLERANCE = timedelta(minutes=5)
MOST_SIGNATURES = 20  # of one message: while secrets change there are several
# A dot would let the end of an id pass for a timestamp: two messages with one signature.
ID = re.compile(r"[!-\-/-~]+")
_TIMESTAMP = re.compile(r"[0-9]{1,11}")


def new_secret() -> str:
    """A fresh secret for one endpoint, to be shown to its owner."""
    return PREFIX + base64.b64encode(randomness.token_bytes(32)).decode()


def parse_secret(text: str) -> bytes:
    """The key inside `whsec_…`; the prefix may be missing."""
    try:
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError("expected a webhook secret to be whsec_ and base64; this one is not base64") from None
    if not SHORTEST <= len(key) <= LONGEST:
        raise ConfigError(f"expected a webhook secret of {SHORTEST} to {LONGEST} bytes, got {len(key)}")
    return key


def sign(keys: Sequence[bytes], id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`: one signature per key."""
    if not ID.fullmatch(id):
        raise ConfigError(f"expected a webhook id of printable ASCII without dots, got {id!r}")
    return " ".join(_signature(key, id, str(timestamp), body) for key in keys)


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secrets: Sequence[str],
    *,
    tolerance: timedelta = TOLERANCE,
    clock: Clock = SYSTEM_CLOCK,
) -> str:
    """The id of a genuine message. Raises InvalidSignature, which says why, for any other.

    Somebody may repeat a genuine message within the tolerance, and the sender does after a lost reply: handle an id
    once (an inbox does).
    """
    if not secrets:
        raise ConfigError("verify() needs at least one secret")
    keys = [parse_secret(secret) for secret in secrets]
    id, timestamp, signatures = look(headers, tolerance=tolerance, clock=clock)
    given = [signature.encode(errors="replace") for signature in signatures]
    expected = [_signature(key, id, timestamp, body).encode() for key in keys]
    if not any(hmac.compare_digest(one, other) for one in given for other in expected):
        raise InvalidSignature("no signature fits: another secret, or the body is not what was sent")
    return id


def look(
    headers: Mapping[str, str], *, tolerance: timedelta = TOLERANCE, clock: Clock = SYSTEM_CLOCK
) -> tuple[str, str, list[str]]:
    """Id, timestamp and signatures of a message whose body is still to come. Raises InvalidSignature for headers that
    no body could make genuine."""
    found = {name.lower(): value for name, value in headers.items()}
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        if not found.get(name):
            raise InvalidSignature(f"the header {name} is missing")
    id, timestamp = found["webhook-id"], found["webhook-timestamp"]
    if not ID.fullmatch(id):
        raise InvalidSignature("expected webhook-id to be printable ASCII without dots")
    _check_time(timestamp, tolerance, clock.now())
    signatures = found["webhook-signature"].split(" ")
    if len(signatures) > MOST_SIGNATURES:
        raise InvalidSignature(f"expected at most {MOST_SIGNATURES} signatures, got {len(signatures)}")
    return id, timestamp, signatures


def _signature(key: bytes, id: str, timestamp: str, body: bytes) -> str:
    mac = hmac.digest(key, f"{id}.{timestamp}.".encode() + body, "sha256")
    return "v1," + base64.b64encode(mac).decode()


def _check_time(timestamp: str, tolerance: timedelta, now: datetime) -> None:
    if not _TIMESTAMP.fullmatch(timestamp):
        raise InvalidSignature("expected webhook-timestamp to be seconds since 1970")
    age = now - datetime.fromtimestamp(int(timestamp), UTC)
    if abs(age) > tolerance:
        side = "old" if age > timedelta(0) else "in the future"
        raise InvalidSignature(f"webhook-timestamp is {abs(age).total_seconds():.0f} s {side}; check both clocks")
