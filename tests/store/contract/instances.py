"""Who is alive, and who owns which shard: a dead process loses its claims, and two never own one shard."""

from __future__ import annotations

import asyncio
from datetime import UTC

import pytest

from relaybox.errors import ConfigError
from relaybox.ids import shard_of
from relaybox.store.outbox.values import Settlement

from .harness import LEASE, SECOND, T0, Harness, Runner, some_events

TTL = SECOND * 10


class InstanceContract(Harness):
    async def register(self, name: str = "me") -> int:
        return await self.run(self.store.register(name, "multi", TTL, T0))

    async def test_an_instance_lives_while_it_beats(self) -> None:
        me, other = await self.register("me"), await self.register("other")
        assert me != other
        [mine] = [one for one in await self.run(self.store.instances(T0)) if one.id == me]
        assert (mine.id, mine.name, mine.role, mine.started_at) == (me, "me", "multi", T0)
        assert (mine.expires_at, mine.expires_at.tzinfo) == (T0 + TTL, UTC)
        assert await self.run(self.store.beat(me, TTL, T0 + SECOND))
        late = T0 + TTL + SECOND / 2
        assert [instance.id for instance in await self.run(self.store.instances(late))] == [me]
        await self.run(self.store.retire(me, late))
        assert await self.run(self.store.instances(late)) == []
        assert not await self.run(self.store.beat(me, TTL, late))

    async def test_retiring_frees_what_was_held_at_once(self) -> None:
        me, other = await self.register("me"), await self.register("other")
        await self.write(*some_events(3))
        mine, theirs = await self.take(2, owner=me), await self.take(owner=other)
        assert await self.run(self.store.retire(me, T0)) == 2
        assert await self.run(self.store.retire(me, T0)) == 0
        assert await self.run(self.store.settle(Settlement(done=mine.held), T0)) == 2
        assert await self.run(self.store.verify(theirs.held)) == set(theirs.seqs)
        assert (await self.take(owner=other)).seqs == mine.seqs

    async def test_the_same_beat_twice_is_alive_both_times(self) -> None:
        """Engines that count only changed rows must not take an unchanged one for a missing one."""
        me = await self.register()
        assert await self.run(self.store.beat(me, TTL, T0))
        assert await self.run(self.store.beat(me, TTL, T0))

    async def test_an_owner_name_must_fit(self) -> None:
        await self.run(self.store.register("ü" * 128, "multi", TTL, T0))
        for name in ("", "x" * 129):
            with pytest.raises(ConfigError):
                await self.run(self.store.register(name, "multi", TTL, T0))

    async def test_the_claims_of_a_dead_instance_are_free_at_once(self) -> None:
        dead, alive = await self.register("dead"), await self.register("alive")
        await self.write(*some_events(4))
        lost = await self.take(2, owner=dead, lease=LEASE * 99)
        kept = await self.take(owner=alive, lease=LEASE * 99)
        assert await self.run(self.store.take_over(None, T0)) == (0, 0)
        late = T0 + TTL + SECOND
        assert await self.run(self.store.beat(alive, TTL, T0 + TTL))
        assert await self.run(self.store.take_over(None, late)) == (1, 2)
        assert await self.run(self.store.take_over(None, late)) == (0, 0)
        assert await self.run(self.store.settle(Settlement(done=lost.held), late)) == 2
        assert await self.run(self.store.verify(kept.held)) == set(kept.seqs)
        again = await self.take(owner=alive, now=late)
        assert (again.seqs, again.attempts) == (lost.seqs, [2, 2])
        assert not await self.run(self.store.beat(dead, TTL, late)), "it must learn that it was declared dead"

    async def test_a_sole_survivor_takes_over_from_the_living_too(self) -> None:
        """A single node that starts frees whatever its former lives had claimed, without waiting."""
        former, me = await self.register("former"), await self.register("me")
        await self.write(*some_events(3))
        lost = await self.take(2, owner=former)
        kept = await self.take(owner=me)
        assert await self.run(self.store.take_over(me, T0, alone=True)) == (1, 2)
        assert await self.run(self.store.verify(kept.held)) == set(kept.seqs)
        assert (await self.take(owner=me)).seqs == lost.seqs
        assert [instance.id for instance in await self.run(self.store.instances(T0))] == [me]

    async def test_concurrent_take_overs_free_each_claim_once(self) -> None:
        dead = await self.register("dead")
        await self.write(*some_events(5))
        await self.take(owner=dead)
        late = T0 + TTL + SECOND
        runners = [self.db, self.another(), self.another()]
        freed = await asyncio.gather(*(db.persist(lambda: self.store.take_over(None, late)) for db in runners))
        assert sum(instances for instances, _ in freed) == 1
        assert sum(rows for _, rows in freed) == 5

    async def test_shards_are_taken_renewed_and_given_back(self) -> None:
        acquire, renew = self.store.acquire_shards, self.store.renew_shards
        assert await self.run(acquire(1, 3, 8, TTL, T0)) == {0: 1, 1: 1, 2: 1}
        assert await self.run(acquire(2, 99, 8, TTL, T0)) == {3: 1, 4: 1, 5: 1, 6: 1, 7: 1}
        assert await self.run(acquire(3, 99, 8, TTL, T0)) == {}
        assert await self.run(renew(1, TTL, T0 + SECOND)) == {0: 1, 1: 1, 2: 1}
        await self.run(self.store.release_shards(1, [0, 2, 5]))
        assert await self.run(renew(1, TTL, T0 + SECOND)) == {1: 1}
        assert await self.run(acquire(3, 99, 8, TTL, T0 + SECOND)) == {0: 2, 2: 2}, "5 is not 1's to give"

    async def test_a_term_rises_with_each_owner(self) -> None:
        for term in (1, 2, 3):
            now = T0 + (TTL + SECOND) * term
            assert await self.run(self.store.acquire_shards(term, 1, 1, TTL, now)) == {0: term}

    async def test_an_expired_shard_cannot_be_renewed(self) -> None:
        await self.run(self.store.acquire_shards(1, 2, 2, TTL, T0))
        late = T0 + TTL + SECOND
        assert await self.run(self.store.renew_shards(1, TTL, late)) == {}
        assert await self.run(self.store.acquire_shards(2, 2, 2, TTL, late)) == {0: 2, 1: 2}
        assert await self.run(self.store.renew_shards(1, TTL, late)) == {}

    async def test_who_lives_keeps_its_shards_however_late_it_is(self) -> None:
        """A renewal that came too late took nothing from anybody: what was claimed from these shards is under way."""
        me, other = await self.register("me"), await self.register("other")
        acquire, renew = self.store.acquire_shards, self.store.renew_shards
        assert len(await self.run(acquire(me, 4, 4, TTL, T0))) == 4
        await self.write(*some_events(5))
        mine = await self.take(owner=me, shards=4, lease=LEASE * 99)
        late = T0 + TTL + SECOND
        assert await self.run(acquire(other, 4, 4, TTL, late)) == {}
        assert await self.run(self.store.take_over(me, late)) == (1, 0), "the other one is silent too, and not me"
        assert await self.run(renew(me, TTL, late)) == dict.fromkeys(range(4), 1)
        assert await self.run(self.store.settle(Settlement(done=mine.held), late)) == 0

    async def test_a_shard_is_free_when_its_owner_was_declared_dead(self) -> None:
        me, other = await self.register("me"), await self.register("other")
        await self.run(self.store.acquire_shards(me, 2, 2, TTL, T0))
        late = T0 + TTL + SECOND
        assert await self.run(self.store.beat(other, TTL, late))
        assert (await self.run(self.store.take_over(other, late)))[0] == 1
        assert await self.run(self.store.renew_shards(me, TTL, late)) == {}
        assert await self.run(self.store.acquire_shards(other, 2, 2, TTL, late)) == {0: 2, 1: 2}

    async def test_two_instances_never_own_one_shard(self) -> None:
        runners = [self.db, self.another(), self.another()]
        await self.run(self.store.acquire_shards(9, 0, 16, TTL, T0))

        async def grab(db: Runner, owner: int) -> set[int]:
            mine: set[int] = set()
            for _ in range(6):
                mine |= set(await db.persist(lambda: self.store.acquire_shards(owner, 2, 16, TTL, T0)))
            return mine

        shares = await asyncio.gather(*(grab(db, n) for n, db in enumerate(runners, 1)))
        assert sum(len(share) for share in shares) == len(set().union(*shares))
        for owner, share in enumerate(shares, 1):
            assert set(await self.run(self.store.renew_shards(owner, TTL, T0))) == share

    async def test_taking_a_shard_over_frees_what_its_former_owner_claimed(self) -> None:
        await self.run(self.store.acquire_shards(1, 4, 4, TTL, T0))
        events = some_events(20)
        seqs = await self.write(*events)
        former = await self.take(owner=1, shards=4, lease=LEASE * 99)
        assert former.seqs == seqs
        late = T0 + TTL + SECOND
        taken = await self.run(self.store.acquire_shards(2, 2, 4, TTL, late))
        theirs = [s for s, e in zip(seqs, events, strict=True) if shard_of(e.key or "", 4) in taken]
        assert 0 < len(theirs) < 20
        refused = await self.run(self.store.settle(Settlement(done=[h for h in former.held if h.seq in theirs]), late))
        assert refused == len(theirs)
        assert (await self.take(owner=2, shards=4, now=late)).seqs == theirs
