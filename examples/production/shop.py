"""What `relaybox run shop:delivery` delivers; the database is named by RELAYBOX_URL."""

from __future__ import annotations

import os

from relaybox import Event, Listeners, Outbox
from relaybox.types import Service

listeners = Listeners()


@listeners.on("OrderPlaced")
def send_mail(event: Event) -> None:
    print("mail for order", event.payload["id"], flush=True)


def delivery() -> Service:
    return Outbox(os.environ["RELAYBOX_URL"]).deliver(listeners)
