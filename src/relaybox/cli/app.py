"""The root of the command line: global options, errors as one line, the commands.

Exit codes: 0 done, 1 an error (one line on stderr), 2 wrong usage.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.models import OptionInfo

from .. import __version__
from ..errors import RelayboxError
from ..redaction import scrub
from ..words import did_you_mean
from . import (
    audit,
    bench,
    cdc,
    contracts,
    doctor,
    erase,
    events,
    feeds,
    grants,
    groups,
    inbox,
    ingest,
    maintain,
    migrate,
    purge,
    relay,
    replica,
    run,
    status,
    topics,
    vault,
)
from . import config as effective
from .connect import Target, resolve, warn_of_argument
from .demo.play import demo
from .output import fail, visible

_exceptions: Any = import_module(typer.BadParameter.__module__)  # click's, of which some releases of typer have a copy
NoSuchOption, UsageError = _exceptions.NoSuchOption, _exceptions.UsageError
WORDS = {"str": "TEXT", "int": "N", "float": "N", "Path": "FILE"}
NO_DATABASE = ("demo", "config", "run")  # the last: its programs know theirs
_GLOBAL = ("--url", "--table", "--schema", "--config")


def _unknown_option(name: str, known: list[str]) -> str:
    return f"No such option: {visible(name)}{did_you_mean(name, known)}"


class Relaybox(TyperGroup):
    """Takes the global options in any place, and turns our errors into one line and exit code 1."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, _globals_first(args))
        except NoSuchOption as error:
            raise UsageError(_unknown_option(error.option_name, [*_GLOBAL, "--version", "--help"]), ctx) from None

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except RelayboxError as error:
            url = ctx.obj.url.value if isinstance(ctx.obj, Target) else os.environ.get("RELAYBOX_URL")
            fail(scrub(str(error), url))
            raise typer.Exit(1) from None


def _globals_first(args: list[str]) -> list[str]:
    """`relaybox status --url X` is `relaybox --url X status`; nothing behind `--` is touched."""
    first: list[str] = []
    rest: list[str] = []
    waiting = iter(args)
    for arg in waiting:
        if arg == "--":
            rest += [arg, *waiting]
        elif arg in _GLOBAL:
            first += [arg, *[value for value in [next(waiting, None)] if value is not None]]
        elif arg.partition("=")[0] in _GLOBAL:
            first.append(arg)
        else:
            rest.append(arg)
    return first + rest


app = typer.Typer(
    name="relaybox",
    cls=Relaybox,
    help="Transactional messaging on the database you already have.",
    epilog="--url, --table, --schema and --config may stand before or after the command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # its tracebacks print local variables, a password among them
    rich_markup_mode=None,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"relaybox {__version__}\n")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    url: Annotated[
        str | None, typer.Option(help="database URL; a password is safer in RELAYBOX_URL", metavar="URL")
    ] = None,
    table: Annotated[
        str | None, typer.Option(metavar="NAME", help="event table [RELAYBOX_TABLE, default outbox_event]")
    ] = None,
    schema: Annotated[str | None, typer.Option(metavar="NAME", help="schema of the tables [RELAYBOX_SCHEMA]")] = None,
    config: Annotated[Path | None, typer.Option(help="settings file [RELAYBOX_CONFIG]", metavar="FILE.toml")] = None,
    version: Annotated[
        bool, typer.Option("--version", help="print the version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    warn_of_argument("--url", url, "RELAYBOX_URL")
    context.obj = resolve({"url": url, "table": table, "schema": schema}, config, os.environ)


app.command("demo")(demo)
app.command("migrate")(migrate.migrate)
app.command("run")(run.run)
app.command("relay")(relay.relay)
app.command("ingest")(ingest.ingest)
app.command("replica")(replica.replica)
app.command("status")(status.status)
app.add_typer(events.nouns("events"), name="events")
app.add_typer(events.nouns("dead"), name="dead")
app.add_typer(events.keys, name="keys")
app.add_typer(topics.app, name="topics")
app.add_typer(groups.app, name="groups")
app.add_typer(feeds.app, name="feeds")
app.add_typer(contracts.app, name="contracts")
app.add_typer(cdc.app, name="cdc")
app.add_typer(inbox.app, name="inbox")
app.command("purge")(purge.purge)
app.add_typer(vault.app, name="vault")
app.command("erase")(erase.erase)
app.command("audit")(audit.audit)
app.command("maintain")(maintain.maintain)
app.command("grants")(grants.grants)
app.command("doctor")(doctor.doctor)
app.command("config")(effective.config)
app.command("bench")(bench.bench)


class Command(TyperCommand):
    """In its help an argument is `TOPIC`, not `TOPIC <str>`; and an option that nobody knows may be one of the root."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for one in self.params:
            if isinstance(one, TyperArgument):
                vars(one)["display_type"] = lambda ctx: ""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except NoSuchOption as error:
            known = [name for one in self.get_params(ctx) for name in one.opts if name.startswith("--")]
            raise UsageError(_unknown_option(error.option_name, [*known, *_GLOBAL]), ctx) from None


def _name_values(command: Callable[..., Any]) -> None:
    """In the help an option is `--reason TEXT`, not `--reason <str>`, unless it says something better."""
    command.__annotations__ = inspect.get_annotations(command, eval_str=True)  # as text they would be read anew
    for hint in command.__annotations__.values():
        kind, *told = get_args(hint) or (None,)  # an Annotated
        for info in told:
            if isinstance(info, OptionInfo) and info.metavar is None:
                info.metavar = next((w for name, w in WORDS.items() if re.search(rf"\b{name}\b", str(kind))), None)


def _word_the_help() -> None:
    """The help of each command names the options that stand in the help of the root alone."""
    where = "Which database: --url, or RELAYBOX_URL; `relaybox --help` has the options of all commands."
    nested = [(group.name, group.typer_instance) for group in app.registered_groups]
    for name, commands in ((None, app), *nested):
        for command in commands.registered_commands if commands else []:
            assert command.callback is not None
            command.cls = Command
            _name_values(command.callback)
            if name != "contracts" and command.name not in NO_DATABASE:
                command.epilog = where


_word_the_help()
