"""Settings: one path everywhere, precedence, units, and errors that name the value."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from datetime import time, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from relaybox import (
    AsyncInbox,
    AsyncIngest,
    AsyncMaintainer,
    AsyncOutbox,
    AsyncRelay,
    Guard,
    Inbox,
    Ingest,
    Maintainer,
    Outbox,
    Relay,
    Retry,
    Settings,
)
from relaybox.brokers.lines.sink import JsonLinesSink
from relaybox.errors import ConfigError
from relaybox.relay.config import RelayConfig
from relaybox.settings import INGEST, RELAY, explained, leaves
from relaybox.types import DeliverySettings, OrderSettings, OutboxSettings, Reading, RelaySettings, TopicSettings

SECOND = timedelta(seconds=1)


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "relaybox.toml"
    path.write_text(text)
    return path


def told(**values: Any) -> Settings:
    """Values by path, with __ for the dot."""
    return Settings.load(environment={}, given={name.replace("__", "."): value for name, value in values.items()})


# -- where values come from ---------------------------------------------------------------------------


def test_precedence_and_origins(tmp_path: Path) -> None:
    text = "url = 'sqlite:///x.db'\ndelivery.workers = 1\ndelivery.batch = 1\norder.shards = 1\n"
    environment = {
        "RELAYBOX_DELIVERY_BATCH": "2",
        "RELAYBOX_ORDER_SHARDS": "2",
        "RELAYBOX_URL": "x",
        "OTHER": "y",
        "RELAYBOX_CONFIG": str(file(tmp_path, text)),
    }
    loaded = explained(environment=environment, given={"order.shards": 3})
    got = {origin.path: (origin.value, origin.origin) for origin in loaded.origins}
    assert {path: got[path] for path in ("delivery.workers", "delivery.batch", "order.shards", "delivery.lease")} == {
        "delivery.workers": (1, "file relaybox.toml"),
        "delivery.batch": (2, "environment RELAYBOX_DELIVERY_BATCH"),
        "order.shards": (3, "argument"),
        "delivery.lease": (timedelta(seconds=30), "default"),
    }
    assert loaded.settings == Settings(delivery=DeliverySettings(workers=1, batch=2), order=OrderSettings(shards=3))


@pytest.mark.parametrize("leaf", leaves(Settings), ids=lambda leaf: leaf.path)
def test_each_setting_has_one_path_for_code_file_and_environment(leaf: Any, tmp_path: Path) -> None:
    section, _, rest = leaf.path.partition(".")
    value: Any = Settings()
    for name in leaf.path.split("."):
        value = getattr(value, name)
    text = f"{value.total_seconds()}s" if isinstance(value, timedelta) else "none" if value is None else str(value)
    by_environment = Settings.load(environment={leaf.variable: text})
    by_file = Settings.load(file(tmp_path, f'[relaybox.{section}]\n{rest} = "{text}"\n'), environment={})
    assert by_environment == by_file == Settings()
    assert leaf.variable == "RELAYBOX_" + leaf.path.replace(".", "_").upper()
    assert leaf.about


def test_no_two_settings_share_a_variable() -> None:
    variables = [leaf.variable for leaf in leaves(Settings)]
    assert len(set(variables)) == len(variables)


def test_retries_are_a_table_in_the_section(tmp_path: Path) -> None:
    text = '[relaybox.delivery.retry]\nattempts = 5\nbase = "1s"\n[relaybox.relay]\nretry = {attempts = "none"}\n'
    environment = {"RELAYBOX_DELIVERY_RETRY_JITTER": "0.25"}
    assert Settings.load(file(tmp_path, text), environment=environment) == Settings(
        delivery=DeliverySettings(retry=Retry(attempts=5, base="1s", jitter=0.25)),
        relay=RelaySettings(retry=Retry(attempts=None)),
    )


def test_settings_read_nothing_unless_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAYBOX_DELIVERY_WORKERS", "9")
    assert Settings().delivery.workers == 4
    assert Settings.load().delivery.workers == 9
    assert Settings.load(environment={}) == Settings()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Outbox("sqlite:///shop.db"),
        lambda: AsyncOutbox("sqlite:///shop.db"),
        lambda: Inbox("sqlite:///shop.db"),
        lambda: AsyncInbox("sqlite:///shop.db"),
        lambda: AsyncRelay("sqlite:///shop.db", JsonLinesSink(path="out.jsonl"), to="x"),
        lambda: AsyncIngest(cast(Any, object()), AsyncInbox("sqlite:///shop.db")),
        lambda: AsyncMaintainer("postgresql://localhost/shop"),
    ],
    ids=["Outbox", "AsyncOutbox", "Inbox", "AsyncInbox", "Relay", "Ingest", "Maintainer"],
)
async def test_what_is_made_without_settings_has_those_of_the_environment(
    make: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RELAYBOX_CONFIG", str(file(tmp_path, 'delivery.lease = "50s"')))
    monkeypatch.setenv("RELAYBOX_DELIVERY_WORKERS", "9")
    settings: Settings = make().settings
    assert (settings.delivery.workers, settings.delivery.lease) == (9, 50 * SECOND)
    monkeypatch.setenv("RELAYBOX_DELIVERY_WORKERS", "7")
    assert make().settings.delivery.workers == 7, "nothing is kept from before"
    monkeypatch.setenv("RELAYBOX_WORKERS", "7")
    with pytest.raises(ConfigError, match="did you mean RELAYBOX_DELIVERY_WORKERS"):
        make()


def test_a_file_without_the_table_of_relaybox(tmp_path: Path) -> None:
    assert Settings.load(file(tmp_path, "delivery.workers = 7"), environment={}).delivery.workers == 7


def test_other_defaults() -> None:
    base = Settings(topics=TopicSettings.for_high_throughput())
    settings = Settings.load(environment={"RELAYBOX_TOPICS_CLEANUP_BATCH": "7"}, base=base)
    assert (settings.topics.cleanup_batch, settings.topics.group_retention) == (7, timedelta(days=7))


def test_names_of_processes_are_no_settings() -> None:
    """Options of one relay or ingest stand in the same tables, and are told apart by name."""
    fields = {entry.name for entry in dataclasses.fields(RelayConfig)} - {"url", "options", "settings"}
    assert set(RELAY) == fields
    own = {"inbox", "sender", "subject", "listen"}
    assert set(INGEST) == own | {entry.name for entry in dataclasses.fields(Reading)}
    paths = {leaf.path for leaf in leaves(Settings)}
    assert not paths & {*(f"relay.{name}" for name in RELAY), *(f"ingest.{name}" for name in INGEST)}
    environment = {"RELAYBOX_RELAY_TO": "orders", "RELAYBOX_INGEST_SENDER": "shop", "RELAYBOX_SINK_URL": "x"}
    assert Settings.load(environment=environment) == Settings()


@pytest.mark.parametrize("service", ["", "DELIVERY_", "METRICS_"])
def test_variables_that_kubernetes_sets_are_no_settings(service: str) -> None:
    names = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR")
    assert Settings.load(environment={f"RELAYBOX_{service}{name}": "x" for name in names}) == Settings()


# -- values -------------------------------------------------------------------------------------------


def test_units_and_words() -> None:
    environment = {
        "RELAYBOX_DELIVERY_LEASE": "1h30m",
        "RELAYBOX_DELIVERY_RETRY_BASE": "250ms",
        "RELAYBOX_DELIVERY_STOP_TIMEOUT": "PT7S",
        "RELAYBOX_DELIVERY_POLL": "2.5s",
        "RELAYBOX_DELIVERY_TIMEOUT": "none",
        "RELAYBOX_OUTBOX_RETENTION": "720h",
        "RELAYBOX_DELIVERY_NOTIFY": "off",
        "RELAYBOX_DELIVERY_OWNER": "me",
        "RELAYBOX_TOPICS_GROUPS_AT": "03:30",
    }
    assert Settings.load(environment=environment) == Settings(
        delivery=DeliverySettings(
            lease=timedelta(minutes=90),
            retry=Retry(base=timedelta(milliseconds=250)),
            stop_timeout=7 * SECOND,
            poll=2.5 * SECOND,
            timeout=None,
            notify=False,
            owner="me",
        ),
        outbox=OutboxSettings(retention=timedelta(days=30)),
        topics=TopicSettings(groups_at=time(3, 30)),
    )


@pytest.mark.parametrize("given", [timedelta(seconds=90), 90, "90s", "1m30s"])
def test_durations_are_written_as_people_do_and_read_as_timedeltas(given: Any) -> None:
    assert DeliverySettings(lease=given, poll=given) == DeliverySettings(lease=90 * SECOND, poll=90 * SECOND)
    assert DeliverySettings(lease=given).lease == 90 * SECOND


def test_outside_of_a_program_a_duration_has_a_unit(tmp_path: Path) -> None:
    """`retention = 7` would delete what is older than seven seconds, and most likely means days."""
    said = r"expected inbox.retention to be a duration .* got '7' without a unit"
    with pytest.raises(ConfigError, match=said):
        Settings.load(file(tmp_path, "[relaybox.inbox]\nretention = 7\n"), environment={})
    with pytest.raises(ConfigError, match=said):
        Settings.load(environment={"RELAYBOX_INBOX_RETENTION": "7"})
    assert Settings.load(given={"inbox.retention": 7}).inbox.retention == 7 * SECOND


@pytest.mark.parametrize(("word", "value"), [("TRUE", True), ("1", True), ("yes", True), ("no", False), ("0", False)])
def test_booleans(word: str, value: bool) -> None:
    assert told(delivery__notify=word).delivery.notify is value


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"delivery__workers": 0}, r"expected delivery\.workers to be a positive int, got 0"),
        ({"delivery__workers": True}, r"delivery\.workers to be a positive int, got True"),
        ({"delivery__batch": 2.5}, r"delivery\.batch to be a positive int, got 2\.5"),
        ({"delivery__batch": "many"}, r"delivery\.batch to be a whole number, got 'many' \(argument\)"),
        ({"delivery__hot_queue": -1}, r"delivery\.hot_queue to be a positive int, got -1"),
        ({"delivery__lease": "soon"}, r"delivery\.lease to be a duration such as .*, got 'soon'"),
        ({"delivery__lease": 0}, r"delivery\.lease to be a positive duration, got 0:00:00"),
        ({"delivery__lease": None}, r"delivery\.lease to be a duration such as .*, got None"),
        ({"delivery__lease": "9s"}, r"lease to be at least twice delivery\.instance_ttl \(0:00:05\), got 0:00:09"),
        ({"delivery__retry__base": "2m"}, r"retry\.max to be at least retry\.base 0:02:00, got 0:01:00"),
        ({"delivery__notify": "maybe"}, r"delivery\.notify to be true or false, got 'maybe'"),
        ({"delivery__owner": "x" * 129}, r"delivery\.owner"),
        ({"delivery__owner": 5}, r"delivery\.owner to be of type str, got 5"),
        ({"order__on_exhausted": "explode"}, r"order\.on_exhausted to be block, park or skip, got 'explode'"),
        ({"order__shards": 1025}, r"order\.shards to be at most 1024, got 1025"),
        ({"topics__groups_at": "noon"}, r"topics\.groups_at to be a time of day such as 02:00, got 'noon'"),
        ({"topics__tick_interval": 0}, r"topics\.tick_interval to be a positive duration"),
        ({"topics__cleanup_pause": -1}, r"topics\.cleanup_pause"),
    ],
)
def test_errors_name_the_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        told(**values)


def test_an_empty_word_means_none() -> None:
    assert told(delivery__owner="").delivery.owner is None


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("delivery.worker", "did you mean delivery.workers?"),
        ("workers", "did you mean delivery.workers?"),
        ("max_attempts", "did you mean delivery.retry.attempts?"),
        ("relay.attempts", "did you mean relay.retry.attempts?"),
        ("colour", "a setting is a section and a name, such as admin.actor"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest_known_one(path: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.load(environment={}, given={path: 1})
    assert str(caught.value) == f"unknown setting {path!r} (argument); {hint}"
    with pytest.raises(ConfigError) as caught:
        Settings.load(file(tmp_path, f"[relaybox]\n{path} = 1"), environment={})
    assert str(caught.value) == f"unknown setting {path!r} (file relaybox.toml); {hint}"
    variable = "RELAYBOX_" + path.replace(".", "_").upper()
    with pytest.raises(ConfigError) as caught:
        Settings.load(environment={variable: "1"})
    name = hint.split()[-1].replace(".", "_").upper()
    assert (
        str(caught.value) == f"unknown setting {variable} in the environment; {hint.rpartition(' ')[0]} RELAYBOX_{name}"
    )


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the settings file gone\.toml: No such file"):
        Settings.load(tmp_path / "gone.toml", environment={})
    with pytest.raises(ConfigError, match="is not TOML"):
        Settings.load(file(tmp_path, "= broken"), environment={})
    with pytest.raises(ConfigError, match="to be a table"):
        Settings.load(file(tmp_path, "relaybox = 5"), environment={})
    with pytest.raises(ConfigError, match=r"\[relaybox\.delivery\] to be a table, got int"):
        Settings.load(file(tmp_path, "delivery = 5"), environment={})
    with pytest.raises(ConfigError, match=r"delivery\.workers to be a positive int, got \{'x': 1\}"):
        Settings.load(file(tmp_path, "delivery.workers.x = 1"), environment={})


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.toml"):
        Settings.load(path, environment={})


# -- as values ----------------------------------------------------------------------------------------


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().delivery.workers = 5  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().delivery.lease = 5  # type: ignore[misc]


def test_copies() -> None:
    settings = Settings(delivery=DeliverySettings(lease="40s"))
    assert pickle.loads(pickle.dumps(settings)) == copy.deepcopy(settings) == settings  # noqa: S301 - our own
    changed = settings.replaced({"delivery.workers": 1, "delivery.retry.attempts": 2, "order.shards": 3})
    assert changed == Settings(
        delivery=DeliverySettings(lease="40s", workers=1, retry=Retry(attempts=2)), order=OrderSettings(shards=3)
    )
    assert hash(changed) != hash(settings)


def test_a_relay_delivers_by_its_own_section() -> None:
    effective = Settings(delivery=DeliverySettings(retry=Retry(attempts=3), lease="40s")).of_relay()
    assert effective.delivery.retry.attempts == 25
    assert (effective.delivery.cold_queue, effective.order.shard_rows) == (5000, 800)
    assert (effective.delivery.lease, effective.outbox.retention) == (40 * SECOND, timedelta(days=30))


def test_a_section_that_is_mistyped_is_refused_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"unknown setting 'delivry' \(file relaybox.toml\); did you mean delivery\?$"
    ):
        Settings.load(file(tmp_path, "[relaybox.delivry]\npoll = '1s'"), environment={})


@pytest.mark.parametrize("wrong", [{}, {"delivery": {"workers": 8}}, "settings.toml"])
def test_settings_of_another_type_are_refused_at_once(wrong: Any, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    outbox, inbox = Outbox(url), Inbox(url)
    for make in (
        lambda: Outbox(url, settings=wrong),
        lambda: AsyncOutbox(url, settings=wrong),
        lambda: Inbox(url, settings=wrong),
        lambda: AsyncInbox(url, settings=wrong),
        lambda: Guard.sql(url, consumer="billing", settings=wrong),
        lambda: Guard.redis("redis://localhost", consumer="billing", settings=wrong),
        lambda: Relay(outbox, "jsonl://events.jsonl", to="orders", settings=wrong),
        lambda: Ingest("nats://localhost?stream=ORDERS", inbox, settings=wrong),
        lambda: Maintainer(outbox, settings=wrong),
    ):
        with pytest.raises(
            ConfigError, match=r"expected settings to be Settings, such as Settings\(.*\), got (dict|str)$"
        ):
            make()
    outbox.close()
    inbox.close()
