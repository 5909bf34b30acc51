"""Mistakes that both type checkers find: one in every line that says so, and none elsewhere."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import relaybox.brokers.inbox
import relaybox.brokers.webhook
import relaybox.testing
import relaybox.types
from relaybox import AsyncGuard, AsyncOutbox, Delivery, Event, Guard, Listeners, Outbox, Relay, Settings
from relaybox.testing import assert_published
from relaybox.types import DeliverySettings

listeners = Listeners()
received = Listeners[Session]()


@dataclass
class OrderPlaced:
    id: int


# -- a handler with the wrong signature ---------------------------------------------------------------


@listeners.on(OrderPlaced)  # refused
def takes_nothing() -> None: ...


@listeners.on(OrderPlaced)  # refused
def takes_three(event: Event[OrderPlaced], delivery: Delivery, more: int) -> None: ...


@listeners.on_batch(OrderPlaced)  # refused
def takes_one(event: Event[OrderPlaced]) -> None: ...


@received.on(OrderPlaced)  # refused
def takes_a_delivery(event: Event[OrderPlaced], delivery: Delivery) -> None: ...


# -- a payload of another model -----------------------------------------------------------------------


@listeners.on(OrderPlaced)  # refused
def takes_a_number(event: Event[int]) -> None: ...


@listeners.on("OrderPlaced", model=OrderPlaced)  # refused
def takes_text(event: Event[str]) -> None: ...


@listeners.on_batch(OrderPlaced)  # refused
def takes_numbers(events: Sequence[Event[int]]) -> None: ...


@listeners.on(OrderPlaced)
def misspells(event: Event[OrderPlaced]) -> None:
    print(event.payload.di)  # refused


misspells(Event[int]("OrderPlaced", 7))  # refused


# -- a handle of the other kind -----------------------------------------------------------------------


def blocks(outbox: Outbox, event: Event, session: AsyncSession, connection: psycopg.AsyncConnection[Any]) -> None:
    outbox.write(session, event)  # refused
    outbox.write_all(connection, [event])  # refused
    outbox.transaction(connection)  # refused
    outbox.write("postgresql://localhost", event)  # refused


async def is_blocked(
    outbox: AsyncOutbox, event: Event, session: Session, connection: psycopg.Connection[Any], file: io.BytesIO
) -> None:
    await outbox.write(session, event)  # refused
    await outbox.write_all(connection, [event])  # refused
    outbox.transaction(connection)  # refused
    await outbox.write(file, event)  # refused


def marks(guard: Guard, session: AsyncSession) -> None:
    guard.mark(session, "order-7")  # refused


async def async_marks(guard: AsyncGuard, session: Session) -> None:
    await guard.mark(session, "order-7")  # refused


def sends(outbox: Outbox, session: Session, other: AsyncSession) -> None:
    producer = outbox.topics.producer("orders", OrderPlaced)
    producer.send(other, OrderPlaced(7))  # refused
    producer.send(session, 7)  # refused


# -- an await that is missing -------------------------------------------------------------------------


async def forgets(outbox: AsyncOutbox) -> None:
    assert_published(outbox, "OrderPlaced")  # refused
    outbox.migrate()  # refused


# -- arguments ----------------------------------------------------------------------------------------


def misled(outbox: Outbox, session: Session) -> None:
    outbox.write(session, {"id": 7})  # refused
    outbox.deliver(received)  # refused
    outbox.deliver(listeners, on_exhausted="wait")  # refused
    Settings(workers=8)  # refused
    DeliverySettings(workers="8")  # refused
    Relay(outbox, 7, to="orders")  # refused
    Relay(outbox, "kafka://localhost", too="orders")  # refused


# -- names that are not there -------------------------------------------------------------------------


def misspelt() -> list[object]:
    return [
        relaybox.Outbx,  # refused
        relaybox.brokers.inbox.InboxSnk,  # refused
        relaybox.brokers.webhook.WebhookSnk,  # refused
        relaybox.testing.Prob,  # refused
        relaybox.types.Servce,  # refused
    ]
