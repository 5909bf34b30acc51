"""Ordered delivery by shards: only the owner of a shard claims its keys."""

from __future__ import annotations

import pytest

from relaybox import Event
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

    async def test_what_came_lately_is_found_without_a_round(self) -> None:
        """Many keys are passed over, and a round meets all of them. Nothing overtakes what a round would find."""
        await self.own()
        line = Line(self, "shards")
        [a1, a2, c1] = await self.write(*[Event("E", None, key=key) for key in "aac"])
        assert (await line.next(1)).seqs == [a1]
        taken = await line.next(full=["a"])
        assert taken.seqs == [c1]
        await line.settle(Settlement(retry=taken.retries(SECOND * 10), hold=taken.held))
        assert (await line.next(full=["a"])).seqs == []
        assert line.turn.went_round
        [a3, b1, b2, _] = await self.write(*[Event("E", None, key=key) for key in "abbc"])
        line.turn.rests = True
        assert (await line.next(full=["a"])).seqs == [b1, b2]
        assert not line.turn.missed
        assert (await line.next(full=["a"], seconds=11)).seqs == [c1], (
            "of a key of which something came, what may go first"
        )
        assert (await line.next(full=["a"], seconds=11)).seqs == []
        assert line.turn.missed
        line.turn.rests = False
        assert (await line.next(seconds=11)).seqs == [a2, a3]

    async def test_news_do_not_keep_a_round_away(self) -> None:
        await self.own()
        line = Line(self, "shards")
        [a1, c1] = await self.write(*[Event("E", None, key=key) for key in "ac"])
        taken = await line.next()
        assert taken.seqs == [a1, c1]
        await line.settle(Settlement(retry=taken.retries(SECOND * 10), hold=taken.held))
        assert (await line.next(full=["x"])).seqs == []
        found: list[int] = []
        for number in range(3):
            await self.write(Event("E", None, key=f"b{number}"))
            found += (await line.next(full=["x"], seconds=11)).seqs
        assert {a1, c1} <= set(found)

    async def test_only_the_shards_that_are_asked_for(self) -> None:
        acquire = self.store.acquire_shards
        assert await self.run(acquire(1, 9, SHARDS, DAY, T0, [1, 3])) == {1: 1, 3: 1}
        assert await self.run(acquire(2, 9, SHARDS, DAY, T0, [0, 1])) == {0: 1}, "1 has an owner: who wants it waits"
        assert await self.run(acquire(2, 9, SHARDS, DAY, T0, [])) == {}
        assert await self.run(acquire(2, 9, SHARDS, DAY, T0)) == {2: 1}
