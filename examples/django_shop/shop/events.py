"""The outbox of the shop: one for writing in requests, one that delivers."""

from django.db import connection

from relaybox import Event, Listeners, Outbox

from .models import Order

listeners = Listeners()
outbox = Outbox(connection)  # the database of Django's settings


@listeners.on("OrderPlaced")
def confirm(event: Event) -> None:
    """Idempotent: confirming twice is confirming once."""
    Order.objects.filter(pk=event.payload["id"]).update(confirmed=True)
