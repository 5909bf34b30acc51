"""The compliance consumer: pulls the subscription and writes notifications, one per event however often it comes.

NOTIFICATIONS_URL is its database, REDIS_URL remembers what was handled, SUBSCRIPTION is
projects/licensing/subscriptions/compliance.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

import psycopg
from events import LicenseStatusChanged
from google.api_core.exceptions import DeadlineExceeded
from google.cloud.pubsub_v1 import SubscriberClient

from relaybox import Guard

TABLE = """
CREATE TABLE IF NOT EXISTS notifications (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, recipient text, type text, body text, link text, reason text)
"""
INSERT = "INSERT INTO notifications (recipient, type, body, link, reason) VALUES (%s, %s, %s, %s, %s)"
log = logging.getLogger("compliance")


class Notifications:
    def __init__(self, url: str, redis_url: str) -> None:
        self.db = psycopg.connect(url, autocommit=True)
        self.db.execute(TABLE)
        # Two-phase: in progress under a lease, done for 30 days. A failure takes the mark back.
        self.guard = Guard.redis(redis_url, consumer="compliance", ttl="720h")

    def handle(self, message: Any) -> None:
        """Returns: acknowledge it. Raises: not now."""
        if message.attributes["event_type"] != "license_status_changed":
            return  # the topic has all events of the domain
        with self.guard(message.attributes["event_id"]) as first:
            if first:
                self.notify(LicenseStatusChanged.model_validate_json(message.data))

    def notify(self, change: LicenseStatusChanged) -> None:
        link = f"/licenses/{change.licenseId}"
        if change.status == "pending":
            body = f"License {change.licenseId} of store {change.storeId} waits for review"
            self.db.execute(INSERT, ("admin", "compliance", body, link, None))
        else:
            body = f"Your license {change.licenseId} was {change.status}"
            self.db.execute(INSERT, (change.storeId, "license", body, link, change.reason))

    def close(self) -> None:
        self.guard.close()
        self.db.close()


def consume(subscriber: SubscriberClient, subscription: str, handle: Callable[[Any], None], seconds: float = 10) -> int:
    """One pull: acknowledges what was handled and gives the rest back, to come again. Returns how many came."""
    try:
        received = subscriber.pull(subscription=subscription, max_messages=100, timeout=seconds).received_messages
    except DeadlineExceeded:
        return 0
    done, again = [], []
    failed = set()  # licenses whose next event must not overtake the one that failed
    for each in received:
        if each.message.ordering_key not in failed and succeeds(handle, each.message):
            done.append(each.ack_id)
        else:
            again.append(each.ack_id)
            failed.add(each.message.ordering_key)
    if done:
        subscriber.acknowledge(subscription=subscription, ack_ids=done)
    if again:
        subscriber.modify_ack_deadline(subscription=subscription, ack_ids=again, ack_deadline_seconds=0)
    return len(received)


def succeeds(handle: Callable[[Any], None], message: Any) -> bool:
    try:
        handle(message)
    except Exception as error:
        log.warning("event %s comes again: %s", message.attributes.get("event_id"), type(error).__name__)
        return False
    return True


def main() -> None:
    logging.basicConfig()
    notifications = Notifications(os.environ["NOTIFICATIONS_URL"], os.environ["REDIS_URL"])
    with SubscriberClient() as subscriber:
        while True:
            consume(subscriber, os.environ["SUBSCRIPTION"], notifications.handle)


if __name__ == "__main__":
    main()
