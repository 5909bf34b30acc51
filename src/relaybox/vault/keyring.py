"""Master keys, which wrap data keys: from a file, from the environment, or in a key management service.

    2026-07 2fBVSIM5wZVc1vbW0v8qKoLwBO4yzVjM0dFQXQ0c3oE=      the first one wraps what is new
    2025-01 GkH1W0nq0YyIh9RkX8KQHcT0m6s6x0s2r9VQ2p8iV5o=      the others open what they have wrapped

They are never stored in the database, so who has a copy of it (a backup, a replica, a disk) has no payload.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from ..errors import ConfigError
from .cipher import KEY_BYTES, Cipher, NotSealedHere, new_secret

VARIABLE = "RELAYBOX_MASTER_KEYS"
_NAME = re.compile(r"[A-Za-z0-9._:/-]{1,64}")

Context = Mapping[str, str]  # what a wrapped key is bound to: its id and its subject


class MasterKey(Protocol):
    """What wraps data keys. `Kms` makes one of two functions."""

    def wrap(self, secret: bytes, context: Context, /) -> bytes:
        """What it makes of a data key, bound to the context."""
        ...

    def unwrap(self, wrapped: bytes, context: Context, /) -> bytes:
        """The data key again."""
        ...


class Kms:
    """A master key that never leaves a key management service: two functions that ask it.

    Both are given bytes and the context that they are to be bound to, and return bytes. They are called once per data
    key and process while the key is remembered, in a thread where an event loop runs, and may raise."""

    __slots__ = ("_unwrap", "_wrap")

    def __init__(self, wrap: Callable[[bytes, Context], bytes], unwrap: Callable[[bytes, Context], bytes]) -> None:
        if not (callable(wrap) and callable(unwrap)):
            raise ConfigError("expected wrap and unwrap to be functions of bytes and a context")
        self._wrap = wrap
        self._unwrap = unwrap

    def wrap(self, secret: bytes, context: Context, /) -> bytes:
        """What the service makes of a data key."""
        return self._wrap(secret, context)

    def unwrap(self, wrapped: bytes, context: Context, /) -> bytes:
        """The data key again."""
        return self._unwrap(wrapped, context)


class _Local:
    """A master key in this process."""

    __slots__ = ("_cipher",)

    def __init__(self, secret: bytes) -> None:
        self._cipher = Cipher(secret)

    def wrap(self, secret: bytes, context: Context, /) -> bytes:
        return self._cipher.seal(secret, _bound(context))

    def unwrap(self, wrapped: bytes, context: Context, /) -> bytes:
        return self._cipher.open(wrapped, _bound(context))


def _bound(context: Context) -> bytes:
    return "\0".join(["relaybox data key", *(f"{name}={context[name]}" for name in sorted(context))]).encode()


class Keyring:
    """Master keys by name; the first wraps new data keys, every one of them opens what it has wrapped.

    keys  a secret of 32 bytes each, or a `Kms`
    """

    def __init__(self, keys: Mapping[str, bytes | MasterKey]) -> None:
        if not isinstance(keys, Mapping) or not keys:
            raise ConfigError("expected a keyring to have master keys by their names, got none")
        self._keys = {_name(name): _master(name, key) for name, key in keys.items()}
        self.current = next(iter(self._keys))

    @classmethod
    def file(cls, path: str | Path) -> Keyring:
        """A line for each key: its name, a blank, 32 bytes in base64. Nobody but its owner may read the file."""
        try:
            with Path(path).open(encoding="ascii") as opened:
                mode = os.fstat(opened.fileno()).st_mode
                if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
                    raise ConfigError(
                        f"keyring {str(path)!r} can be read or written by others (mode {stat.S_IMODE(mode):04o}); "
                        f"chmod 600 {path}"
                    )
                lines = opened.read().splitlines()
        except OSError as error:
            raise ConfigError(f"cannot read the keyring {str(path)!r}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"the keyring {str(path)!r} is not a text file of names and base64") from None
        return cls(_parsed([line for line in lines if line.strip() and not line.startswith("#")], str(path)))

    @classmethod
    def environment(cls, variable: str = VARIABLE) -> Keyring:
        """The same from a variable, with commas between the keys."""
        text = os.environ.get(variable, "")
        if not text.strip():
            raise ConfigError(f"expected master keys in {variable}, such as NAME BASE64,NAME BASE64; it is not set")
        return cls(_parsed([part for part in text.split(",") if part.strip()], variable))

    @property
    def names(self) -> tuple[str, ...]:
        """Of its master keys, the current one first."""
        return tuple(self._keys)

    def wrap(self, secret: bytes, context: Context) -> str:
        """By the current master key, in base64."""
        return base64.b64encode(self._keys[self.current].wrap(secret, context)).decode()

    def unwrap(self, master: str, wrapped: str, context: Context) -> bytes:
        """What the named master key has wrapped. ConfigError: it is not here, or does not open that."""
        key = self._keys.get(master)
        if key is None:
            raise ConfigError(
                f"data key {context['id']} is wrapped by master key {master!r}, and the keyring has only "
                f"{', '.join(self._keys)}; add it, or run `relaybox vault rotate` where it is"
            )
        try:
            secret = key.unwrap(_decoded(wrapped), context)
        except NotSealedHere:
            raise ConfigError(
                f"data key {context['id']} does not open with master key {master!r}: that name stands for another key "
                "here, or the row was changed"
            ) from None
        if not isinstance(secret, bytes) or len(secret) != KEY_BYTES:  # a shorter one would encrypt, and be guessed
            raise ConfigError(
                f"expected master key {master!r} to unwrap {KEY_BYTES} bytes for data key {context['id']}"
            )
        return secret

    def __repr__(self) -> str:
        return f"Keyring({', '.join(self._keys)})"


def _decoded(wrapped: str) -> bytes:
    try:
        return base64.b64decode(wrapped, validate=True)
    except ValueError:
        raise NotSealedHere from None


def new_master_key(name: str) -> str:
    """A line for a keyring."""
    return f"{_name(name)} {base64.b64encode(new_secret()).decode()}"


def add_to_file(path: Path, line: str) -> None:
    """Puts a key first into a keyring file. The file is replaced as a whole, and nobody but its owner can read it."""
    old: list[str] = []
    if path.exists():
        Keyring.file(path)  # which refuses one that is wrong
        old = path.read_text(encoding="ascii").splitlines()
    _parsed([line, *(each for each in old if each.strip() and not each.startswith("#"))], str(path))
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as opened:
            opened.write("\n".join([line, *old, ""]))
            opened.flush()
            os.fsync(opened.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise ConfigError(f"cannot write the keyring {str(path)!r}: {error.strerror}") from None


def _parsed(lines: list[str], where: str) -> dict[str, bytes | MasterKey]:
    """No error shows a part of a key."""
    keys: dict[str, bytes | MasterKey] = {}
    for number, line in enumerate(lines, 1):
        name, _, text = line.strip().partition(" ")
        try:
            secret = base64.b64decode(text.strip(), validate=True)
        except (binascii.Error, ValueError):
            secret = b""
        if not _NAME.fullmatch(name) or len(secret) != KEY_BYTES:
            raise ConfigError(
                f"expected key {number} of {where} to be a name, a blank and {KEY_BYTES} bytes in base64; "
                "`relaybox vault new-key NAME` prints one"
            )
        if name in keys:
            raise ConfigError(f"{where} has two keys called {name!r}; give each its own name")
        keys[name] = secret
    return keys


def _name(name: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"expected the name of a master key to be 1 to 64 of A-Z a-z 0-9 . _ : / -, got {name!r}")
    return name


def _master(name: str, key: bytes | MasterKey) -> MasterKey:
    if isinstance(key, bytes):
        if len(key) != KEY_BYTES:
            raise ConfigError(f"expected master key {name!r} to have {KEY_BYTES} bytes, got {len(key)}")
        return _Local(key)
    if not (callable(getattr(key, "wrap", None)) and callable(getattr(key, "unwrap", None))):
        raise ConfigError(f"expected master key {name!r} to be bytes or a Kms, got {type(key).__name__}")
    return key
