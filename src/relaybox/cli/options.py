"""Options that commands have in common: which events, why and by whom something is changed, how it is shown."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from ..audit import Audit
from ..durations import parse_duration
from ..errors import ConfigError
from ..values import Progress, Where
from .output import confirm, moving

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="the topic's name")]
Json = Annotated[bool, typer.Option("--json", help="print JSON")]
Check = Annotated[bool, typer.Option("--check", help="exit with 3 if it is degraded, with 4 if it is critical")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="do not ask")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="only say how many it would be")]
_AUDIT: dict[str, Any] = {
    "reason": Annotated[str | None, typer.Option("--reason", help="why, for the audit log")],
    "actor": Annotated[str | None, typer.Option("--actor", envvar="RELAYBOX_ACTOR", help="who; not given: user@host")],
}

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="ids of events")]
All = Annotated[bool, typer.Option("--all", help="all there are")]
Sender = Annotated[str | None, typer.Option("--sender", help="only from this sender; for inboxes")]
_WHERE: dict[str, Any] = {
    "type": Annotated[str | None, typer.Option("--type", help="only this event type")],
    "aggregate_type": Annotated[str | None, typer.Option("--aggregate-type", help="only this aggregate type")],
    "key": Annotated[str | None, typer.Option("--key", help="only this key")],
    "tenant": Annotated[str | None, typer.Option("--tenant", help="only this tenant")],
    "sender": Sender,
    "error": Annotated[str | None, typer.Option("--error", help="only those whose error has this text in it")],
    "data_key": Annotated[str | None, typer.Option("--data-key", help="only those encrypted with this data key")],
    "since": Annotated[str | None, typer.Option("--since", help="only since then: a time, or 2h for two hours ago")],
    "until": Annotated[str | None, typer.Option("--until", help="only before then")],
}


def with_options(
    name: str, options: Mapping[str, Any], made: Callable[[dict[str, Any]], Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """For a command that takes the argument `name`: it has these options instead, and the argument is made of them."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        told = inspect.signature(command, eval_str=True)
        kept = [one for one in told.parameters.values() if one.name != name]
        new = [inspect.Parameter(n, kept[0].KEYWORD_ONLY, default=None, annotation=t) for n, t in options.items()]

        def run(**given: Any) -> None:
            command(**{name: made({option: given.pop(option) for option in options})}, **given)

        found: Any = run
        found.__doc__ = command.__doc__
        found.__signature__ = told.replace(parameters=[one.replace(kind=one.KEYWORD_ONLY) for one in kept] + new)
        found.__annotations__ = {one.name: one.annotation for one in [*kept, *new]}
        return run

    return decorate


def _where(given: dict[str, Any]) -> Where:
    return Where(**given | {name: moment(given[name]) for name in ("since", "until")})


def moment(text: str | None) -> datetime | timedelta | None:
    """A time, in UTC unless it says otherwise, or how long ago."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        try:
            return parse_duration(text)
        except ConfigError:
            raise ConfigError(
                f"expected a time such as 2030-01-31T12:00, or 2h for two hours ago, got {text!r}"
            ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def kept(text: str, name: str) -> timedelta | None:
    """How long something is kept; None for ever."""
    return None if text.lower() == "none" else parse_duration(text, name)


def _audit(given: dict[str, Any]) -> Audit:
    return {"reason": given["reason"] or "", "actor": given["actor"]}


with_where = with_options("where", _WHERE, _where)
with_audit = with_options("audit", _AUDIT, _audit)


def which(ids: list[str] | None, where: Where, everything: bool) -> list[str] | Where:
    """What a command is to change must be said: ids, conditions, or all."""
    if (bool(ids) + bool(where.given) + everything) != 1:
        raise typer.BadParameter("say which: ids, conditions such as --type, or --all; one of the three")
    return ids or where


def changed(question: str, change: Callable[[bool, Callable[[Progress], object] | None], int], *, yes: bool) -> int:
    """How many, after the question has been answered. `change` is first called for a dry run."""
    total = change(True, None)
    if total and not yes:
        confirm(question.format(total))
    if not total:
        return 0
    with moving("", total) as tell:
        return change(False, tell)
