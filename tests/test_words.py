"""What messages say of names that are nearly right, and of numbers."""

from __future__ import annotations

import pytest

from relaybox import Outbox
from relaybox.brokers import sink_from_url, source_from_url
from relaybox.drivers import parse
from relaybox.errors import ConfigError, RelayboxError
from relaybox.words import counted, did_you_mean


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("lisetn", "; did you mean 'listen'?"),
        ("orderplaced", "; did you mean 'OrderPlaced'?"),
        ("orders", ""),
        ("", ""),
    ],
)
def test_the_nearest_name(name: str, hint: str) -> None:
    assert did_you_mean(name, ["listen", "OrderPlaced", "token"]) == hint


def test_what_is_said_where_nothing_is_near() -> None:
    assert did_you_mean("x", ["listen"], "; see `relaybox topics list`") == "; see `relaybox topics list`"


@pytest.mark.parametrize(
    ("number", "said"), [(0, "no events"), (1, "1 event"), (2, "2 events"), (12345, "12,345 events")]
)
def test_how_many(number: int, said: str) -> None:
    assert counted(number, "event") == said


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgrsql://localhost/x", "did you mean 'postgresql'"),
        (
            "postgresql://localhost/x?conect_timeout=3",
            "unknown option 'conect_timeout'.*did you mean 'connect_timeout'",
        ),
        ("postgresql://localhost/x?tsl=verify", "did you mean 'tls'"),
        ("postgresql://localhost/x?ssl=require", "no option 'ssl'.*tls=verify, or sslmode=require"),
        ("mysql://localhost/x?ssl=require", "expected ssl in the URL to be true or false; tls=verify, require or off"),
        ("sqlite:///shop.db?mode=ro", "a SQLite URL has no options"),
    ],
)
def test_database_urls(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://localhost/x?sslmode=require&application_name=shop&search_path=a",
        "postgresql://localhost/x?sslnegotiation=direct&options=-c%20jit%3Doff&jit=off",
        "sqlite:///file:shop?mode=memory&cache=shared",
    ],
)
def test_what_client_libraries_know_passes(url: str) -> None:
    parse(url)


def test_an_option_of_mysql() -> None:
    with pytest.raises(ConfigError, match="'unix_socet' in a MySQL URL; did you mean 'unix_socket'"):
        Outbox("mysql://u@localhost/x?unix_socet=/tmp/x").status()


def test_a_folder_that_is_not_there() -> None:
    with pytest.raises(RelayboxError, match=r"there is no folder '/nowhere' for the SQLite database '/nowhere/x\.db'"):
        Outbox("sqlite:////nowhere/x.db").migrate()


def test_sinks_and_sources() -> None:
    with pytest.raises(ConfigError, match=r"unknown kind of sink 'kafak'; did you mean 'kafka'\? expected"):
        sink_from_url("kafak://x")
    with pytest.raises(ConfigError, match=r"unknown kind of source 'nast'; did you mean 'nats'\? expected"):
        source_from_url("nast://x")
    with pytest.raises(ConfigError, match=r"unknown option 'lingr' of KafkaSink; did you mean 'linger'\? known: "):
        sink_from_url("kafka://x?lingr=3ms")
