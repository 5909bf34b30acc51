"""Run once, by who owns the database: the tables, and a role that may relay and nothing else."""

import asyncio
import os

import asyncpg

from relaybox import AsyncOutbox


async def main(url: str, role: str, password: str) -> None:
    async with AsyncOutbox(url) as outbox:
        await outbox.migrate()
        statements = await outbox.grants("relay", to=role)
    owner = await asyncpg.connect(url)
    try:
        if not await owner.fetchval("SELECT 1 FROM pg_roles WHERE rolname = $1", role):
            quoted = "SELECT format('CREATE ROLE %I LOGIN PASSWORD %L', $1::text, $2::text)"
            await owner.execute(await owner.fetchval(quoted, role, password))
        for statement in statements:
            await owner.execute(statement)
    finally:
        await owner.close()


if __name__ == "__main__":
    asyncio.run(main(os.environ["RELAYBOX_URL"], os.environ["RELAY_ROLE"], os.environ["RELAY_PASSWORD"]))
