"""The first release: the tables, and the names that permissions of the admin are for."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from ..tables import Upgrade

_ID = models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")


def _named(name: str, *permissions: tuple[str, str], **more: str) -> Any:
    options: dict[str, Any] = {"managed": False, "default_permissions": ("view",), **more}
    if permissions:
        options["permissions"] = permissions
    return migrations.CreateModel(name, [("id", _ID)], options)


class Migration(migrations.Migration):
    initial = True
    operations = (
        Upgrade(outbox=2, topics=1, feeds=9, inbox=3, guard=1, vault=2),
        _named(
            "Event",
            ("replay_event", "Can replay events"),
            ("discard_event", "Can discard events"),
            ("view_payload", "Can view payloads and headers"),
        ),
        _named(
            "DeadLetter",
            ("replay_deadletter", "Can replay dead letters"),
            ("discard_deadletter", "Can discard dead letters"),
        ),
        _named("BlockedKey", ("release_blockedkey", "Can release blocked keys")),
        _named("Group"),
        _named("Inbox", verbose_name_plural="inboxes"),
    )
