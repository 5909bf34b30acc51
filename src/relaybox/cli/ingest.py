"""`relaybox ingest`: move messages from a broker into an inbox until a signal, or once."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AbstractContextManager, ExitStack
from typing import Annotated, Any, cast

import typer

from ..brokers import source_from_url
from ..errors import ConfigError
from ..facts import Observer
from ..inbox.inbox import Inbox
from ..ingest import Ingest
from ..ingest.config import load
from ..redaction import scrub
from ..vault import Vault
from ..vault.keyring import VARIABLE
from ..vault.vault import SubjectOf
from .connect import Target, keyring_of, target_of, warn_of_argument
from .logs import LogFormat, LogLevel, log_to_stderr
from .named import load_object
from .options import with_options
from .output import answer
from .run import (
    ListenAddress,
    Timeout,
    leave,
    metrics_of,
    pairs,
    seconds_of,
    serve,
)

log = logging.getLogger("relaybox")


OPTIONS: dict[str, Any] = {
    "inbox": Annotated[str | None, typer.Option(help="which inbox [RELAYBOX_INBOX, default inbox]")],
    "sender": Annotated[
        str | None, typer.Option(help="who sends: an id is a duplicate only of its own [RELAYBOX_INGEST_SENDER]")
    ],
    "subject": Annotated[
        str | None,
        typer.Option(
            metavar="tenant|key|MODULE:FUNCTION",
            help="store messages encrypted, by a data key for each of these; needs a keyring [RELAYBOX_INGEST_SUBJECT]",
        ),
    ],
    "type": Annotated[str | None, typer.Option(help="type of messages that name none; default: the channel")],
    "type_header": Annotated[str | None, typer.Option(help="header that names the type, of other systems")],
    "id_header": Annotated[str | None, typer.Option(help="header that has the id, of other systems")],
    "key_header": Annotated[str | None, typer.Option(help="header that has the key, of other systems")],
    "content_type": Annotated[str | None, typer.Option(help="content type of messages that do not say it")],
    "listen": ListenAddress,
}


@with_options("options", OPTIONS, dict)
def ingest(
    context: typer.Context,
    options: dict[str, Any],
    source: Annotated[
        str | None, typer.Option("--from", help="where from: kafka://…, amqp://…, nats://… [RELAYBOX_SOURCE]")
    ] = None,
    source_option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="an option of the source [RELAYBOX_SOURCE_NAME]")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="most messages in one transaction [default 500]", min=1)] = None,
    wait: Annotated[
        str | None, typer.Option(metavar="DURATION", help="how long a broker may have nothing new [default 1s]")
    ] = None,
    migrate: Annotated[bool, typer.Option("--migrate", help="create or upgrade the inbox's tables first")] = False,
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="stop when the broker has had nothing new for the time of --wait; exit 4 if "
            "something could not be read",
        ),
    ] = False,
    timeout: Timeout = None,
    json: Annotated[bool, typer.Option("--json", help="with --once: print JSON")] = False,
    log_level: LogLevel = "info",
    log_format: LogFormat = "text",
) -> None:
    """Store a broker's messages in an inbox, each once, and acknowledge what is stored."""
    if json and not once:
        raise typer.BadParameter("--json goes with --once")
    longest = seconds_of(timeout, once=once)
    log_to_stderr(log_level, log_format, ours=True)
    target = target_of(context)
    target.database(may_create=migrate, maker="relaybox inbox create").close()  # checks, no connection
    warn_of_argument("--from", source, "RELAYBOX_SOURCE")
    given = {
        "url": source,
        "options": pairs(source_option, "--source-option"),
        **options,
        "settings": {
            path: value for path, value in (("ingest.batch", batch), ("ingest.wait", wait)) if value is not None
        },
    }
    config = load(given, environment=os.environ, file=target.config)
    observers: list[Observer] = []
    metrics, _ = metrics_of(config.listen, observers)
    try:
        with ExitStack() as closing:
            vault = closing.enter_context(_vault(target, config.subject)) if config.subject else None
            named: dict[str, Any] = {"schema": target.schema.value, "settings": config.settings, "vault": vault}
            into = closing.enter_context(Inbox(target.needed_url, config.inbox, **named))
            if migrate:
                into.migrate()
                if vault is not None:
                    vault.migrate()
            if not config.settings.inbox.enabled:
                log.warning("inbox.enabled is off: nothing is read, messages wait at the broker")
                if not once:
                    asyncio.run(serve([]))
                return
            service = Ingest(
                source_from_url(config.url, config.options),
                into,
                sender=config.sender,
                reading=config.reading,
                settings=config.settings,
                observers=observers,
            )
            token = config.settings.listen.bearer()
            pages = {"listen": config.listen, "token": token, "metrics": metrics}
            health = asyncio.run(serve([service], **pages, once=once, timeout=longest, quiet=once))
    except ConfigError as error:
        raise ConfigError(scrub(str(error), config.url)) from None
    if once:
        counts = service.counts
        told = {"accepted": counts.done - counts.ignored, "duplicates": counts.ignored, "malformed": counts.dead}
        answer(json, told, ", ".join(f"{name} {count:,}" for name, count in told.items()))
        leave(health)


def _vault(target: Target, subject: str) -> AbstractContextManager[Vault]:
    keyring = keyring_of(os.environ)
    if keyring is None:
        raise ConfigError(f"--subject encrypts what is stored, and needs a keyring: set RELAYBOX_KEYRING or {VARIABLE}")
    if subject in ("tenant", "key"):
        return target.vault(keyring, cast(SubjectOf, subject))
    if ":" not in subject:
        raise ConfigError(f"expected --subject to be tenant, key or MODULE:FUNCTION, got {subject!r}")
    return target.vault(keyring, load_object(subject))
