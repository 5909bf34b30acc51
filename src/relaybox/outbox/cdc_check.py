"""`relaybox cdc check`: what keeps a connector from starting, or endangers what it reads.

Ask as the connector's own role. A look changes nothing; `critical` means that the connector stops or misses events.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from ..drivers.spi import Runner
from ..errors import StoreError
from ..op import Op, run
from ..store.doctor import Finding
from ..store.outbox import OutboxStore


def examine(database: Runner, store: OutboxStore, *, mariadb: bool = False) -> list[Finding]:
    """`mariadb`: which of the two connectors the URL asks for."""
    with database.connection() as connection:
        return run(checkup(store, mariadb=mariadb), connection)


def checkup(store: OutboxStore, *, mariadb: bool = False) -> Op[list[Finding]]:
    answer = yield store.sql["cdc.facts"].bind()
    facts = {str(name).lower(): str(value) for name, value in answer.rows}
    facts["connector"] = "mariadb" if mariadb else store.dialect
    dialect = import_module(f"relaybox.store.outbox.{store.dialect}.cdc")  # its own judge, as the doctor asks
    findings: list[Finding] = yield from dialect.judge(store, facts)
    with suppress(StoreError):  # no table yet, or none that this role may read: said above
        unroutable = yield store.sql["cdc.unroutable"].bind()
        findings.append(_routes(int(unroutable.rows[0][0])))
    return findings


def _routes(unroutable: int) -> Finding:
    if unroutable:
        return Finding(
            "critical",
            "routes",
            f"{unroutable} of the newest 1,000 events have no aggregate type: routing by it stops the connector there",
            "write to this table with Outbox(cdc=True) alone, or make the connector with --route-by event_type",
        )
    return Finding("ok", "routes", "the newest events can be routed")
