"""Relays of feeds are tested with the harnesses of brokers, and with the scripted sink; feeds that are refreshed by
themselves on a table of orders."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from kit import make_postgres
from kit.feeds import Upkeep
from relaybox import Outbox

for folder in ("brokers", "relay"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))


@pytest.fixture
def url() -> str:
    url = make_postgres()
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("CREATE TABLE orders (id integer PRIMARY KEY, customer integer NOT NULL, amount numeric)")
        owner.execute("CREATE INDEX ON orders (customer)")
        owner.execute("INSERT INTO orders SELECT g, g % 10, g FROM generate_series(1, 100) g")
    return url


@pytest.fixture
def box(url: str) -> Iterator[Outbox]:
    with Outbox(url) as box:
        yield box


@pytest.fixture
def upkeep(url: str) -> Upkeep:
    return Upkeep(url)
