"""Alembic projects for tests: a folder with an env.py, and migrations that are run, compared or written as a script."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from kit import with_driver

METADATA = sa.MetaData()
sa.Table("orders", METADATA, sa.Column("id", sa.Integer, primary_key=True))

SYNC = """
from alembic import context
from sqlalchemy import create_engine

given = context.config.attributes
options = {"target_metadata": given["metadata"], "include_schemas": given["schemas"], **given["hooks"]}
if context.is_offline_mode():
    context.configure(url=given["url"], literal_binds=True, **options)
    with context.begin_transaction():
        context.run_migrations()
else:
    engine = create_engine(given["url"])
    with engine.connect() as connection:
        context.configure(connection=connection, **options)
        with context.begin_transaction():
            context.run_migrations()
    engine.dispose()
"""

ASYNC = """
import asyncio

from alembic import context
from sqlalchemy.ext.asyncio import create_async_engine

given = context.config.attributes


def migrate(connection):
    context.configure(
        connection=connection,
        target_metadata=given["metadata"],
        include_schemas=given["schemas"],
        **given["hooks"],
    )
    with context.begin_transaction():
        context.run_migrations()


async def main():
    engine = create_async_engine(given["url"])
    async with engine.connect() as connection:
        await connection.run_sync(migrate)
    await engine.dispose()


asyncio.run(main())
"""

MIGRATION = '''"""{name}"""

import sqlalchemy as sa
from alembic import op

revision = "{name}"
down_revision = {after!r}


def upgrade():
    {body}


def downgrade():
    pass
'''


ORDERS = "op.create_table('orders', sa.Column('id', sa.Integer(), primary_key=True))"


class Project:
    def __init__(
        self,
        folder: Path,
        url: str,
        driver: str,
        *,
        metadata: sa.MetaData = METADATA,
        schemas: bool = False,
        **hooks: Any,
    ) -> None:
        """`hooks`: include_object, if it has one."""
        self.url = url if driver == "sqlite" else with_driver(url, driver)
        self._folder = folder / "migrations"
        (self._folder / "versions").mkdir(parents=True)
        (self._folder / "env.py").write_text(ASYNC if driver in ("asyncpg", "aiosqlite", "asyncmy") else SYNC)
        self.said = StringIO()
        self.config = Config(stdout=self.said, output_buffer=self.said)
        self.config.set_main_option("script_location", str(self._folder))
        self.config.attributes.update(url=self.url, metadata=metadata, schemas=schemas, hooks=hooks)

    def add(self, body: str) -> str:
        """A migration written by hand."""
        heads = ScriptDirectory.from_config(self.config).get_heads()
        after = heads[0] if heads else None
        name = f"m{1 if after is None else int(after[1:]) + 1:03}"
        text = MIGRATION.format(name=name, after=after, body=body)
        (self._folder / "versions" / f"{name}.py").write_text(text)
        return name

    def repair(self, name: str, old: str, new: str) -> None:
        path = self._folder / "versions" / f"{name}.py"
        path.write_text(path.read_text().replace(old, new))

    def upgrade(self, to: str = "head") -> None:
        command.upgrade(self.config, to)

    def script(self, to: str = "head") -> str:
        self.said.seek(0)
        self.said.truncate()
        command.upgrade(self.config, to, sql=True)
        return self.said.getvalue()

    def check(self) -> None:
        """Raises unless autogenerate would write an empty migration."""
        command.check(self.config)
