"""`manage.py flush` deletes all data: events and messages too, which would tell of rows that are gone. Django's tests
do it after each TransactionTestCase."""

from __future__ import annotations

from typing import Any

from django.core.management.commands import flush

from ...tables import empty

QUESTION = """You have requested a flush of the database {!r}: it deletes ALL data in it,
events and messages of relaybox included. This cannot be undone.

    Type 'yes' to continue, or 'no' to cancel: """


class Command(flush.Command):
    def handle(self, **options: Any) -> None:
        alias = options["database"]
        if options["interactive"] and input(QUESTION.format(alias)) != "yes":
            self.stdout.write("Flush cancelled.")
            return
        super().handle(**{**options, "interactive": False})
        empty(alias)
