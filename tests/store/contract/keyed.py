"""Ordered delivery by keys: a key is leased under the token of a claim, and nobody waits for anybody."""

from __future__ import annotations

import asyncio

import pytest

from relaybox.errors import ConfigError, UnsupportedByEngine
from relaybox.event import Event
from relaybox.ids import key_hash
from relaybox.op import Op
from relaybox.store.claims import Claim
from relaybox.store.outbox.values import ClaimedRow, KeyChoice, KeyRound, Settlement

from .harness import LEASE, SECOND, T0, Runner, some_events
from .ordered import DAY, SHARDS, Line, OrderedContract

TTL = SECOND * 10


class KeyedContract(OrderedContract):
    @pytest.fixture
    def keyed(self, key_strategy: str) -> Line:
        return Line(self, key_strategy)

    async def leases(self) -> int:
        [[(count,)]] = await self.run(self.raw(f"SELECT count(*) FROM {self.named('lease')}"))
        return int(count)

    async def test_an_engine_that_cannot_lease_keys_says_so(self) -> None:
        if len(self.store.capabilities.order_strategies) > 1:
            return
        with pytest.raises(UnsupportedByEngine, match="PostgreSQL"):
            await self.run(self.store.claim_keys(Claim(1, 1, LEASE), 10, KeyChoice(), KeyRound(), T0))

    async def test_a_key_has_one_holder_until_all_he_claimed_is_settled(self, keyed: Line) -> None:
        a1, b1, a2 = await self.three()
        first = await keyed.next()
        [a3, b2] = await self.write(Event("E", None, key="a"), Event("E", None, key="b"))
        assert (await keyed.next(owner=2)).rows == []
        assert first.seqs == [a1, b1, a2]
        await keyed.settle(Settlement(done=first.held[1:2]))
        assert (await keyed.next(owner=2)).seqs == [b2], "b is finished, whatever becomes of a"
        await keyed.settle(Settlement(done=first.held[:1]))
        assert (await keyed.next(owner=2)).rows == []
        await keyed.settle(Settlement(done=first.held[2:]))
        assert (await keyed.next(owner=2)).seqs == [a3]

    async def test_a_lease_is_renewed_with_its_claim(self, keyed: Line) -> None:
        await self.three()
        first = await keyed.next()
        [a3] = await self.write(Event("E", None, key="a"))
        assert await self.run(self.store.renew(first.held, LEASE, T0 + LEASE / 2)) == set(first.seqs)
        assert (await keyed.next(owner=2, seconds=LEASE.total_seconds())).rows == []
        heir = await keyed.next(owner=2, seconds=LEASE.total_seconds() * 1.5)
        assert heir.seqs == [*first.seqs, a3]

    async def test_a_zombie_keeps_no_part_of_a_key(self, keyed: Line) -> None:
        """The heir claimed only the first of what had expired: the rest is not the zombie's any more all the same."""
        seqs = await self.write(*some_events(3, key="a"))
        zombie = await keyed.next()
        later = LEASE.total_seconds()
        heir = await keyed.next(1, owner=2, seconds=later)
        assert (zombie.seqs, heir.seqs) == (seqs, seqs[:1])
        assert await keyed.settle(Settlement(done=zombie.held[1:]), seconds=later) == 2
        assert await self.run(self.store.renew(zombie.held, LEASE, T0 + LEASE)) == set()
        assert await keyed.settle(Settlement(done=heir.held), seconds=later) == 0
        assert (await keyed.next(owner=2, seconds=later)).seqs == seqs[1:]

    async def test_the_tail_of_a_key_that_was_cut_stays_with_its_holder(self, keyed: Line) -> None:
        seqs = await self.write(*some_events(10, key="a"))
        first = await keyed.next(4)
        assert first.seqs == seqs[:4]
        assert (await keyed.next(owner=2)).rows == []
        assert keyed.turn.busy
        await keyed.settle(Settlement(done=first.held))
        assert (await keyed.next(owner=2)).seqs == seqs[4:]

    async def test_keys_and_rows_per_claim_are_bounded(self, keyed: Line) -> None:
        await self.write(*[Event("E", None, key=f"k{n % 20}") for n in range(60)])
        few = await keyed.next(100, choice=KeyChoice(candidates=10, keys=4))
        assert len(few.rows) == 12
        assert len({event.key for event in few.events}) == 4
        assert (keyed.turn.tried, keyed.turn.taken) == (4, 4)
        short = await keyed.next(5)
        assert len(short.rows) == 5
        assert await self.leases() == 4 + 2, "a key that gave nothing is free"

    async def test_a_round_serves_every_key_once(self, keyed: Line) -> None:
        """Whatever the front is busy with: a claim goes on where the last one ended."""
        await self.write(*[Event("E", None, key=f"k{n % 100}") for n in range(300)])
        served: list[str | None] = []
        for _ in range(20):
            taken = await keyed.next(15, choice=KeyChoice(keys=5))
            served += sorted({event.key for event in taken.events}, key=lambda key: key_hash(key or ""))
            await keyed.settle(Settlement(done=taken.held))
            await self.write(*[Event("E", None, key=event.key) for event in taken.events])
        assert len(served) == len(set(served)) == 100
        assert served == sorted(served, key=lambda key: key_hash(key or ""))

    async def test_many_claimers_share_the_keys(self, keyed: Line) -> None:
        """At once and from several connections: no key goes to two, none is left, and order holds."""
        await self.write(*[Event("E", None, key=f"k{n % 60}") for n in range(240)])
        holders: dict[str, int] = {}
        got: dict[str, list[int]] = {f"k{n}": [] for n in range(60)}

        async def work(db: Runner, owner: int) -> None:
            turn = KeyRound()
            while True:
                taken = await keyed.next(20, owner=owner, turn=turn, db=db, choice=KeyChoice(candidates=20, keys=5))
                if not taken.rows:
                    return
                for event in taken.events:
                    assert holders.setdefault(event.key or "", owner) == owner
                    got[event.key or ""].append(event.seq or 0)
                for key in {event.key for event in taken.events}:
                    del holders[key or ""]
                assert await keyed.settle(Settlement(done=taken.held)) == 0

        await asyncio.gather(*(work(db, n) for n, db in enumerate([self.db, self.another(), self.another()], 1)))
        assert [len(seqs) for seqs in got.values()] == [4] * 60
        assert all(seqs == sorted(seqs) for seqs in got.values())
        assert await self.leases() == 0

    async def test_the_keys_of_a_dead_instance_are_free_at_once(self, keyed: Line) -> None:
        dead = await self.run(self.store.register("dead", "relay", TTL, T0))
        await self.three()
        lost = await keyed.next(owner=dead, lease=LEASE * 99)
        assert await self.run(self.store.take_over(None, T0 + TTL + SECOND)) == (1, 3)
        assert await self.leases() == 0
        heir = await keyed.next(owner=dead + 1, seconds=11)
        assert (heir.seqs, heir.attempts) == (lost.seqs, [2, 2, 2])
        assert await keyed.settle(Settlement(done=lost.held)) == 3
        assert (await keyed.next(owner=dead + 2, seconds=11)).rows == []

    async def test_a_lease_without_a_claim_holds_nobody(self, keyed: Line) -> None:
        """A settle that did not say which leases end leaves them behind: the next claim takes the key all the same."""
        me = await self.run(self.store.register("me", "relay", TTL, T0))
        await self.three()
        taken = await keyed.next(owner=me)
        assert await self.run(self.store.settle(Settlement(done=taken.held, ordered=True), T0)) == 0
        assert await self.leases() == 2
        seqs = await self.write(Event("E", None, key="a"))
        assert (await keyed.next(owner=me)).seqs == seqs
        await self.run(self.store.take_over(None, T0))
        assert await self.leases() == 1

    async def test_two_strategies_do_not_mix(self, keyed: Line) -> None:
        """While keys are leased nobody gets a shard, and while shards are owned nobody gets a key, and is told why."""
        acquire = self.store.acquire_shards
        await self.three()
        taken = await keyed.next()
        assert await self.run(acquire(2, SHARDS, SHARDS, DAY, T0)) == {}
        await keyed.settle(Settlement(done=taken.held))
        assert len(await self.run(acquire(2, SHARDS, SHARDS, DAY, T0))) == SHARDS
        await self.write(*some_events(4))
        with pytest.raises(ConfigError, match=r"order\.strategy"):
            await keyed.next()
        assert len((await self.take(owner=2, shards=SHARDS)).rows) == 4

    async def test_nothing_to_claim(self, keyed: Line) -> None:
        def nothing() -> Op[list[ClaimedRow]]:
            return self.store.claim_keys(Claim(1, 1, LEASE), 0, KeyChoice(), KeyRound(), T0)

        await self.three()
        assert await self.run(nothing()) == []
        await keyed.settle(Settlement(done=(await keyed.next()).held))
        assert (await keyed.next()).rows == []
        assert (keyed.turn.after, keyed.turn.tried, keyed.turn.busy) == (-1, 0, False)
