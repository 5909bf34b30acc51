"""`manage.py deliver` runs the outbox until Ctrl-C or SIGTERM."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import connection

from relaybox import Outbox
from shop.events import listeners


class Command(BaseCommand):
    help = "Deliver events to the listeners in shop.events"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="deliver what is due now, and stop")

    def handle(self, *args: Any, **options: Any) -> None:
        with Outbox(connection) as outbox:
            outbox.migrate()
            delivery = outbox.deliver(listeners)
            if options["once"]:
                self.stdout.write(f"delivered {delivery.once().done}")
            else:
                self.stdout.write("delivering")
                delivery.run()
