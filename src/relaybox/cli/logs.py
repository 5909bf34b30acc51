"""The log of a process on stderr, as text or as one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from types import TracebackType
from typing import Annotated

import typer

from ..words import did_you_mean

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

LogLevel = Annotated[str, typer.Option(envvar="RELAYBOX_LOG_LEVEL", help="debug, info, warning or error")]
LogFormat = Annotated[
    str,
    typer.Option(
        envvar="RELAYBOX_LOG_FORMAT", help="text, or json: one JSON object per line, also for what is printed"
    ),
]


class JsonLines(logging.Formatter):
    """ASCII only: no text from outside ends a line or commands a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name.startswith("relaybox_")}
        if record.exc_info and record.exc_info[0] is not None:
            line["error"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line, default=str)


def in_json() -> bool:
    """Whether this process speaks JSON."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def json_line(text: str, level: int = logging.INFO) -> str:
    return JsonLines().format(logging.LogRecord("relaybox", level, "", 0, "%s", (text,), None)) + "\n"


def log_to_stderr(level: str, format: str = "text", *, ours: bool = False) -> None:
    """`ours`: below info only our own lines, because clients of brokers log whole requests there, payloads and keys."""
    for name, given, known in (("--log-level", level, LEVELS), ("--log-format", format, FORMATS)):
        if given.lower() not in known:
            raise typer.BadParameter(
                f"expected {name} to be one of {', '.join(known)}, got {given!r}{did_you_mean(given, known)}"
            )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    if format.lower() == "json":
        handler.setFormatter(JsonLines())
        logging.captureWarnings(True)
        sys.excepthook, threading.excepthook = _uncaught, _uncaught_in_thread
    logging.basicConfig(level=level.upper(), handlers=[handler])
    log = logging.getLogger("relaybox")
    if ours and logging.getLogger().level < logging.INFO:
        logging.getLogger().setLevel(logging.INFO)
        log.setLevel(logging.DEBUG)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger("relaybox").critical("the process ends: %s", kind.__name__, exc_info=(kind, error, trace))


def _uncaught_in_thread(told: threading.ExceptHookArgs) -> None:
    if told.exc_value is not None:
        name = "a thread" if told.thread is None else told.thread.name
        logging.getLogger("relaybox").error("%s ended: %s", name, told.exc_type.__name__, exc_info=told.exc_value)
