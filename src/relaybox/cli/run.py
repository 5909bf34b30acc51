"""`relaybox run MODULE:OBJECT`: deliver until a signal, then drain."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import signal
import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from ..errors import ConfigError
from ..outbox import AsyncOutbox, Outbox
from .connect import target_of

Box = Outbox | AsyncOutbox
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LEVELS = ("debug", "info", "warning", "error")


def run(
    context: typer.Context,
    reference: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:OBJECT", help="an Outbox or AsyncOutbox, or a function without arguments that makes one"
        ),
    ],
    log_level: Annotated[str, typer.Option(envvar="RELAYBOX_LOG_LEVEL", help="debug, info, warning or error")] = "info",
) -> None:
    """Deliver until Ctrl-C or SIGTERM, finish what runs, sign off. A second signal exits at once.

    An outbox that was made without settings has those of the environment and of --config; `relaybox config` shows them.
    """
    log_to_stderr(log_level)
    target = target_of(context)
    _ = target.settings  # wrong ones are told before anything is imported
    if target.config is not None:
        os.environ["RELAYBOX_CONFIG"] = str(target.config.resolve())  # for all that is made without settings
    found = load_object(reference)
    asyncio.run(_serve(reference, found))


def log_to_stderr(level: str) -> None:
    if level.lower() not in _LEVELS:
        raise typer.BadParameter(f"expected --log-level to be one of {', '.join(_LEVELS)}, got {level!r}")
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )


def load_object(reference: str) -> Any:
    """The object a reference names, with the current folder importable as `python -m` would have it."""
    module_name, _, path = reference.partition(":")
    if not module_name or not path:
        raise ConfigError(f"expected MODULE:OBJECT such as shop.events:outbox, got {reference!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there; something it imports is not, and its traceback says where
        raise ConfigError(f"there is no module {module_name!r} here or on the Python path") from None
    for name in path.split("."):
        if not hasattr(found, name):
            names = (
                ", ".join(n for n, v in vars(found).items() if isinstance(v, Box)) if hasattr(found, "__dict__") else ""
            )
            hint = f"; it has {names}" if names else ""
            raise ConfigError(f"{module_name} has no {path!r}{hint}")
        found = getattr(found, name)
    return found


async def make(reference: str, found: Any) -> Box:
    if callable(found) and not isinstance(found, Box):
        if _required(found):
            raise ConfigError(f"{reference} needs arguments; name a function without, or the outbox itself")
        found = found()
        if inspect.isawaitable(found):
            found = await found
    if not isinstance(found, Box):
        raise ConfigError(f"expected {reference} to be an Outbox or AsyncOutbox, got {type(found).__name__}")
    if found.role is None:
        raise ConfigError(
            f"{reference} only writes; make it with single_node, multi_node or ordered (or writer_only, to purge)"
        )
    return found


def _required(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


async def _serve(reference: str, found: Any) -> None:
    """A sync outbox delivers in a thread of its own; entering and leaving it happens off this loop."""
    box = await make(reference, found)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, first_signal, loop, stop, _SIGNALS)
    if isinstance(box, Outbox):
        await asyncio.to_thread(box.__enter__)
    else:
        await box.__aenter__()
    _line(f"relaybox runs {reference} ({box.role}, {box.store.dialect}, table {box.store.tables.event})")
    try:
        await stop.wait()
        _line("relaybox stops: finishing what is under way")
    finally:
        if isinstance(box, Outbox):
            await asyncio.to_thread(box.close)
        else:
            await box.close()
    _line("relaybox stopped")


def first_signal(loop: asyncio.AbstractEventLoop, stop: asyncio.Event, numbers: tuple[signal.Signals, ...]) -> None:
    """From here on a signal ends the process even if a listener blocks the loop; leases give the work to others."""
    for number in numbers:
        loop.remove_signal_handler(number)
        signal.signal(number, lambda received, _: os._exit(128 + received))
    stop.set()


def _line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
