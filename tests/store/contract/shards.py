"""Ordered delivery by shards: only the owner of a shard claims its keys."""

from __future__ import annotations

import pytest

from relaybox.ids import shard_of
from relaybox.store.outbox.values import Settlement

from .harness import LEASE, SECOND, T0, some_events
from .ordered import DAY, SHARDS, Line, OrderedContract


class ShardContract(OrderedContract):
    async def own(self, owner: int = 1, want: int = SHARDS) -> set[int]:
        return set(await self.run(self.store.acquire_shards(owner, want, SHARDS, DAY, T0)))

    @pytest.mark.parametrize("held", [False, True])
    async def test_only_the_owner_of_a_shard_claims_its_keys(self, held: bool) -> None:
        """Also while some key waits for its head, when claims go another way."""
        line = Line(self, "shards")
        if held:
            await self.own()
            await self.three()
            taken = await line.next()
            await line.settle(Settlement(retry=taken.retries(DAY), hold=taken.held))
            await self.run(self.store.release_shards(1, range(SHARDS)))
        events = some_events(24)
        seqs = await self.write(*events)
        assert (await line.next()).rows == [], "owns nothing yet"
        mine, rest = await self.own(1, 2), await self.own(2)
        assert mine | rest == set(range(SHARDS))
        for owner, shards in ((1, mine), (2, rest)):
            want = [s for s, e in zip(seqs, events, strict=True) if shard_of(e.key or "", SHARDS) in shards]
            assert (await line.next(owner=owner)).seqs == want

    async def test_an_expired_shard_gives_no_claims(self) -> None:
        await self.own()
        await self.three()
        assert (await self.take(owner=1, shards=SHARDS, now=T0 + DAY + SECOND)).rows == []

    async def test_shard_claims_keep_their_limit_and_their_lease(self) -> None:
        await self.own()
        line = Line(self, "shards")
        a1, b1, a2 = await self.three()
        assert (await line.next(2)).seqs == [a1, b1]
        assert (await line.next()).seqs == [a2]
        assert (await line.next()).rows == []
        again = await line.next(seconds=LEASE.total_seconds())
        assert (again.seqs, again.attempts) == ([a1, b1, a2], [2, 2, 2])

    async def test_only_the_shards_that_are_asked_for(self) -> None:
        acquire = self.store.acquire_shards
        assert await self.run(acquire(1, 9, SHARDS, DAY, T0, [1, 3])) == {1: 1, 3: 1}
        assert await self.run(acquire(2, 9, SHARDS, DAY, T0, [0, 1])) == {0: 1}, "1 has an owner: who wants it waits"
        assert await self.run(acquire(2, 9, SHARDS, DAY, T0, [])) == {}
        assert await self.run(acquire(2, 9, SHARDS, DAY, T0)) == {2: 1}
