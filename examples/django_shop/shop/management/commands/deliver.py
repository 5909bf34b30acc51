"""`manage.py deliver` runs the outbox until Ctrl-C or SIGTERM."""

import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import connection

from relaybox import Outbox
from shop.events import listeners


class Command(BaseCommand):
    help = "Deliver events to the listeners in shop.events"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--until-empty", action="store_true", help="stop when nothing is left to deliver")

    def handle(self, *args: Any, **options: Any) -> None:
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        outbox = Outbox(connection)
        outbox.migrate()
        with outbox, outbox.deliver(listeners):
            self.stdout.write("delivering")
            while not stop.wait(0.05 if options["until_empty"] else None):
                status = outbox.status()
                if not (status.due or status.claimed or status.delayed):
                    break
        self.stdout.write("stopped")
