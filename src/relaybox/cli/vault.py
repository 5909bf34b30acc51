"""`relaybox vault`: the data keys of encrypted payloads, and the master keys that wrap them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ..audit import Audit
from ..errors import ConfigError
from ..redaction import masked
from ..vault.keyring import add_to_file, new_master_key
from . import options as o
from .connect import keyring_of, target_of
from .output import answer, console, emit, say, table

app = typer.Typer(help="Data keys of encrypted payloads: create, status, rotate, new-key.", no_args_is_help=True)


@app.command("create")
def create(context: typer.Context, json: o.Json = False) -> None:
    """Create or upgrade the table of data keys. Safe to repeat."""
    with target_of(context).vault(None) as vault:
        done = [{"version": m.version, "name": m.name} for m in vault.migrate()]
    texts = [f"applied {entry['version']:03} {entry['name']}" for entry in done]
    answer(json, {"applied": done}, "\n".join(texts) or "nothing to do: the table is up to date")


@app.command("status")
def status(context: typer.Context, json: o.Json = False) -> None:
    """How many data keys each master key wraps, and how many were destroyed."""
    with target_of(context).vault(None) as vault:
        vault.verify()
        found = vault.masters()
    destroyed = found.pop(None, 0)
    if json:
        emit({"masters": found, "destroyed": destroyed}, schema="vault.status/1")
        return
    console().print(table(None, ("master key", "data keys"), list(found.items())))
    say(f"{destroyed} data key(s) were destroyed")


@app.command("rotate")
@o.with_audit
def rotate(
    context: typer.Context, audit: Audit, dry_run: o.DryRun = False, yes: o.Yes = False, json: o.Json = False
) -> None:
    """Wrap every data key by the first master key of the keyring. Payloads are not touched."""
    keyring = keyring_of(os.environ)
    if keyring is None:
        raise ConfigError(
            "no keyring given; set RELAYBOX_KEYRING to a file or to MODULE:OBJECT, or RELAYBOX_MASTER_KEYS to the keys"
        )
    target = target_of(context)
    with target.vault(keyring) as vault:
        vault.verify()
        if dry_run:
            count = vault.rotate(dry_run=True)
        else:
            count = o.changed(
                f"Wrap {{}} data key(s) in {masked(target.needed_url)} by master key {keyring.current}?",
                lambda dry, tell: vault.rotate(dry_run=dry, progress=tell, **audit),
                yes=yes,
            )
    text = f"{count} data key(s) {'would be ' if dry_run else ''}wrapped by {keyring.current}"
    answer(json, {"rotated": count, "master": keyring.current, "dry_run": dry_run}, text, schema="vault.rotate/1")


@app.command("new-key")
def new_key(
    name: Annotated[str, typer.Argument(metavar="NAME", help="what it is to be called, such as 2026-07")],
    to: Annotated[
        Path | None, typer.Option("--to", help="put it first into this keyring file, which is made if it is not there")
    ] = None,
) -> None:
    """Make a new master key: printed as a line for a keyring, or put into one. It is secret."""
    line = new_master_key(name)
    if to is None:
        say(line)
        return
    add_to_file(to, line)
    say(f"{name} is the first master key of {to}")
