"""`relaybox run MODULE:OBJECT…`: services work until a signal, then finish what is under way."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer

from ..errors import ConfigError
from ..service import AsyncService, Service, serving, signalled
from ..values import Health, Level
from .connect import target_of

Services = (Service, AsyncService)
_LEVELS = ("debug", "info", "warning", "error")


def run(
    context: typer.Context,
    references: Annotated[
        list[str],
        typer.Argument(
            metavar="MODULE:OBJECT...",
            help="services, such as outbox.deliver(listeners), or functions without arguments that make one",
        ),
    ],
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="serve /live, /ready and /metrics here")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="do what is due now, and stop")] = False,
    log_level: Annotated[str, typer.Option(envvar="RELAYBOX_LOG_LEVEL", help="debug, info, warning or error")] = "info",
) -> None:
    """Work until Ctrl-C or SIGTERM, finish what runs, sign off. A second signal exits at once.

    What was made without settings has those of the environment and of --config; `relaybox config` shows them.
    """
    log_to_stderr(log_level)
    target = target_of(context)
    _ = target.settings  # wrong ones are told before anything is imported
    if target.config is not None:
        os.environ["RELAYBOX_CONFIG"] = str(target.config.resolve())  # for all that is made without settings
    asyncio.run(_serve([(reference, load_object(reference)) for reference in references], listen, once))


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
        raise ConfigError(f"expected MODULE:OBJECT such as shop.events:delivery, got {reference!r}")
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
            names = ", ".join(n for n, value in getattr(found, "__dict__", {}).items() if isinstance(value, Services))
            hint = f"; it has {names}" if names else ""
            raise ConfigError(f"{module_name} has no {path!r}{hint}")
        found = getattr(found, name)
    return found


async def make(reference: str, found: Any) -> Service | AsyncService:
    if callable(found) and not isinstance(found, Services):
        if _required(found):
            raise ConfigError(f"{reference} needs arguments; name a function without, or the service itself")
        found = found()
        if inspect.isawaitable(found):
            found = await found
    if not isinstance(found, Services):
        hint = "; name what its deliver() returns" if hasattr(found, "deliver") else ""
        raise ConfigError(
            f"expected {reference} to be a service, such as outbox.deliver(listeners), got {type(found).__name__}{hint}"
        )
    return found


def _required(function: Any) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


async def _serve(references: list[tuple[str, Any]], listen: str | None, once: bool) -> None:
    """A synchronous service works in a thread of its own; it is started and stopped off this loop."""
    services = [await make(reference, found) for reference, found in references]
    stop = asyncio.Event()
    with serving(listen, lambda: _worst(services)), signalled(asyncio.get_running_loop(), stop.set):
        started: list[Service | AsyncService] = []
        try:
            for service in services:
                await _do(service, "start")
                started.append(service)
                _line(f"relaybox runs {service.name}")
            if once:
                await asyncio.gather(*(_do(service, "drain") for service in services))
            else:
                await stop.wait()
                _line("relaybox stops: finishing what is under way")
        finally:
            await asyncio.gather(*(_do(service, "stop") for service in started))
    for service in services:
        done = service.counts
        _line(f"{service.name}: {done.done:,} done, {done.failed:,} failed attempts, {done.dead:,} dead")
    _line("relaybox stopped")


async def _do(service: Service | AsyncService, verb: str) -> None:
    if isinstance(service, Service):
        await asyncio.to_thread(getattr(service, verb))
    else:
        await getattr(service, verb)()


def _worst(services: list[Service | AsyncService]) -> Health:
    found = [(service.name, service.health()) for service in services]
    reasons = tuple(f"{name}: {reason}" for name, health in found for reason in health.reasons)
    level: Level = "critical" if any(health.level == "critical" for _, health in found) else "ok"
    return Health(level, reasons, all(health.live for _, health in found))


def _line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
