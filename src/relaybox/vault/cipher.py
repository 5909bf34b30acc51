"""AES-256-GCM: a random nonce of 96 bits, the ciphertext and a tag of 128 bits. What is bound to it (a context) must be
the same when it is opened, or it does not open."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from ..errors import MissingExtra

KEY_BYTES = 32
_NONCE_BYTES = 12
_TAG_BYTES = 16
_FORM = b"\x01"  # the first byte of what is sealed: how it is made


class NotSealedHere(Exception):
    """It was sealed with another key or context, or its bytes were changed."""


@cache
def _library() -> tuple[Any, type[Exception]]:
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ModuleNotFoundError as error:
        raise MissingExtra("cryptography", "crypto") from error
    return AESGCM, InvalidTag


class Cipher:
    """One key."""

    __slots__ = ("_aes", "_refusal")

    def __init__(self, secret: bytes) -> None:
        aes, self._refusal = _library()
        self._aes: Any = aes(secret)

    def seal(self, plain: bytes, context: bytes) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        sealed: bytes = self._aes.encrypt(nonce, plain, context)
        return _FORM + nonce + sealed

    def open(self, sealed: bytes, context: bytes) -> bytes:
        """NotSealedHere: it cannot be had with this key."""
        if sealed[:1] != _FORM or len(sealed) < 1 + _NONCE_BYTES + _TAG_BYTES:
            raise NotSealedHere
        try:
            plain: bytes = self._aes.decrypt(sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :], context)
        except self._refusal:
            raise NotSealedHere from None
        return plain


def new_secret() -> bytes:
    return os.urandom(KEY_BYTES)
