"""What happens after an order was placed, and after a payment came in."""

from typing import Any

from django.db.models import F

from relaybox import Event, Listeners
from relaybox.contrib.django import inbox, outbox
from relaybox.types import Service

from .models import Order

listeners = Listeners()
payments: Listeners[Any] = Listeners()


@listeners.on("OrderPlaced")
def confirm(event: Event) -> None:
    """Idempotent: confirming twice is confirming once."""
    Order.objects.filter(pk=event.payload["id"]).update(confirmed=True)


@listeners.on("OrderCancelled")
async def forget(event: Event) -> None:
    await Order.objects.filter(pk=event.payload["id"]).adelete()


@payments.on("PaymentReceived")
def pay(event: Event) -> None:
    """Not idempotent, and need not be: it is in the transaction that marks the message as processed."""
    Order.objects.filter(pk=event.payload["order"]).update(paid=True, parcels=F("parcels") + 1)


def delivery() -> Service:
    return outbox().deliver(listeners)


def processing() -> Service:
    return inbox("payments").process(payments)
