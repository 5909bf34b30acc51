"""Standard Webhooks signatures: made by the relay, checked by the receiver.

    id = verify(request.headers, await request.body(), [secret])

What is signed is `id.timestamp.body`, once per secret: while a secret is being replaced a message carries a signature
of the old and of the new one, and the receiver accepts either. Work on the body as it arrived; parsing and writing it
again changes bytes. https://www.standardwebhooks.com

    whsec_…            both sides have it           v1    HMAC-SHA256
    whsk_… and whpk_…  the sender's, the receiver's  v1a   Ed25519 (ed25519.py)
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets as randomness
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from ...clock import SYSTEM_CLOCK, Clock
from ...durations import Duration, parse_duration
from ...errors import ConfigError, InvalidSignature

if TYPE_CHECKING:
    from .ed25519 import PrivateKey, PublicKey

Key: TypeAlias = "bytes | PrivateKey | PublicKey"
PREFIX = "whsec_"
PAIR = ("whsk_", "whpk_")
SHORTEST, LONGEST = 24, 64  # bytes of a secret
TOLERANCE = "5m"
MOST_SIGNATURES = 20  # of one message: while secrets change there are several
# A dot would let the end of an id pass for a timestamp: two messages with one signature.
ID = re.compile(r"[!-\-/-~]+")
_TIMESTAMP = re.compile(r"[0-9]{1,11}")


def new_secret() -> str:
    """A fresh secret for one endpoint, to be shown to its owner."""
    return PREFIX + base64.b64encode(randomness.token_bytes(32)).decode()


def new_key_pair() -> tuple[str, str]:
    """A fresh private key for the sender, and the public one for its receivers."""
    from .ed25519 import new_pair

    return new_pair()


def parse_secret(text: str) -> Key:
    """The key inside `whsec_…`, whose prefix may be missing, `whsk_…` or `whpk_…`."""
    if text.startswith(PAIR):
        from .ed25519 import parse

        return parse(text)
    try:
        key = base64.b64decode(text.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError("expected a webhook secret to be whsec_ and base64; this one is not base64") from None
    if not SHORTEST <= len(key) <= LONGEST:
        raise ConfigError(f"expected a webhook secret of {SHORTEST} to {LONGEST} bytes, got {len(key)}")
    return key


def check_signing(secrets: Sequence[str]) -> list[Key]:
    """The keys of a sender."""
    keys = [parse_secret(secret) for secret in secrets]
    if any(secret.startswith("whpk_") for secret in secrets):
        raise ConfigError("a whpk_ key is public and cannot sign; give the sender its whsk_ key")
    return keys


def check_verifying(secrets: Sequence[str]) -> list[Key]:
    """The keys of a receiver."""
    keys = [parse_secret(secret) for secret in secrets]
    if any(secret.startswith("whsk_") for secret in secrets):
        raise ConfigError("a whsk_ key is the sender's alone; give the receiver the whpk_ key of the pair")
    return keys


def sign(keys: Sequence[Key], id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`: one signature per key."""
    if not ID.fullmatch(id):
        raise ConfigError(f"expected a webhook id of printable ASCII without dots, got {id!r}")
    content = _content(id, str(timestamp), body)
    return " ".join(_signature(key, content) for key in keys)


def verify(
    headers: Mapping[str, str],
    body: bytes,
    secrets: Sequence[str],
    *,
    tolerance: Duration = TOLERANCE,
    clock: Clock = SYSTEM_CLOCK,
) -> str:
    """The id of a genuine message. Raises InvalidSignature, which says why, for any other.

    Somebody may repeat a genuine message within the tolerance, and the sender does after a lost reply: handle an id
    once (an inbox does).
    """
    if not secrets:
        raise ConfigError("verify() needs at least one secret")
    keys = check_verifying(secrets)
    id, timestamp, signatures = look(headers, tolerance=tolerance, clock=clock)
    content = _content(id, timestamp, body)
    if not any(_fits(key, signatures, content) for key in keys):
        raise InvalidSignature("no signature fits: another secret, or the body is not what was sent")
    return id


def look(
    headers: Mapping[str, str], *, tolerance: Duration = TOLERANCE, clock: Clock = SYSTEM_CLOCK
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
    _check_time(timestamp, parse_duration(tolerance, "tolerance"), clock.now())
    signatures = found["webhook-signature"].split(" ")
    if len(signatures) > MOST_SIGNATURES:
        raise InvalidSignature(f"expected at most {MOST_SIGNATURES} signatures, got {len(signatures)}")
    return id, timestamp, signatures


def _content(id: str, timestamp: str, body: bytes) -> bytes:
    return f"{id}.{timestamp}.".encode() + body


def _signature(key: Key, content: bytes) -> str:
    if isinstance(key, bytes):
        return "v1," + base64.b64encode(hmac.digest(key, content, "sha256")).decode()
    from .ed25519 import PublicKey

    if isinstance(key, PublicKey):
        raise ConfigError("a whpk_ key is public and cannot sign; give the sender its whsk_ key")
    return key.sign(content)


def _fits(key: Key, signatures: Sequence[str], content: bytes) -> bool:
    if isinstance(key, bytes):
        expected = _signature(key, content).encode()
        return any(hmac.compare_digest(given.encode(errors="replace"), expected) for given in signatures)
    from .ed25519 import PublicKey

    return isinstance(key, PublicKey) and any(key.fits(given, content) for given in signatures)


def _check_time(timestamp: str, tolerance: timedelta, now: datetime) -> None:
    if not _TIMESTAMP.fullmatch(timestamp):
        raise InvalidSignature("expected webhook-timestamp to be seconds since 1970")
    age = now - datetime.fromtimestamp(int(timestamp), UTC)
    if abs(age) > tolerance:
        side = "old" if age > timedelta(0) else "in the future"
        raise InvalidSignature(f"webhook-timestamp is {abs(age).total_seconds():.0f} s {side}; check both clocks")
