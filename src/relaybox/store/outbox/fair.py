"""Fair claims: each goes round the tenants of whom something is due and takes the same of each. What is then left over
goes to the rows that have waited longest, so a claim is as full as any other.

The next claim begins behind the last tenant of this one. So nobody waits for more than a round, whatever others have
waiting, and of the tenants that are not looked at nothing is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ...errors import SchemaMissing
from ...op import Op
from ..claims import Claim
from ..schema import Migration, Schema
from .values import ClaimedRow

IDLE = 50  # tenants without anything due that a claim passes over on its way


@dataclass(slots=True)
class TenantRound:
    """Where a claimer stands in its round: behind this tenant."""

    after: str = ""


class FairClaims(Schema):
    def claim_fair(self, claim: Claim, limit: int, at: TenantRound, now: datetime | None) -> Op[list[ClaimedRow]]:
        raise NotImplementedError

    def waiting_of(self, tenant: str, most: int) -> Op[int]:
        """How much waits for a tenant, about, and counted no further than so many."""
        return int((yield self.sql["outbox.fair.waiting"].bind(tenant=tenant, most=most)).rows[0][0])

    # -- the indexes, on request ------------------------------------------------------------------------

    def _fair_indexes(self) -> dict[str, str]:
        """Their names, and the queries that make them."""
        return {f"{self.tables.part('pending')}_tenant": "outbox.fair.index"}

    def fair_plan(self) -> Op[list[Migration]]:
        """What is missing for fair claims. It is no numbered migration: only who wants them has it."""
        there = yield self.sql["schema.indexes"].bind()
        have = {row[1] for row in there.rows}
        return [
            Migration(0, name, self.sql[query].text, "")
            for name, query in self._fair_indexes().items()
            if name not in have
        ]

    def make_fair(self) -> Op[list[Migration]]:
        return (yield from self.locked(self._make_fair()))

    def _make_fair(self) -> Op[list[Migration]]:
        todo = yield from self.fair_plan()
        queries = self._fair_indexes()
        for migration in todo:
            yield self.sql[queries[migration.name]].bind()
        return todo

    def verify_fair(self) -> Op[None]:
        todo = yield from self.fair_plan()
        if todo:
            raise SchemaMissing(
                f"fair claims and caps need the index {todo[0].name}: run `relaybox migrate --fair tenant` or "
                "call migrate(fair='tenant')"
            )
