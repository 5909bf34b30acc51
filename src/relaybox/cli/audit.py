"""`relaybox audit`: what operators changed, by whom and why."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import ConfigError
from ..inbox.inbox import Inbox
from ..outbox import Outbox
from .events import Of, opened
from .options import Json
from .output import console, emit, say, table


def audit(
    context: typer.Context,
    of: Of = "outbox",
    limit: Annotated[int, typer.Option(min=1, help="at most so many, newest first")] = 50,
    json: Json = False,
) -> None:
    """Changes by operators, newest first."""
    with opened(context, of) as box:
        if not isinstance(box, Outbox | Inbox):
            raise ConfigError(f"changes of {of} are in the audit log of its outbox; leave --of out")
        found = box.audit(limit=limit)
    if json:
        emit({"entries": found}, schema="audit/1")
    elif found:
        rows = [(e.at, e.actor, e.verb, e.what, e.changed, e.reason) for e in found]
        console().print(table(None, ("at", "actor", "verb", "what", "changed", "reason"), rows))
    else:
        say("nothing was changed yet")
