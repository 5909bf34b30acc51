"""`relaybox contracts`: check a registry of contracts, and export it for others."""

from __future__ import annotations

import json as jsonlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ..contracts import Contracts
from ..errors import ConfigError
from .named import load_object
from .output import console, emit, say, table

app = typer.Typer(help="What events must look like and where they go: check, export.", no_args_is_help=True)

Reference = Annotated[str, typer.Argument(metavar="MODULE:OBJECT|FILE.toml", help="a Contracts registry, or its file")]


@app.command("check")
def check(reference: Reference, json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Verify models and upcasters, and list every contract."""
    contracts = load_contracts(reference)
    contracts.verify()
    fields = ("type", "version", "to", "aggregate_type", "content_type", "key_required", "check_payload")
    rows = [[getattr(contract, field) for field in fields] for contract in contracts]
    if json:
        emit({"contracts": [dict(zip(fields, row, strict=True)) for row in rows]})
        return
    console().print(table(None, [field.replace("_", " ") for field in fields], rows))
    say(f"{len(contracts)} contract(s), all in order")


@app.command("export")
def export(
    reference: Reference,
    format: Annotated[str, typer.Option(help="json-schema or asyncapi")] = "json-schema",
    title: Annotated[str | None, typer.Option(help="AsyncAPI: title of the document [Events]")] = None,
    document_version: Annotated[str | None, typer.Option(help="AsyncAPI: version of the document [1.0.0]")] = None,
    form: Annotated[
        str | None, typer.Option(help="AsyncAPI: plain, cloudevents or cloudevents-structured [plain]")
    ] = None,
    attribute_prefix: Annotated[
        str | None, typer.Option(help="AsyncAPI: prefix of CloudEvents attributes [ce_]")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="a file instead of stdout", metavar="FILE")] = None,
) -> None:
    """Print the contracts as one JSON document."""
    contracts = load_contracts(reference)
    contracts.verify()
    given = {"title": title, "version": document_version, "form": form, "attribute_prefix": attribute_prefix}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if format == "asyncapi":
        document = contracts.asyncapi(**{"title": "Events", "version": "1.0.0"} | options)
    elif format != "json-schema":
        raise typer.BadParameter(f"expected --format to be json-schema or asyncapi, got {format!r}")
    elif options:
        raise typer.BadParameter("only --format asyncapi has a title, a version and a message format")
    else:
        document = contracts.json_schema()
    text = jsonlib.dumps(document, indent=2) + "\n"
    if output is None:
        sys.stdout.write(text)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error.strerror}") from error
    say(f"wrote {output}")


def load_contracts(reference: str) -> Contracts:
    if reference.endswith(".toml"):
        return Contracts.from_toml(reference)
    found = load_object(reference)
    if not isinstance(found, Contracts):
        raise ConfigError(f"expected {reference} to be a Contracts registry, got {type(found).__name__}")
    return found
