"""How soon processes of a storm take over from those that were killed. Apart, because those processes import it."""

from __future__ import annotations

from datetime import timedelta

from relaybox import Retry, Settings
from relaybox.types import DeliverySettings

TTL = 2.0  # seconds of silence after which a process counts as dead
AS_OPTIONS = {"delivery.instance_ttl": f"{TTL:g}s", "delivery.lease": f"{TTL * 3:g}s"}
AS_SETTINGS = Settings(
    delivery=DeliverySettings(
        instance_ttl=timedelta(seconds=TTL),
        lease=timedelta(seconds=3 * TTL),
        # Most failures are no fault of the message: the process that had claimed it was killed.
        retry=Retry(base="20ms", max="1s", attempts=50),
    )
)
