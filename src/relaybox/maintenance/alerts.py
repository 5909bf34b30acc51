"""Alerts: told once when something begins and once when it is over, to the log, by NOTIFY and to observers.

What is open is kept in the database, so neither a new leader nor a run from cron tells it again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..clock import Clock
from ..drivers.spi import AsyncRunner
from ..errors import StoreError
from ..facts import Alert, Observers
from ..store.topics.maintenance import AlertCondition

if TYPE_CHECKING:
    from ..store.topics.store import TopicStore

log = logging.getLogger("relaybox")


class Alerts:
    def __init__(self, db: AsyncRunner, store: TopicStore, observers: Observers, clock: Clock) -> None:
        self._db = db
        self._store = store
        self._observers = observers
        self._clock = clock

    async def found(self, looked: Sequence[str], conditions: Sequence[AlertCondition]) -> None:
        """What is the case now, of all kinds that were looked for."""
        unique = list({condition[:3]: condition for condition in conditions}.values())
        begun, over = await self._db.run(self._store.change_alerts(looked, unique, self._clock.database_now()))
        for condition in begun:
            await self._tell(Alert(*condition))
        for condition in over:
            await self._tell(Alert(*condition, over=True))

    async def happened(self, name: str, topic: str = "", group: str = "", text: str = "") -> None:
        """Something that begins and ends at once."""
        await self._tell(Alert(name, topic, group, text))

    async def _tell(self, alert: Alert) -> None:
        self._observers(alert)
        try:
            await self._db.run(self._store.notify_alert(), tx=False)
        except StoreError as error:
            log.warning("alert %s could not be sent by NOTIFY: %s", alert.name, type(error).__name__)
