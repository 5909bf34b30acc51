"""dbt, for the tests that run it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit import make_postgres, rows
from kit.dbt import ROOT, Dbt, DbtProcess


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
