"""`relaybox blocked`: keys of ordered delivery that wait for a failed head."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import ConfigError
from .connect import target_of
from .output import console, emit, say
from .status import blocked_view

app = typer.Typer(help="Keys of ordered delivery that wait for a failed event.", no_args_is_help=True)


@app.command("list")
def list_(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, help="at most so many, longest blocked first")] = 100,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Which keys wait, since when and why."""
    with target_of(context).outbox() as box:
        found = box.blocked_keys(limit)
    if json:
        emit({"blocked_keys": found})
    elif found:
        console().print(blocked_view(found))
    else:
        say("no key is blocked")


@app.command("release")
def release(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="the key, as `blocked list` shows it")],
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Let a key go on without its failed head, which stays a dead letter or retries on its own."""
    with target_of(context).outbox() as box:
        if not box.unblock(key):
            raise ConfigError(f"no key {key!r} is blocked; see `relaybox blocked list`")
    emit({"released": key}) if json else say(f"released {key!r}")
