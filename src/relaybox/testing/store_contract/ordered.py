"""Ordered delivery: only the owner of a shard claims its keys, and a failed head holds its own key only."""

from __future__ import annotations

from ...event import Event
from ...ids import shard_of
from ...store.spi import Settlement
from .harness import LEASE, SECOND, T0, Harness, Taken, some_events

SHARDS = 4
DAY = LEASE * 2_880


class OrderedContract(Harness):
    async def own(self, owner: int = 1, want: int = SHARDS) -> set[int]:
        return set(await self.run(self.store.acquire_shards(owner, want, SHARDS, DAY, T0)))

    async def next(self, limit: int = 100, *, seconds: float = 0, owner: int = 1) -> Taken:
        return await self.take(limit, owner=owner, shards=SHARDS, now=T0 + SECOND * seconds)

    async def settle(self, settlement: Settlement) -> int:
        return await self.run(self.store.settle(settlement._replace(ordered=True), T0))

    async def three(self) -> tuple[int, int, int]:
        """Two events of key a around one of key b."""
        [a1, b1, a2] = await self.write(*[Event("E", None, key=key) for key in ("a", "b", "a")])
        return a1, b1, a2

    async def failed_head(self) -> tuple[int, int, int]:
        """The same, with b done and the first of a held back for a retry in ten seconds."""
        a1, b1, a2 = await self.three()
        taken = await self.next()
        assert taken.seqs == [a1, b1, a2]
        [ha1, hb1, ha2] = taken.held
        await self.settle(Settlement(retry=taken.retries(SECOND * 10)[:1], hold=[ha1], done=[hb1]))
        await self.run(self.store.release([ha2], T0))
        return a1, b1, a2

    async def test_only_the_owner_of_a_shard_claims_its_keys(self) -> None:
        events = some_events(24)
        seqs = await self.write(*events)
        assert (await self.next()).rows == [], "owns nothing yet"
        mine, rest = await self.own(1, 2), await self.own(2)
        assert mine | rest == set(range(SHARDS))
        for owner, shards in ((1, mine), (2, rest)):
            want = [s for s, e in zip(seqs, events, strict=True) if shard_of(e.key or "", SHARDS) in shards]
            assert (await self.next(owner=owner)).seqs == want

    async def test_an_expired_shard_gives_no_claims(self) -> None:
        await self.own()
        await self.three()
        assert (await self.take(owner=1, shards=SHARDS, now=T0 + DAY + SECOND)).rows == []

    async def test_the_limit_and_the_lease_hold_here_too(self) -> None:
        await self.own()
        a1, b1, a2 = await self.three()
        assert (await self.next(2)).seqs == [a1, b1]
        assert (await self.next()).seqs == [a2]
        assert (await self.next()).rows == []
        again = await self.next(seconds=LEASE.total_seconds())
        assert (again.seqs, again.attempts) == ([a1, b1, a2], [2, 2, 2])

    async def test_a_failed_head_holds_its_key_and_no_other(self) -> None:
        await self.own()
        a1, _, a2 = await self.failed_head()
        [b2] = await self.write(Event("E", None, key="b"))
        assert (await self.next()).seqs == [b2]
        head = await self.next(seconds=10)
        assert head.seqs == [a1], "the rest of the key waits although it is due"
        await self.settle(Settlement(done=head.held))
        assert (await self.next(seconds=10)).seqs == [a2]
        assert await self.run(self.store.blocked(10)) == []

    async def test_events_written_later_wait_too(self) -> None:
        await self.own()
        await self.failed_head()
        await self.write(Event("E", None, key="a"))
        assert (await self.next()).rows == []

    async def test_blocked_lists_what_waits_and_why(self) -> None:
        await self.own()
        a1, _, _ = await self.failed_head()
        [blocked] = await self.run(self.store.blocked(10))
        assert (blocked.key, blocked.parked, blocked.since) == ("a", False, T0)
        assert (blocked.attempts, blocked.error) == (1, "bad")
        head = await self.next(seconds=10)
        assert head.seqs == [a1]
        assert blocked.event_id == head.ids[0]

    async def test_the_lowest_head_is_the_one_that_holds(self) -> None:
        await self.own()
        a1, b1, a2 = await self.three()
        taken = await self.next()
        await self.settle(Settlement(retry=taken.retries(SECOND), hold=taken.held))
        assert (await self.next(seconds=1)).seqs == [a1, b1]
        blocked = await self.run(self.store.blocked(10))
        assert sorted((b.key or "", b.event_id) for b in blocked) == [("a", taken.ids[0]), ("b", taken.ids[1])]
        assert a2 not in (await self.next(seconds=2)).seqs

    async def test_a_claim_that_never_arrived_is_given_back_untried(self) -> None:
        await self.own()
        await self.three()
        [lost, kept] = [await self.next(2), await self.next()]
        assert await self.run(self.store.abandon([lost.claim], T0)) == 2
        again = await self.next()
        assert (again.seqs, again.attempts) == (lost.seqs, [1, 1])
        assert await self.settle(Settlement(done=lost.held)) == 2
        assert await self.settle(Settlement(done=[*again.held, *kept.held])) == 0

    async def test_a_zombie_does_not_free_a_key_that_waits(self) -> None:
        """Its claim ended, the next owner's attempt failed, and only then it comes with a success."""
        await self.own()
        _, b1, a2 = await self.three()
        zombie = await self.next()
        later = LEASE.total_seconds()
        heir = await self.next(seconds=later)
        assert heir.seqs == zombie.seqs
        await self.settle(Settlement(retry=heir.retries(LEASE * 9)[:1], hold=heir.held[:1]))
        await self.run(self.store.release(heir.held[1:], T0))
        assert await self.settle(Settlement(done=zombie.held[:1])) == 1
        assert await self.settle(Settlement(dead=zombie.deaths()[:1])) == 1
        again = await self.next(seconds=later)
        assert (again.seqs, a2 in again.seqs) == ([b1], False)

    async def test_a_settle_repeated_later_does_not_hold_again(self) -> None:
        """Its reply was lost; before it came again, an operator let the key go on."""
        await self.own()
        await self.three()
        taken = await self.next()
        settlement = Settlement(retry=taken.retries(SECOND * 10)[:1], hold=taken.held[:1])
        assert await self.settle(settlement) == 0
        assert await self.run(self.store.unblock("a"))
        assert await self.settle(settlement) == 1
        assert await self.run(self.store.blocked(10)) == []

    async def park(self) -> tuple[int, int]:
        await self.own()
        a1, _, a2 = await self.three()
        taken = await self.next()
        settlement = Settlement(dead=taken.deaths()[:1], park=taken.held[:1], done=taken.held[1:2])
        assert await self.settle(settlement) == 0
        await self.run(self.store.release(taken.held[2:], T0))
        return a1, a2

    async def test_a_parked_key_waits_for_an_operator(self) -> None:
        _, a2 = await self.park()
        assert (await self.next(seconds=3_600)).rows == []
        [blocked] = await self.run(self.store.blocked(10))
        assert (blocked.key, blocked.parked, blocked.error) == ("a", True, "hopeless")
        assert await self.run(self.store.unblock("a"))
        assert not await self.run(self.store.unblock("a"))
        assert (await self.next()).seqs == [a2]

    async def test_a_replayed_head_goes_before_the_rest_of_its_key(self) -> None:
        a1, a2 = await self.park()
        assert await self.run(self.store.replay([a1], T0, T0)) == [a1]
        head = await self.next()
        assert head.seqs == [a1]
        await self.settle(Settlement(done=head.held))
        assert (await self.next()).seqs == [a2]

    async def test_a_skipped_head_frees_its_key(self) -> None:
        await self.own()
        a1, _, a2 = await self.failed_head()
        head = await self.next(seconds=10)
        assert head.seqs == [a1]
        await self.settle(Settlement(dead=head.deaths()))
        assert (await self.next(seconds=10)).seqs == [a2]

    async def test_purging_the_dead_head_frees_its_key(self) -> None:
        _, a2 = await self.park()
        assert await self.run(self.store.purge_dead(T0 + SECOND, 10)) == 1
        assert (await self.next()).seqs == [a2]
        assert await self.run(self.store.blocked(10)) == []

    async def test_an_event_without_a_key_holds_nobody(self) -> None:
        await self.own()
        seqs = await self.write(Event("E", None), Event("E", None), Event("E", None))
        taken = await self.next()
        assert taken.seqs == seqs
        await self.settle(Settlement(retry=taken.retries(SECOND * 9)[:1], hold=taken.held[:1]))
        await self.run(self.store.release(taken.held[1:], T0))
        assert (await self.next()).seqs == seqs[1:]
