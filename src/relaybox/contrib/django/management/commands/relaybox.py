"""`manage.py relaybox …`: the whole command line, on a database of Django's settings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from .....cli import main
from .....errors import ConfigError
from ...config import configured


class Command(BaseCommand):
    help = "The command line of relaybox, on the database that RELAYBOX names first, or on --database NAME."

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> CommandParser:
        self._program = f"{prog_name} {subcommand}".strip()
        parser = super().create_parser(prog_name, subcommand, **options)
        parser.prefix_chars = "\0"  # every word is for relaybox, whatever it begins with
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def print_help(self, prog_name: str, subcommand: str) -> None:
        main(["--help"], f"{prog_name} {subcommand}")

    def handle(self, *_: Any, arguments: Sequence[str], **options: Any) -> None:
        ours = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        for name in ("--database", "--settings", "--pythonpath"):  # manage.py has read the others already
            ours.add_argument(name)
        given, rest = ours.parse_known_args(arguments)
        try:
            place = list(_place(given.database))
        except ConfigError as error:
            raise CommandError(str(error)) from None
        try:
            with redirect_stdout(options.get("stdout") or sys.stdout):
                main([*place, *rest], self._program)
        except SystemExit as end:
            if end.code:
                raise


def _place(database: str | None) -> Iterator[str]:
    """First of all, so that what else is said wins."""
    config = configured()
    yield from ("--url", config.url(database))
    for option, value in (("--table", config.table), ("--schema", config.schema)):
        if value is not None:
            yield from (option, value)
