"""Ordered delivery, whichever way keys are shared out: one holder per key, and a failed head holds its own key only."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import timedelta
from typing import Literal, cast

import pytest
import pytest_asyncio

from relaybox.event import Event
from relaybox.ids import key_hash, new_token
from relaybox.op import Op
from relaybox.store.claims import Claim, HeldRow
from relaybox.store.outbox.values import ClaimedRow, KeyChoice, KeyLease, KeyRound, Known, Settlement

from .harness import LEASE, SECOND, T0, Harness, Runner, Taken

SHARDS = 4
DAY = LEASE * 2_880
CHOICE = KeyChoice()


class Line:
    """One strategy as the tests see it. Like a source it settles a key's lease together with the last of the key."""

    def __init__(self, contract: Harness, strategy: str) -> None:
        self.contract = contract
        self.store = contract.store
        self.strategy = strategy
        self.turn = KeyRound()
        self._rest: dict[KeyLease, set[int]] = defaultdict(set)

    async def next(
        self,
        limit: int = 100,
        *,
        seconds: float = 0,
        owner: int = 1,
        lease: timedelta = LEASE,
        choice: KeyChoice = CHOICE,
        turn: KeyRound | None = None,
        known: Known | None = None,
        full: Collection[str] = (),
        db: Runner | None = None,
    ) -> Taken:
        """`full`: keys of which nothing is wanted; by shards only."""
        claim, now = Claim(owner, new_token(), lease), T0 + SECOND * seconds

        def attempt() -> Op[list[ClaimedRow]]:
            if self.strategy == "shards":
                past = frozenset(map(key_hash, full))
                return self.store.claim_ordered(claim, limit, SHARDS, now, turn or self.turn, past, known=known)
            by = cast(Literal["advisory", "rows"], self.strategy)
            return self.store.claim_keys(claim, limit, choice._replace(by=by), turn or self.turn, now)

        tx = self.strategy != "shards" or not self.store.capabilities.single_statement
        taken = Taken(claim, await (db or self.contract.db).persist(attempt, tx=tx))
        for row in taken.rows:
            if row.key_hash is not None:
                self._rest[KeyLease(row.key_hash, claim.token)].add(row.row[0])
        return taken

    async def settle(self, settlement: Settlement, *, seconds: float = 0) -> int:
        gone = [
            HeldRow(*outcome[:2]) for part in (settlement.done, settlement.retry, settlement.dead) for outcome in part
        ]
        settlement = settlement._replace(ordered=True, free=self._leaving(gone))
        return await self.contract.run(self.store.settle(settlement, T0 + SECOND * seconds))

    async def release(self, held: Sequence[HeldRow], *, seconds: float = 0) -> int:
        return await self.contract.run(self.store.release(held, T0 + SECOND * seconds, self._leaving(held)))

    def _leaving(self, gone: Sequence[HeldRow]) -> list[KeyLease]:
        ended = []
        for lease, rest in list(self._rest.items()):
            rest -= {held.seq for held in gone if held.token == lease.token}
            if not rest:
                ended.append(lease)
                del self._rest[lease]
        return ended


