"""Settings: precedence, units, and errors that name the value."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from relaybox import Settings
from relaybox.errors import ConfigError
from relaybox.settings import load

SECOND = timedelta(seconds=1)


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "relaybox.toml"
    path.write_text(text)
    return path


def test_precedence_and_origins(tmp_path: Path) -> None:
    path = file(tmp_path, "[relaybox]\nworker_count = 1\nbatch_size = 1\nshards = 1\nurl = 'sqlite:///x.db'\n")
    environment = {"RELAYBOX_BATCH_SIZE": "2", "RELAYBOX_SHARDS": "2", "RELAYBOX_URL": "x", "OTHER": "y"}
    loaded = load({"shards": 3}, environment=environment, file=path)
    got = {
        o.name: (o.value, o.origin)
        for o in loaded.origins
        if o.name in ("worker_count", "batch_size", "shards", "lease")
    }
    assert got == {
        "worker_count": (1, "file relaybox.toml"),
        "batch_size": (2, "environment RELAYBOX_BATCH_SIZE"),
        "shards": (3, "argument"),
        "lease": (timedelta(seconds=30), "default"),
    }
    assert loaded.settings == Settings(worker_count=1, batch_size=2, shards=3)


def test_nothing_is_read_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAYBOX_WORKER_COUNT", "9")
    assert load().settings == Settings()


def test_a_file_without_a_section(tmp_path: Path) -> None:
    assert load(file=file(tmp_path, "max_attempts = 7")).settings.max_attempts == 7


def test_units_and_words() -> None:
    environment = {
        "RELAYBOX_LEASE": "1h30m",
        "RELAYBOX_RETRY_BASE": "250ms",
        "RELAYBOX_DRAIN_TIMEOUT": "PT7S",
        "RELAYBOX_POLL_INTERVAL": "2.5",
        "RELAYBOX_HANDLER_TIMEOUT": "none",
        "RELAYBOX_PURGE_RETENTION": "720h",
        "RELAYBOX_NOTIFY": "off",
        "RELAYBOX_OWNER": "me",
    }
    settings = load(environment=environment).settings
    assert settings == Settings(
        lease=timedelta(minutes=90),
        retry_base=timedelta(milliseconds=250),
        drain_timeout=7 * SECOND,
        poll_interval=2.5 * SECOND,
        handler_timeout=None,
        purge_retention=timedelta(days=30),
        notify=False,
        owner="me",
    )


@pytest.mark.parametrize(("word", "value"), [("TRUE", True), ("1", True), ("yes", True), ("no", False), ("0", False)])
def test_booleans(word: str, value: bool) -> None:
    assert load({"notify": word}).settings.notify is value


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"worker_count": 0}, "expected worker_count to be a positive int, got 0"),
        ({"worker_count": True}, "worker_count to be a positive int, got True"),
        ({"batch_size": 2.5}, "batch_size to be a positive int, got 2.5"),
        ({"batch_size": "many"}, "batch_size to be a whole number, got 'many'"),
        ({"hot_queue_capacity": -1}, "hot_queue_capacity to be a positive int, got -1"),
        ({"lease": "soon"}, "lease to be a duration such as .*, got 'soon'"),
        ({"lease": 0}, "lease to be a positive duration, got 0:00:00"),
        ({"lease": None}, "lease"),
        ({"lease": "9s"}, r"lease to be at least twice instance_ttl \(0:00:05\), got 0:00:09"),
        ({"retry_base": "2m"}, r"retry_max to be at least retry_base 0:02:00, got 0:01:00"),
        ({"notify": "maybe"}, "notify to be true or false, got 'maybe'"),
        ({"on_exhausted": "explode"}, "on_exhausted to be block, park or skip, got 'explode'"),
        ({"owner": "x" * 129}, "owner"),
        ({"owner": ""}, None),
        ({"shards": 1025}, "shards to be at most 1024, got 1025"),
        ({"colour": "red"}, r"unknown setting 'colour' \(argument\); the settings are worker_count"),
    ],
)
def test_errors_name_the_value(values: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert load(values).settings.owner is None  # an empty word means none
        return
    with pytest.raises(ConfigError, match=message):
        load(values)


def test_bare_numbers_are_not_durations_when_constructed_directly() -> None:
    with pytest.raises(ConfigError, match="expected lease to be a timedelta, got 30"):
        Settings(lease=30)  # type: ignore[arg-type]


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the settings file gone\.toml: No such file"):
        load(file=tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match="is not TOML"):
        load(file=file(tmp_path, "= broken"))
    with pytest.raises(ConfigError, match="to be a table"):
        load(file=file(tmp_path, "relaybox = 5"))
    with pytest.raises(ConfigError, match=r"unknown setting 'x' \(file relaybox\.toml\)"):
        load(file=file(tmp_path, "x = 1"))
    with pytest.raises(ConfigError, match=r"unknown setting 'workers' \(environment\)"):
        load(environment={"RELAYBOX_WORKERS": "1"})


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.toml"):
        load(file=path)


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().worker_count = 5  # type: ignore[misc]
