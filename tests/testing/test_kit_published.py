"""assert_published: finds committed events, and fails with a message that helps and gives nothing away."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from relaybox import AsyncOutbox, Event, Outbox
from relaybox.testing import assert_published, published


@pytest.fixture
def filled(outbox: Outbox) -> Outbox:
    with outbox.transaction() as tx:
        outbox.write_all(
            tx,
            [
                Event("OrderPlaced", {"id": 7, "lines": {"a": 1, "b": 2}}, key="order-7", headers={"h": "1"}),
                Event("OrderPlaced", {"id": 8}, key="order-8", tenant="t"),
                Event("Paid", {"secret": "hunter2"}, key="order-7"),
                Event("Blob", b"\xff\x00", key=None),
            ],
        )
    return outbox


@pytest.fixture
def raw(relaybox_url: str) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(relaybox_url.removeprefix("sqlite:///"))
    yield connection
    connection.close()


def test_finds_by_type_key_payload_headers_and_tenant(filled: Outbox) -> None:
    assert len(assert_published(filled, "OrderPlaced", count=2)) == 2
    assert_published(filled, "OrderPlaced", key="order-7", payload={"id": 7, "lines": {"b": 2}}, count=1)
    assert_published(filled, "OrderPlaced", payload=lambda payload: payload["id"] > 7, count=1)
    assert_published(filled, "OrderPlaced", headers={"h": "1"}, count=1)
    assert_published(filled, "OrderPlaced", tenant="t", count=1)
    assert_published(filled, "Blob", payload=b"\xff\x00", count=1)
    assert_published(filled, "Missing", count=0)
    assert [event.type for event in published(filled)] == ["OrderPlaced", "OrderPlaced", "Paid", "Blob"]


@pytest.mark.parametrize(
    "wanted",
    [
        {"key": "order-9"},
        {"payload": {"id": 7, "lines": {"b": 3}}},
        {"payload": {"unknown": None}},
        {"payload": lambda _: False},
        {"headers": {"h": "2"}},
        {"tenant": "other"},
        {"count": 3},
        {"count": 0},
    ],
)
def test_fails_when_nothing_fits(filled: Outbox, wanted: dict[str, object]) -> None:
    with pytest.raises(AssertionError, match="OrderPlaced"):
        assert_published(filled, "OrderPlaced", **wanted)  # type: ignore[arg-type]


def test_message_lists_types_and_keys_but_no_payload(filled: Outbox) -> None:
    with pytest.raises(AssertionError) as failure:
        assert_published(filled, "Paid", key="order-7", payload={"secret": "other"})
    text = str(failure.value)
    assert "expected at least one Paid event with key 'order-7', the given payload, found 0 among 4" in text
    assert "1 of that type and key have another payload" in text
    assert "~ Paid key='order-7'" in text
    assert "hunter2" not in text
    assert "other" not in text.replace("another", "").replace("other headers", "")


def test_message_shows_payloads_when_asked(filled: Outbox) -> None:
    with pytest.raises(AssertionError, match="hunter2"):
        assert_published(filled, "Paid", payload={"secret": "x"}, show_payloads=True)


def test_message_is_bounded(outbox: Outbox) -> None:
    with outbox.transaction() as tx:
        outbox.write_all(tx, [Event("Many", n) for n in range(1_200)])
    with pytest.raises(AssertionError, match="1180 older ones") as failure:
        assert_published(outbox, "None")
    assert len(str(failure.value).splitlines()) == 22
    assert len(published(outbox, "Many")) == 1_200  # more than one page


def test_uncommitted_and_rolled_back_are_not_published(outbox: Outbox, raw: sqlite3.Connection) -> None:
    outbox.write(raw, Event("Draft", 1))
    assert_published(outbox, "Draft", count=0)
    assert_published(raw, "Draft", count=1)  # its own transaction sees it
    raw.rollback()
    assert_published(raw, "Draft", count=0)


def test_custom_table_of_a_connection(relaybox_url: str, raw: sqlite3.Connection) -> None:
    with Outbox(relaybox_url, table="shop_events") as box:
        box.migrate()
        box.write(raw, Event("A", 1))
        raw.commit()
    assert_published(raw, "A", count=1, table="shop_events")


async def test_async_twin(async_outbox: AsyncOutbox, raw: sqlite3.Connection) -> None:
    async with async_outbox.transaction() as tx:
        await async_outbox.write(tx, Event("A", {"n": 1}))
        assert await published(tx, "A") != []
    assert len(await assert_published(async_outbox, "A", payload={"n": 1}, count=1)) == 1
    assert [event.type for event in published(raw)] == ["A"]
    with pytest.raises(AssertionError, match="found 1 among 1"):
        await assert_published(async_outbox, "A", count=2)


def test_a_misspelt_filter_is_an_error(outbox: Outbox) -> None:
    with pytest.raises(TypeError, match="unknown filter 'payloads'"):
        assert_published(outbox, "A", payloads={})  # type: ignore[call-arg]
