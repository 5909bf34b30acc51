"""What tests of feeds share: a table of orders with an outbox, a maintainer, dbt; from other folders the harnesses of
brokers and the scripted sink for relays."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from kit import make_postgres, rows
from kit.dbt import ROOT, Dbt, DbtProcess
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


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DbtProcess]:
    process = DbtProcess(tmp_path_factory.mktemp("dbt") / "dbt.log")
    yield process
    process.kill()


@pytest.fixture
def dbt(process: DbtProcess, tmp_path: Path) -> Dbt:
    url = make_postgres()
    rows(url, (ROOT / "examples" / "dbt" / "shop.sql").read_text())
    return Dbt.of_example(tmp_path, url, process)
