"""What tests of feeds need besides: the harnesses of brokers and the scripted sink for relays, and dbt."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import make_postgres, rows
from kit.dbt import ROOT, Dbt, DbtProcess

for folder in ("brokers", "relay"):
    sys.path.insert(0, str(Path(__file__).parent.parent / folder))


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
