"""Facts as log lines, with the same data in `extra` for structured logging.

Lines carry ids, types, attempts and the *type* of an exception: never a payload, never a header, and the text of an
exception only with `error_text=True`, because listeners put values into it.
"""

from __future__ import annotations

import dataclasses
import logging
from datetime import timedelta
from typing import Any

from .. import facts
from ..facts import Fact

# What is not here is DEBUG: the daily bread.
_LEVELS: dict[type[Fact], int] = {
    **dict.fromkeys((facts.Died, facts.Stuck, facts.TaskEnded, facts.LoopFailed), logging.ERROR),
    **dict.fromkeys((facts.HotDropped, facts.ClaimLost, facts.TakenOver, facts.Strayed), logging.WARNING),
    **dict.fromkeys((facts.CutOff, facts.CircuitChanged, facts.DestinationChanged, facts.Alert), logging.WARNING),
    facts.FeedFailed: logging.WARNING,
    **dict.fromkeys((facts.Retried, facts.Released, facts.Purged, facts.Replayed), logging.INFO),
    **dict.fromkeys((facts.WakeUps, facts.Cleaned, facts.Administered), logging.INFO),
}
_TEXTS = ("error", "reason")


class LogObserver:
    """
    outbox = Outbox(url, observers=[LogObserver()])

    Writes to the logger "relaybox.facts". Dead letters and failed loops are ERROR, events that cannot be decoded
    CRITICAL, drops and lost claims WARNING, the rest INFO or DEBUG. In `extra`: `relaybox_fact`, `relaybox_stage` and
    one `relaybox_…` per field of the fact.
    """

    writes_log = True  # facts.Observers leaves the alarms to us

    def __init__(self, logger: logging.Logger | None = None, *, error_text: bool = False) -> None:
        self._log = logger or logging.getLogger("relaybox.facts")
        self._error_text = error_text

    def __call__(self, fact: Fact) -> None:
        level = self._level(fact)
        if not self._log.isEnabledFor(level):
            return
        name = type(fact).__name__
        whole = self._error_text or isinstance(fact, facts.Administered)  # whose reason is an operator's own words
        fields = {f.name: _shown(f.name, getattr(fact, f.name), whole) for f in dataclasses.fields(fact)}
        text = " ".join(f"{key}={_readable(value)}" for key, value in fields.items())
        extra = {f"relaybox_{key}": value for key, value in fields.items()}
        extra |= {"relaybox_fact": name, "relaybox_stage": fact.stage}
        self._log.log(level, "%s %s %s", fact.stage, name, text, extra=extra)

    def _level(self, fact: Fact) -> int:
        if isinstance(fact, facts.Died) and fact.undecodable:
            return logging.CRITICAL
        return _LEVELS.get(type(fact), logging.DEBUG)


def _shown(field: str, value: Any, whole: bool) -> Any:
    if field in _TEXTS and not whole:
        return str(value).partition(":")[0]
    return value.total_seconds() if isinstance(value, timedelta) else value


def _readable(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value) if isinstance(value, str) else str(value)
