"""Asymmetric signatures of Standard Webhooks: a relay signs with `whsk_…`, a receiver needs only `whpk_…` to verify.

So a receiver cannot make messages that another one takes for the sender's. The keys are those of Ed25519.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field

from ...errors import ConfigError, MissingExtra

try:
    from cryptography.exceptions import InvalidSignature as Wrong
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
except ImportError as error:
    raise MissingExtra("cryptography", "crypto") from error

PRIVATE, PUBLIC = "whsk_", "whpk_"
SEED = 32  # bytes of a private key; some libraries write the public one behind it


@dataclass(frozen=True, slots=True)
class PrivateKey:
    key: Ed25519PrivateKey = field(repr=False)

    def sign(self, content: bytes) -> str:
        return "v1a," + base64.b64encode(self.key.sign(content)).decode()

    @property
    def public(self) -> str:
        """For receivers."""
        return PUBLIC + base64.b64encode(self.key.public_key().public_bytes_raw()).decode()


@dataclass(frozen=True, slots=True)
class PublicKey:
    key: Ed25519PublicKey

    def fits(self, signature: str, content: bytes) -> bool:
        version, _, text = signature.partition(",")
        if version != "v1a":
            return False
        try:
            self.key.verify(base64.b64decode(text, validate=True), content)
        except (Wrong, binascii.Error, ValueError):
            return False
        return True


def parse(text: str) -> PrivateKey | PublicKey:
    prefix = text[: len(PRIVATE)]
    try:
        raw = base64.b64decode(text.removeprefix(prefix), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"expected a webhook key to be {prefix} and base64; this one is not base64") from None
    if prefix == PUBLIC:
        if len(raw) != SEED:
            raise ConfigError(f"expected a {PUBLIC} key of {SEED} bytes, got {len(raw)}")
        return PublicKey(Ed25519PublicKey.from_public_bytes(raw))
    if len(raw) not in (SEED, 2 * SEED):
        raise ConfigError(f"expected a {PRIVATE} key of {SEED} or {2 * SEED} bytes, got {len(raw)}")
    key = Ed25519PrivateKey.from_private_bytes(raw[:SEED])
    if raw[SEED:] not in (b"", key.public_key().public_bytes_raw()):
        raise ConfigError(f"the second half of a {PRIVATE} key is not the public key of its first")
    return PrivateKey(key)


def new_pair() -> tuple[str, str]:
    key = PrivateKey(Ed25519PrivateKey.generate())
    return PRIVATE + base64.b64encode(key.key.private_bytes_raw()).decode(), key.public
