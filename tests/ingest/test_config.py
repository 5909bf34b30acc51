"""What an ingest is told: arguments win over the environment, the environment over the file."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from relaybox.errors import ConfigError
from relaybox.ingest.config import load
from relaybox.types import Reading

FILE = """
[relaybox.inbox]
enabled = false
[relaybox.ingest]
inbox = "of_file"
batch = 7
wait = "2s"
key_header = "of-file"
[relaybox.source]
url = "kafka://of-file:9092"
group = "of-file"
topics = "orders"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "relaybox.toml"
    path.write_text(FILE)
    return path


def test_the_file(file: Path) -> None:
    config = load({}, environment={}, file=file)
    assert (config.url, config.options) == ("kafka://of-file:9092", {"group": "of-file", "topics": "orders"})
    ingest = config.settings.ingest
    assert (config.inbox, ingest.batch, ingest.wait) == ("of_file", 7, timedelta(seconds=2))
    assert (config.reading, config.settings.inbox.enabled) == (Reading(key_header="of-file"), False)


def test_the_environment_wins_over_the_file(file: Path) -> None:
    environment = {
        "RELAYBOX_INBOX": "of_environment",
        "RELAYBOX_INGEST_BATCH": "8",
        "RELAYBOX_SOURCE_GROUP": "of-environment",
        "RELAYBOX_INBOX_ENABLED": "true",
    }
    config = load({}, environment=environment, file=file)
    assert (config.inbox, config.settings.ingest.batch) == ("of_environment", 8)
    assert config.settings.inbox.enabled
    assert config.options == {"group": "of-environment", "topics": "orders"}


def test_arguments_win_over_both_and_options_belong_to_their_source(file: Path) -> None:
    environment = {"RELAYBOX_INBOX": "of_environment", "RELAYBOX_SOURCE_GROUP": "of-environment"}
    given = {"url": "amqp://localhost", "options": {"queue": "q"}, "inbox": "of_argument", "type": None}
    config = load({**given, "settings": {"ingest.wait": "9s"}}, environment=environment, file=file)
    assert config.settings.ingest.wait == timedelta(seconds=9)
    assert (config.url, config.options) == ("amqp://localhost", {"queue": "q"})
    assert (config.inbox, config.reading.type) == ("of_argument", None)


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, "no source given"),
        ({"RELAYBOX_INGEST_COLOUR": "red"}, "unknown setting RELAYBOX_INGEST_COLOUR in the environment"),
        ({"RELAYBOX_INGEST_BATCH": "many"}, r"expected ingest\.batch to be a whole number, got 'many'"),
        ({"RELAYBOX_INGEST_WAIT": "long"}, "wait"),
        ({"RELAYBOX_SOURCE": "kafka://me:pass/word@localhost:9092/orders"}, "the source's URL has an @"),
    ],
)
def test_what_is_wrong(environment: dict[str, str], reason: str) -> None:
    base = {"RELAYBOX_SOURCE": "kafka://localhost:9092"} if environment else {}
    with pytest.raises(ConfigError, match=reason) as caught:
        load({}, environment={**base, **environment})
    assert "word" not in str(caught.value).partition(";")[0]


def test_the_url_may_hold_a_password_and_is_not_shown() -> None:
    config = load({"url": "amqp://me:secret@localhost"}, environment={})
    assert "secret" not in repr(config)
