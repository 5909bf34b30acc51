"""Names for the admin and its permissions. Nothing is stored by them, and they have no tables."""

from __future__ import annotations

from django.db import models


class Event(models.Model):
    class Meta:
        managed = False
        default_permissions = ("view",)
        permissions = (
            ("replay_event", "Can replay events"),
            ("discard_event", "Can discard events"),
            ("view_payload", "Can view payloads and headers"),
        )


class DeadLetter(models.Model):
    class Meta:
        managed = False
        default_permissions = ("view",)
        permissions = (
            ("replay_deadletter", "Can replay dead letters"),
            ("discard_deadletter", "Can discard dead letters"),
        )


class BlockedKey(models.Model):
    class Meta:
        managed = False
        default_permissions = ("view",)
        permissions = (("release_blockedkey", "Can release blocked keys"),)


class Group(models.Model):
    class Meta:
        managed = False
        default_permissions = ("view",)


class Inbox(models.Model):
    class Meta:
        managed = False
        default_permissions = ("view",)
        verbose_name_plural = "inboxes"
