"""Signed webhooks into an inbox: `WEBHOOK_SECRETS=whsec_… uvicorn webhook_receiver:receiver`.

200 is said after the commit, so a sender that hears nothing may send again; the inbox drops what comes twice.
"""

from __future__ import annotations

import os

from relaybox import AsyncInbox, Inbox
from relaybox.brokers.webhook import WebhookReceiver

URL = os.environ.get("INBOX_URL", "sqlite:///billing.db")

with Inbox(URL, "orders_inbox") as inbox:
    inbox.migrate()  # in production a step of the deployment

receiver = WebhookReceiver(
    AsyncInbox(URL, "orders_inbox"),
    secrets=os.environ["WEBHOOK_SECRETS"].split(","),  # newest first; the old one stays until every sender has changed
    sender="shop",
)
