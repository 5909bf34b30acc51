"""Connections of a pool that a library of the caller's keeps. Nothing of it stays idle here, and in a forked child
nothing of it is used: its threads or its event loop are not there, and its sockets are the parent's. There all
connections are of our own."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from ..errors import StoreError
from .pool import AsyncDatabase, Database
from .spi import AsyncConnection, Connection

log = logging.getLogger("relaybox.drivers")


class Lent:
    """Marks the adapter of a connection that goes back to its pool by `close`."""


class LentDatabase(Database):
    own: Callable[[], Connection]  # for a forked child

    def after_fork(self) -> None:
        self._connect = self.own
        super().after_fork()

    def give_back(self, connection: Connection, *, suspect: bool) -> None:
        if not isinstance(connection, Lent):
            super().give_back(connection, suspect=suspect)
            return
        try:
            connection.close()
        except StoreError:
            log.debug("a borrowed connection could not be returned", exc_info=True)


class AsyncLentDatabase(AsyncDatabase):
    own: Callable[[], Awaitable[AsyncConnection]]

    def after_fork(self) -> None:
        self._connect = self.own
        super().after_fork()

    async def give_back(self, connection: AsyncConnection, *, suspect: bool) -> None:
        if not isinstance(connection, Lent):
            await super().give_back(connection, suspect=suspect)
            return
        try:
            await connection.close()
        except StoreError:
            log.debug("a borrowed connection could not be returned", exc_info=True)
