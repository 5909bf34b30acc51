"""The store contract: what every store must do over every driver, as tests to inherit. Needs pytest-asyncio.

    class TestMine(StoreContract):
        def connect(self): return open_async("postgresql://localhost/test")
        def make_store(self, tables): return MyStore(tables)

Each test makes tables of its own, so one database serves them all. Times are given, nothing sleeps.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    *(
        f"{__name__}.{part}"
        for part in ("write", "claim", "settle", "instances", "ordered", "shards", "keyed", "schema")
    )
)

from .claim import ClaimContract  # noqa: E402
from .harness import Harness, Runner  # noqa: E402
from .instances import InstanceContract  # noqa: E402
from .keyed import KeyedContract  # noqa: E402
from .schema import SchemaContract  # noqa: E402
from .settle import SettleContract  # noqa: E402
from .shards import ShardContract  # noqa: E402
from .write import WriteContract  # noqa: E402

__all__ = ["Harness", "Runner", "StoreContract"]


class StoreContract(
    WriteContract, ClaimContract, SettleContract, InstanceContract, ShardContract, KeyedContract, SchemaContract
):
    pass
