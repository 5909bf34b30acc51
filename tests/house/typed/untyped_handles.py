"""Handles of libraries without types of their own: pyright reads their source, and is not strict about it."""

# pyright: basic

from __future__ import annotations

import asyncmy.connection
import asyncmy.cursors
import asyncpg
import asyncpg.pool
import pymysql
import pymysql.cursors
from django.db import connection

from relaybox import AsyncOutbox, Event, Outbox


def sync_handles(outbox: Outbox, event: Event, mysql: pymysql.Connection, cursor: pymysql.cursors.Cursor) -> None:
    outbox.write(mysql, event)
    outbox.write(cursor, event)
    outbox.write(connection, event)


async def async_handles(
    outbox: AsyncOutbox,
    event: Event,
    postgres: asyncpg.Connection,
    pooled: asyncpg.pool.PoolConnectionProxy,
    mysql: asyncmy.connection.Connection,
    cursor: asyncmy.cursors.Cursor,
) -> None:
    await outbox.write(postgres, event)
    await outbox.write(pooled, event)
    await outbox.write(mysql, event)
    await outbox.write(cursor, event)
