"""relaybox as a Django app: tables by `manage.py migrate`, settings, `manage.py relaybox`, the admin.

# settings.py
INSTALLED_APPS += ["relaybox.contrib.django"]
RELAYBOX = {"inboxes": ["payments"], "delivery": {"workers": 8}}

# shop/events.py
from relaybox.contrib.django import outbox

with transaction.atomic():
    outbox().write(connection, Event("OrderPlaced", {"id": 7}, key="order-7"))

All of `RELAYBOX` may be left out:

databases  names of `DATABASES` that have tables of relaybox, ["default"]; the first is the one that is meant
table      the outbox, "outbox_event"; None: there is none
schema     where the tables are, unless in the connection's own schema
inboxes    the names of inboxes
guard      the table of `Guard.sql`, if there is one
vault      the table of a `Vault`, if there is one

and the sections of `Settings`. The environment and a settings file say more than these.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...inbox.inbox import Inbox
    from ...outbox import Outbox

__all__ = ["inbox", "outbox"]


def outbox(database: str | None = None) -> Outbox:
    """The outbox of `RELAYBOX`; `database` is one of its `databases`, the first if it is not given."""
    return _outbox(database)


@cache
def _outbox(database: str | None) -> Outbox:
    from ...errors import ConfigError
    from ...outbox import Outbox
    from .config import configured

    config = configured()
    if config.table is None:
        raise ConfigError('RELAYBOX says "table": None, so there is no outbox')
    return Outbox(config.url(database), table=config.table, schema=config.schema)


def inbox(name: str, database: str | None = None) -> Inbox:
    """An inbox of `RELAYBOX`; `database` is one of its `databases`, the first if it is not given."""
    return _inbox(name, database)


@cache
def _inbox(name: str, database: str | None) -> Inbox:
    from ...inbox.inbox import Inbox
    from .config import configured, one_of

    config = configured()
    return Inbox(config.url(database), one_of("inboxes", name, config.inboxes), schema=config.schema)