class OrderedContract(Harness):
    @pytest_asyncio.fixture
    async def line(self, strategy: str) -> AsyncIterator[Line]:
        if strategy == "shards":
            await self.run(self.store.acquire_shards(1, SHARDS, SHARDS, DAY, T0))
        yield Line(self, strategy)

    async def three(self) -> tuple[int, int, int]:
        """Two events of key a around one of key b."""
        [a1, b1, a2] = await self.write(*[Event("E", None, key=key) for key in ("a", "b", "a")])
        return a1, b1, a2

    async def failed_head(self, line: Line) -> tuple[int, int, int]:
        """The same, with b done and the first of a held back for a retry in ten seconds."""
        a1, b1, a2 = await self.three()
        taken = await line.next()
        assert taken.seqs == [a1, b1, a2]
        [ha1, hb1, ha2] = taken.held
        await line.settle(Settlement(retry=taken.retries(SECOND * 10)[:1], hold=[ha1], done=[hb1]))
        await line.release([ha2])
        return a1, b1, a2

    async def test_all_keys_at_once_and_each_in_its_order(self, line: Line) -> None:
        seqs = await self.write(*[Event("E", None, key=f"k{n % 7}") for n in range(60)])
        taken = await line.next()
        assert (taken.seqs, taken.attempts) == (seqs, [1] * 60)
        assert (await line.next(owner=2)).rows == []
        assert await line.settle(Settlement(done=taken.held)) == 0

    async def test_what_a_bulk_write_left_goes_before_later_events(self, line: Line) -> None:
        """A waiting batch on PostgreSQL, rows elsewhere."""
        early = await self.write(*[Event("E", None, key=f"k{n % 50}") for n in range(300)], copy=await self.db.copies())
        late = await self.write(*[Event("E", None, key=f"k{n}") for n in range(50)])
        got: dict[str, list[int]] = defaultdict(list)
        while taken := await line.next(70):
            if not taken.rows:
                break
            for event in taken.events:
                got[event.key or ""].append(event.seq or 0)
            await line.settle(Settlement(done=taken.held))
        assert sorted(seq for seqs in got.values() for seq in seqs) == [*early, *late]
        assert [key for key, seqs in got.items() if seqs != sorted(seqs)] == []

    async def test_a_delayed_event_does_not_hold_its_key(self, line: Line) -> None:
        [late, now] = await self.write(Event("E", None, key="a", deliver_at=T0 + SECOND), Event("E", None, key="a"))
        taken = await line.next()
        assert taken.seqs == [now]
        await line.settle(Settlement(done=taken.held))
        assert (await line.next(seconds=1)).seqs == [late]

    async def test_a_clock_set_back_does_not_reorder_what_is_written(self, line: Line) -> None:
        [first] = await self.write(Event("E", None, key="a"), now=T0 + SECOND)
        bulk = [Event("E", None, key="a") for _ in range(300)]
        bulky = await self.write(*bulk, now=T0 + SECOND, copy=await self.db.copies())
        [last] = await self.write(Event("E", None, key="a"))
        assert (await line.next(1_000)).seqs == [first, *bulky, last]

    async def test_a_clock_set_back_does_not_reorder_what_was_given_back(self, line: Line) -> None:
        a1, b1, a2 = await self.three()
        taken = await line.next(seconds=1)
        assert await line.release(taken.held, seconds=2) == 3
        [a3] = await self.write(Event("E", None, key="a"))
        taken = await line.next()
        assert taken.seqs == [a1, b1, a2, a3]
        assert await self.run(self.store.abandon([taken.claim], T0 + SECOND)) == 4
        assert (await line.next()).seqs == [a1, b1, a2, a3]

    async def test_a_clock_set_back_does_not_reorder_what_the_dead_have_left(self, line: Line) -> None:
        a1, b1, a2 = await self.three()
        dead = await self.run(self.store.register("dead", "ordered", SECOND, T0))
        later = SECOND * 2
        if line.strategy == "shards":
            await self.run(self.store.release_shards(1, range(SHARDS)))
            await self.run(self.store.acquire_shards(dead, SHARDS, SHARDS, SECOND, T0))
        assert (await line.next(owner=dead)).seqs == [a1, b1, a2]
        assert await self.run(self.store.take_over(None, T0 + later)) == (1, 3)
        if line.strategy == "shards":
            await self.run(self.store.acquire_shards(1, SHARDS, SHARDS, DAY, T0 + later))
        [a3] = await self.write(Event("E", None, key="a"))
        assert (await line.next()).seqs == [a1, b1, a2, a3]

    async def test_a_clock_set_back_brings_no_retry_forward(self, line: Line) -> None:
        await self.failed_head(line)
        await self.write(Event("E", None, key="a"), now=T0 - SECOND)
        assert (await line.next(seconds=-1)).rows == []

    async def test_a_failed_head_holds_its_key_and_no_other(self, line: Line) -> None:
        a1, _, a2 = await self.failed_head(line)
        [b2] = await self.write(Event("E", None, key="b"))
        assert (await line.next()).seqs == [b2]
        head = await line.next(seconds=10)
        assert head.seqs == [a1], "the rest of the key waits although it is due"
        await line.settle(Settlement(done=head.held))
        assert (await line.next(seconds=10)).seqs == [a2]
        assert await self.run(self.store.blocked(10, None)) == []

    async def test_events_written_later_wait_too(self, line: Line) -> None:
        await self.failed_head(line)
        await self.write(Event("E", None, key="a"))
        assert (await line.next()).rows == []

    async def test_an_attempt_that_was_nobodys_fault_is_not_counted(self, line: Line) -> None:
        await self.write(Event("E", None, key="a"))
        for _ in range(3):
            taken = await line.next()
            assert taken.attempts == [1]
            retry = [retry._replace(delay=SECOND * 0, counted=False) for retry in taken.retries()]
            assert await line.settle(Settlement(retry=retry, hold=taken.held)) == 0

    async def test_blocked_lists_what_waits_and_why(self, line: Line) -> None:
        a1, _, _ = await self.failed_head(line)
        [blocked] = await self.run(self.store.blocked(10, None))
        assert (blocked.key, blocked.cause, blocked.since) == ("a", "retry", T0)
        assert (blocked.attempts, blocked.error) == (1, "bad")
        head = await line.next(seconds=10)
        assert head.seqs == [a1]
        assert blocked.event_id == head.ids[0]

    async def test_the_lowest_head_is_the_one_that_holds(self, line: Line) -> None:
        a1, b1, a2 = await self.three()
        taken = await line.next()
        await line.settle(Settlement(retry=taken.retries(SECOND), hold=taken.held))
        assert (await line.next(seconds=1)).seqs == [a1, b1]
        blocked = await self.run(self.store.blocked(10, None))
        assert sorted((b.key or "", b.event_id) for b in blocked) == [("a", taken.ids[0]), ("b", taken.ids[1])]
        assert a2 not in (await line.next(seconds=2)).seqs

    async def test_a_claim_that_never_arrived_is_given_back_untried(self, line: Line) -> None:
        a1, b1, a2 = await self.three()
        lost = await line.next()
        assert await self.run(self.store.abandon([lost.claim], T0)) == 3
        again = await line.next()
        assert (again.seqs, again.attempts) == ([a1, b1, a2], [1, 1, 1])
        assert await line.settle(Settlement(done=lost.held)) == 3
        assert await line.settle(Settlement(done=again.held)) == 0

    async def test_what_its_owner_does_not_know_of_comes_before_what_follows_it(self, line: Line) -> None:
        """A fail-over may forget that a claim was settled. Where keys are leased, it holds them until it ends."""
        a1, b1, a2 = await self.three()
        forgotten, known = await line.next(1), await line.next(1)
        assert (forgotten.seqs, known.seqs) == ([a1], [b1]) or line.strategy != "shards"
        later = await line.next(known=Known([known.claim.token], []))
        if line.strategy == "shards":
            assert later.seqs == [a1, a2]
        else:
            assert a2 not in later.seqs

    async def test_of_a_claim_only_what_its_owner_does_not_know_of_is_given_back(self, line: Line) -> None:
        """A fail-over may forget that an event left its claim to be tried again, while another is still handled."""
        a1, b1, a2 = await self.three()
        taken = await line.next(2)
        if line.strategy != "shards":  # leased keys are passed over until the claim ends
            return
        assert taken.seqs == [a1, b1]
        later = await line.next(known=Known([], [b1]))
        assert (later.seqs, later.attempts) == ([a1, a2], [2, 1])
        assert await line.settle(Settlement(done=taken.held[1:])) == 0, "what is handled was left to its owner"
        assert await line.settle(Settlement(done=later.held)) == 0

    async def test_a_claim_ends_with_its_lease(self, line: Line) -> None:
        a1, b1, a2 = await self.three()
        zombie = await line.next()
        later = LEASE.total_seconds()
        assert (await line.next(seconds=later - 0.001)).rows == []
        heir = await line.next(seconds=later)
        assert (heir.seqs, heir.attempts) == ([a1, b1, a2], [2, 2, 2])
        assert await self.run(self.store.renew(zombie.held, LEASE, T0)) == set()
        assert await line.settle(Settlement(done=zombie.held)) == 3
        assert await line.release(zombie.held) == 0
        assert (await line.next(seconds=later)).rows == [], "what the zombie said freed nothing"
        assert await line.settle(Settlement(done=heir.held)) == 0

    async def test_a_zombie_does_not_free_a_key_that_waits(self, line: Line) -> None:
        """Its claim ended, the next owner's attempt failed, and only then it comes with a success."""
        _, b1, a2 = await self.three()
        zombie = await line.next()
        later = LEASE.total_seconds()
        heir = await line.next(seconds=later)
        assert heir.seqs == zombie.seqs
        await line.settle(Settlement(retry=heir.retries(LEASE * 9)[:1], hold=heir.held[:1]))
        await line.release(heir.held[1:])
        assert await line.settle(Settlement(done=zombie.held[:1])) == 1
        assert await line.settle(Settlement(dead=zombie.deaths()[:1])) == 1
        again = await line.next(seconds=later)
        assert (again.seqs, a2 in again.seqs) == ([b1], False)

    async def test_a_settle_repeated_later_does_not_hold_again(self, line: Line) -> None:
        """Its reply was lost; before it came again, an operator let the key go on."""
        await self.three()
        taken = await line.next()
        settlement = Settlement(retry=taken.retries(SECOND * 10)[:1], hold=taken.held[:1])
        assert await line.settle(settlement) == 0
        assert await self.run(self.store.release_key("a", None, None))
        assert await line.settle(settlement) == 1
        assert await self.run(self.store.blocked(10, None)) == []

    async def park(self, line: Line) -> tuple[int, int]:
        a1, _, a2 = await self.three()
        taken = await line.next()
        settlement = Settlement(dead=taken.deaths()[:1], park=taken.held[:1], done=taken.held[1:2])
        assert await line.settle(settlement) == 0
        await line.release(taken.held[2:])
        return a1, a2

    async def test_a_parked_key_waits_for_an_operator(self, line: Line) -> None:
        _, a2 = await self.park(line)
        assert (await line.next(seconds=3_600)).rows == []
        [blocked] = await self.run(self.store.blocked(10, None))
        assert (blocked.key, blocked.cause, blocked.error) == ("a", "dead", "hopeless")
        assert await self.run(self.store.release_key("a", None, None))
        assert not await self.run(self.store.release_key("a", None, None))
        assert (await line.next()).seqs == [a2]

    async def test_a_replayed_head_goes_before_the_rest_of_its_key(self, line: Line) -> None:
        a1, a2 = await self.park(line)
        assert await self.run(self.store.replay("dead", [a1], T0, T0)) == 1
        head = await line.next()
        assert head.seqs == [a1]
        await line.settle(Settlement(done=head.held))
        assert (await line.next()).seqs == [a2]

    async def test_a_replayed_head_that_fails_again_holds_again(self, line: Line) -> None:
        a1, a2 = await self.park(line)
        await self.run(self.store.replay("dead", [a1], T0, T0))
        head = await line.next()
        await line.settle(Settlement(dead=head.deaths(), park=head.held))
        assert (await line.next(seconds=3_600)).rows == []
        await self.run(self.store.release_key("a", None, None))
        assert (await line.next()).seqs == [a2]

    async def test_a_skipped_head_frees_its_key(self, line: Line) -> None:
        a1, _, a2 = await self.failed_head(line)
        head = await line.next(seconds=10)
        assert head.seqs == [a1]
        await line.settle(Settlement(dead=head.deaths()))
        assert (await line.next(seconds=10)).seqs == [a2]

    async def test_purging_the_dead_head_frees_its_key(self, line: Line) -> None:
        _, a2 = await self.park(line)
        assert await self.run(self.store.purge_dead(T0 + SECOND, 10)) == 1
        assert (await line.next()).seqs == [a2]
        assert await self.run(self.store.blocked(10, None)) == []

    async def test_an_event_without_a_key_holds_nobody(self, line: Line) -> None:
        seqs = await self.write(Event("E", None), Event("E", None), Event("E", None))
        taken = await line.next()
        assert taken.seqs == seqs
        await line.settle(Settlement(retry=taken.retries(SECOND * 9)[:1], hold=taken.held[:1]))
        await line.release(taken.held[1:])
        assert (await line.next()).seqs == seqs[1:]

    async def test_an_event_that_was_deleted_by_hand_can_still_be_settled(self, line: Line) -> None:
        await self.three()
        await self.run(self.raw(f"DELETE FROM {self.named('event')}"))
        taken = await line.next()
        assert taken.ids == [None, None, None]
        assert await line.settle(Settlement(done=taken.held)) == 0
        assert (await line.next(seconds=LEASE.total_seconds())).rows == []

    async def test_nobody_waits_for_a_writer_who_has_not_committed(self, line: Line) -> None:
        """Business transactions may be long. Few rows on purpose: then a plan that reads and locks them all is near."""
        if not self.store.capabilities.skip_locked:
            pytest.skip("one writer at a time: everybody waits")
        [seq] = await self.write(Event("E", None, key="a"))
        await line.next()
        uncommitted = self.store.write([Event("E", None, key="a")], None, T0)
        async with self.another().begun(uncommitted), asyncio.timeout(10):
            for n, outcome in enumerate(("release", "retry", "dead", "done"), 1):
                now = n * LEASE.total_seconds()
                taken = await line.next(seconds=now)
                assert taken.seqs == [seq]
                assert await self.run(self.store.renew(taken.held, LEASE, T0 + LEASE * n)) == {seq}
                match outcome:
                    case "release":
                        await line.release(taken.held, seconds=now)
                    case "retry":
                        await line.settle(Settlement(retry=taken.retries(), hold=taken.held), seconds=now)
                    case "dead":
                        await line.settle(Settlement(dead=taken.deaths(), park=taken.held), seconds=now)
                        await self.run(self.store.replay("dead", [seq], T0 + LEASE * n, T0 + LEASE * n))
                    case "done":
                        assert await line.settle(Settlement(done=taken.held), seconds=now) == 0

    async def test_every_key_has_its_turn_although_others_are_held(self, line: Line) -> None:
        """However long the queue behind a held head is, and wherever in the round the others are."""
        await self.write(*[Event("E", None, key="held") for _ in range(40)])
        taken = await line.next()
        await line.settle(Settlement(dead=taken.deaths()[:1], park=taken.held[:1]))
        await line.release(taken.held[1:])
        events = [Event("E", None, key=f"k{n % 30}") for n in range(90)]
        waiting = set(await self.write(*events))
        claims = 0
        while waiting:
            taken = await line.next(6)
            claims += 1
            assert taken.seqs
            assert waiting.issuperset(taken.seqs)
            waiting -= set(taken.seqs)
            await line.settle(Settlement(done=taken.held))
        assert claims <= 32
        assert (await line.next()).rows == []
