"""Database URLs: what is understood, what is refused, what is never shown."""

from __future__ import annotations

import pytest

from relaybox.drivers.urls import parse
from relaybox.errors import ConfigError
from relaybox.redaction import masked


@pytest.mark.parametrize(
    ("url", "dialect", "driver", "bare"),
    [
        ("postgresql://u@h:5/db", "postgres", None, "postgresql://u@h:5/db"),
        ("postgres+psycopg://h/db?sslmode=require", "postgres", "psycopg", "postgresql://h/db?sslmode=require"),
        ("mariadb+asyncmy://u:p@h/db", "mysql", "asyncmy", "mysql://u:p@h/db"),
        ("sqlite:///shop.db", "sqlite", None, "shop.db"),
        ("sqlite:////var/shop.db", "sqlite", None, "/var/shop.db"),
        ("sqlite://:memory:", "sqlite", None, ":memory:"),
    ],
)
def test_parse(url: str, dialect: str, driver: str | None, bare: str) -> None:
    found = parse(url)
    assert (found.dialect, found.driver, found.bare) == (dialect, driver, bare)


@pytest.mark.parametrize(
    "url",
    ["oracle://h/db", "shop.db", "", "sqlite://shop.db", "mysql:///db", "postgresql://[::1/x", "mysql://h:none/db"],
)
def test_what_is_not_a_database_url_is_one_clear_error(url: str) -> None:
    with pytest.raises(ConfigError):
        parse(url)


@pytest.mark.parametrize(
    "url", ["postgresql://u:s3cret@h/db", "postgresql://h/db?password=s3cret&x=1", "oracle://u:s3cret@h/db"]
)
def test_a_password_is_never_shown(url: str) -> None:
    assert "s3cret" not in masked(url)
    try:
        shown = repr(parse(url))
    except ConfigError as error:
        shown = str(error)
    assert "s3cret" not in shown
