"""Master keys from a file, the environment and functions; and what is said about wrong ones."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from relaybox import ConfigError, Keyring
from relaybox.types import Kms
from relaybox.vault.keyring import new_master_key

SHORT = base64.b64encode(b"short").decode()
CONTEXT = {"id": "k", "subject": "s"}


def keyring_file(folder: Path, *lines: str, mode: int = 0o600) -> Path:
    path = folder / "keys"
    path.write_text("\n".join(["# master keys", *lines, ""]))
    path.chmod(mode)
    return path


def test_a_file_has_the_keys_and_the_first_is_current(tmp_path: Path) -> None:
    keys = Keyring.file(keyring_file(tmp_path, new_master_key("b"), new_master_key("a")))
    assert (keys.current, keys.names) == ("b", ("b", "a"))
    assert keys.unwrap("b", keys.wrap(b"x" * 32, CONTEXT), CONTEXT) == b"x" * 32


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o622])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = keyring_file(tmp_path, new_master_key("a"), mode=mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        Keyring.file(path)


@pytest.mark.parametrize(
    "line",
    ["mine", "mine !!!", "mine " + base64.b64encode(b"short").decode(), base64.b64encode(b"k" * 32).decode(), "ä x"],
)
def test_a_line_that_is_no_key_is_named_by_its_number_alone(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Keyring.file(keyring_file(tmp_path, line))
    assert line not in str(refused.value)


def test_files_that_are_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the keyring"):
        Keyring.file(tmp_path / "none")
    with pytest.raises(ConfigError, match="got none"):
        Keyring.file(keyring_file(tmp_path))
    same = new_master_key("a")
    with pytest.raises(ConfigError, match="two keys called 'a'"):
        Keyring.file(keyring_file(tmp_path, same, same))


def test_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAYBOX_MASTER_KEYS", f"{new_master_key('new')},{new_master_key('old')}")
    assert Keyring.environment().names == ("new", "old")
    monkeypatch.delenv("RELAYBOX_MASTER_KEYS")
    with pytest.raises(ConfigError, match="it is not set"):
        Keyring.environment()


@pytest.mark.parametrize("keys", [{}, None, {"a b": b"1" * 32}, {"a": b"1"}, {"a": "1" * 32}, {"": b"1" * 32}])
def test_wrong_keyrings(keys: Any) -> None:
    with pytest.raises(ConfigError):
        Keyring(keys)


def test_a_wrapped_key_is_bound_to_its_row_and_its_master() -> None:
    keys = Keyring({"a": b"1" * 32, "b": b"2" * 32})
    wrapped = keys.wrap(b"x" * 32, CONTEXT)
    for master, context in (("b", CONTEXT), ("a", {**CONTEXT, "subject": "other"}), ("a", {**CONTEXT, "id": "other"})):
        with pytest.raises(ConfigError, match="does not open"):
            keys.unwrap(master, wrapped, context)
    with pytest.raises(ConfigError, match="the keyring has only a, b"):
        keys.unwrap("c", wrapped, CONTEXT)


def test_functions_of_a_key_service_get_the_context() -> None:
    asked: list[Any] = []

    def wrap(secret: bytes, context: Any) -> bytes:
        asked.append(context)
        return secret[::-1]

    keys = Keyring({"kms": Kms(wrap, lambda wrapped, context: wrapped[::-1])})
    assert keys.unwrap("kms", keys.wrap(b"s" * 32, CONTEXT), CONTEXT) == b"s" * 32
    assert asked == [CONTEXT]
    with pytest.raises(ConfigError, match="functions"):
        Kms(1, 2)  # type: ignore[arg-type]


def test_without_the_extra_it_is_named() -> None:
    text = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from relaybox import Keyring, Vault\n"
        "from relaybox.errors import MissingExtra\n"
        "try: Keyring({'a': b'1' * 32})\n"
        "except MissingExtra as error: print(error)\n"
    )
    found = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True, env=os.environ)
    assert "relaybox[crypto]" in found.stdout
