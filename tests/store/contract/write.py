"""Writing: every field comes back as it was given, in order, once, or not at all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from relaybox.errors import DuplicateEvent, SchemaMissing
from relaybox.event import GLOBAL, MAX_PAYLOAD, Event
from relaybox.ids import new_token
from relaybox.op import Op, Query
from relaybox.store.claims import Claim, HeldRow
from relaybox.store.outbox.values import Settlement

from .harness import LEASE, MICROSECOND, SECOND, T0, Harness, some_events

# Everything a parameter style, a quoting rule or a template might stumble over.
ODD = "100% %s %(x)s :now ? $1 {event} ''\"`\\ \\t;-- 日本語 🎉"

_BODIES = {
    "duplicate keys and 1.10": b'{"a":1.10, "a":2}',
    "spaces": b'\n {  "a" :\t[ 1 , 2 ] }  \n',
    "unicode": '{"ü":"日本語 🎉"}'.encode(),
    "escaped nul": rb'{"a":"\u0000\ud800"}',
    "placeholders": ODD.encode(),
    "empty": b"",
    "zero bytes": b"\x00\x00a\x00",
    "not utf-8": bytes(range(256)),
}


class _Undo(Exception):
    pass


class WriteContract(Harness):
    async def test_every_field_comes_back(self) -> None:
        event = Event(
            "OrderPlaced",
            payload_json='{"id": 7}',
            id="order-7-placed",
            key="order-7",
            aggregate_type="Order",
            tenant="acme",
            occurred_at=datetime(2020, 2, 29, 23, 59, 59, 999999, tzinfo=timezone(timedelta(hours=5, minutes=30))),
            deliver_at=T0 + timedelta(days=400, microseconds=1),
            headers={"traceparent": "00-ab-cd-01", "empty": "", "ü": "日本語 🎉"},
            content_type="application/vnd.order+json; charset=utf-8",
        )
        [seq] = await self.write(event)
        assert event.deliver_at
        [back] = (await self.take(now=event.deliver_at)).events
        for field in ("id", "type", "body", "content_type", "key", "aggregate_type", "tenant", "headers"):
            assert getattr(back, field) == getattr(event, field), field
        assert (back.occurred_at, back.deliver_at, back.created_at) == (event.occurred_at, event.deliver_at, T0)
        assert [at and at.tzinfo for at in (back.occurred_at, back.deliver_at, back.created_at)] == [UTC] * 3
        assert back.seq == seq
        assert isinstance(back.body, bytes)

    async def test_what_was_left_out_comes_back_as_the_default(self) -> None:
        event = Event("Plain", None)
        await self.write(event)
        [back] = (await self.take()).events
        assert (back.key, back.tenant, back.deliver_at, dict(back.headers)) == (None, None, None, {})
        assert (back.aggregate_type, back.content_type, back.payload) == (GLOBAL, "application/json", None)
        assert back.occurred_at == event.occurred_at

    async def test_payloads_are_kept_byte_for_byte(self) -> None:
        for name, body in _BODIES.items():
            one = Event("Odd", payload_bytes=body, content_type="application/json")
            two = [Event("Odd", payload_bytes=body, content_type="text/plain") for _ in range(2)]
            await self.write(one)
            await self.write(*two)
            assert [event.body for event in (await self.take()).events] == [body] * 3, name

    async def test_the_largest_payload_fits(self) -> None:
        body = bytes(range(256)) * (MAX_PAYLOAD // 256)
        await self.write(Event("Big", payload_bytes=body))
        await self.write(Event("Big", payload_bytes=body), Event("Small", payload_bytes=body[:9]))
        assert [event.body for event in (await self.take()).events] == [body, body, body[:9]]

    async def test_text_is_never_read_as_sql_or_a_placeholder(self) -> None:
        events = [
            Event(ODD, None, id=f"{ODD[:34]}{n}", key=ODD, aggregate_type=ODD, tenant=ODD, headers={"odd": ODD[:30]})
            for n in range(3)
        ]
        await self.write(events[0])
        await self.write(*events[1:])
        for back, event in zip((await self.take()).events, events, strict=True):
            for field in ("id", "type", "key", "aggregate_type", "tenant", "headers"):
                assert getattr(back, field) == getattr(event, field), field

    async def test_the_longest_texts_fit(self) -> None:
        event = Event(
            "🎉" * 128,
            None,
            id="ä" * 36,
            key="日" * 128,
            aggregate_type="é" * 64,
            tenant="ß" * 64,
            content_type="x" * 128,
            headers={f"h{n}": "v" * 120 for n in range(60)},
        )
        await self.write(event)
        [back] = (await self.take()).events
        assert (back.id, back.type, back.key) == (event.id, event.type, event.key)
        assert (back.aggregate_type, back.tenant, back.headers) == (event.aggregate_type, event.tenant, event.headers)

    async def test_ids_differ_by_case_and_accent(self) -> None:
        await self.write(*[Event("A", None, id=id) for id in ("abc", "ABC", "äbc")])
        assert await self.run(self.store.stored(["ABC", "äbc", "Äbc"])) == {"ABC", "äbc"}

    async def test_ids_differ_by_a_trailing_space(self) -> None:
        if self.store.dialect == "mysql":
            pytest.skip("the one binary collation that MySQL and MariaDB share ignores trailing spaces")
        await self.write(*[Event("A", None, id=id) for id in ("abc", "abc ")])
        assert await self.run(self.store.stored(["abc "])) == {"abc "}

    @pytest.mark.parametrize("copy", [False, True])
    @pytest.mark.parametrize("count", [1, 2, 199, 200, 1_000])
    async def test_a_batch_keeps_the_order_of_the_list(self, count: int, copy: bool) -> None:
        if copy and not (self.store.capabilities.copy and await self.db.copies()):
            pytest.skip("this driver has no COPY")
        events = some_events(count)
        first = await self.write(Event("Before", None))
        seqs = await self.write(*events, copy=copy)
        assert len(set(seqs)) == count
        assert seqs == sorted(seqs)
        assert seqs[0] > first[0]
        claimed: dict[int, str] = {}
        while (taken := await self.take()).seqs:  # a claim may stop short of its limit, an empty one says: nothing left
            assert taken.seqs == sorted(taken.seqs)
            claimed.update(zip(taken.seqs, taken.ids, strict=True))
        assert sorted(claimed) == first + seqs
        assert [claimed[seq] for seq in seqs] == [event.id for event in events]

    async def test_nothing_to_write_writes_nothing(self) -> None:
        assert await self.write() == []
        assert await self.run(self.store.stored([])) == set()
        assert (await self.take()).rows == []

    @pytest.mark.parametrize(("count", "copy"), [(1, False), (3, False), (250, False), (250, True)])
    async def test_rows_inserted_under_a_claim_are_their_writers(self, count: int, copy: bool) -> None:
        """The hot path: nobody else gets them before the lease ends, and the insert was the first attempt."""
        if copy and not (self.store.capabilities.copy and await self.db.copies()):
            pytest.skip("this driver has no COPY")
        claim = Claim(7, new_token(), LEASE)
        seqs = await self.write(*some_events(count), claim=claim, copy=copy)
        assert (await self.take(now=T0 + LEASE - MICROSECOND)).rows == []
        held = [HeldRow(seq, claim.token) for seq in seqs]
        assert await self.run(self.store.verify(held)) == set(seqs)
        assert await self.run(self.store.settle(Settlement(done=held[:-1]), T0)) == 0
        late = await self.take(now=T0 + LEASE)
        assert (late.seqs, late.attempts) == (seqs[-1:], [2])

    @pytest.mark.parametrize(("count", "copy"), [(1, False), (3, False), (250, True)])
    async def test_a_delayed_event_waits_even_when_written_under_a_claim(self, count: int, copy: bool) -> None:
        """Its writer would not deliver it when its time comes, so the claim does not cover it."""
        if copy and not (self.store.capabilities.copy and await self.db.copies()):
            pytest.skip("this driver has no COPY")
        later = T0 + timedelta(hours=1)
        events = [Event("Later", None, key="k", deliver_at=later) for _ in range(count)]
        claim = Claim(7, new_token(), LEASE)
        seqs = await self.write(*events, claim=claim, copy=copy)
        assert await self.run(self.store.verify([HeldRow(seq, claim.token) for seq in seqs])) == set()
        assert (await self.take(now=later - MICROSECOND)).rows == []
        taken = await self.take(now=later)
        assert taken.seqs == seqs
        assert set(taken.attempts) == {1}

    async def test_plain_events_are_never_claimed(self) -> None:
        """Writer-only tables: something else reads them."""
        events = some_events(3)
        seqs = await self.run(self.store.write_plain(events, T0))
        assert seqs == sorted(set(seqs))
        assert (await self.take(now=T0 + timedelta(days=1))).rows == []
        assert await self.run(self.store.stored([e.id for e in events])) == {e.id for e in events}

    async def test_stored_answers_for_each_id(self) -> None:
        events = some_events(300)
        await self.write(*events)
        asked = [e.id for e in events[:250]] + ["nobody"]
        assert await self.run(self.store.stored(asked)) == {e.id for e in events[:250]}

    async def test_the_same_id_twice_is_refused_and_leaves_nothing(self) -> None:
        await self.write(Event("A", None, id="same"))
        with pytest.raises(DuplicateEvent):
            await self.write(Event("B", None, id="same"))
        with pytest.raises(DuplicateEvent):
            await self.write(Event("C", None, id="other"), Event("D", None, id="same"))
        assert await self.run(self.store.stored(["same", "other"])) == {"same"}
        assert [event.type for event in (await self.take()).events] == ["A"]

    async def test_a_refusal_does_not_spell_out_the_payload(self) -> None:
        event = Event("A", {"secret": "swordfish"}, id="same")
        await self.write(event)
        with pytest.raises(DuplicateEvent) as caught:
            await self.write(event)
        error: BaseException | None = caught.value
        while error is not None:
            assert "swordfish" not in str(error)
            error = error.__cause__

    async def test_a_rolled_back_transaction_leaves_nothing(self) -> None:
        def undone() -> Op[None]:
            yield from self.store.write(some_events(3), None, T0)
            raise _Undo

        with pytest.raises(_Undo):
            await self.run(undone())
        assert (await self.take()).rows == []
        await self.write(Event("Next", None))
        assert len((await self.take()).rows) == 1

    async def test_verify_misses_what_a_savepoint_took_back(self) -> None:
        kept, lost = Claim(7, new_token(), LEASE), Claim(7, new_token(), LEASE)
        held: list[HeldRow] = []

        def partly() -> Op[None]:
            held.extend(HeldRow(seq, kept.token) for seq in (yield from self.store.write(some_events(2), kept, T0)))
            yield Query("savepoint", "SAVEPOINT half", "count").bind()
            held.extend(HeldRow(seq, lost.token) for seq in (yield from self.store.write(some_events(3), lost, T0)))
            yield Query("rollback", "ROLLBACK TO SAVEPOINT half", "count").bind()

        await self.run(partly())
        assert await self.run(self.store.verify(held)) == {h.seq for h in held[:2]}

    async def test_without_tables_every_kind_of_work_says_so(self) -> None:
        store = self.fresh_store()
        claim = Claim(1, 2, LEASE)
        for make in (
            lambda: store.write(some_events(1), None, T0),
            lambda: store.write(some_events(2), claim, T0),
            lambda: store.claim(claim, 10, T0),
            lambda: store.settle(Settlement(done=[HeldRow(1, 2)]), T0),
            lambda: store.status(T0),
            lambda: store.register("me", "multi", SECOND, T0),
        ):
            with pytest.raises(SchemaMissing):
                await self.run(make())
