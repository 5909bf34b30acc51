"""Django projects for tests: the shop of the examples, with settings of their own, on every engine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any
from urllib.parse import unquote, urlsplit

from kit import make_database

SHOP = Path(__file__).parents[2] / "examples" / "django_shop"
SOURCE = Path(__file__).parents[2] / "src"
ENGINES = {"postgres": "postgresql", "sqlite": "sqlite3", "mariadb": "mysql"}
# PyMySQL stands in for mysqlclient, which needs a compiler.
STAND_IN = "import pymysql\npymysql.version_info = (2, 2, 7, 'final', 0)\npymysql.install_as_MySQLdb()\n"


def database(engine: str, folder: Path) -> dict[str, Any]:
    """As in DATABASES."""
    url = make_database(engine, folder, migrated=False)
    parts = urlsplit(url)
    found: dict[str, Any] = {"ENGINE": f"django.db.backends.{ENGINES[engine]}"}
    if engine == "sqlite":
        return found | {"NAME": url.removeprefix("sqlite:///"), "TEST": {"NAME": str(folder / "test.db")}}
    found |= {"NAME": parts.path[1:], "USER": unquote(parts.username or ""), "PASSWORD": unquote(parts.password or "")}
    return found | {"HOST": parts.hostname, "PORT": parts.port or ""}


class Django:
    """The shop in a folder, whose settings.py says what the shop's says and more."""

    def __init__(
        self, folder: Path, databases: Mapping[str, Mapping[str, Any]], *, site: str = "", **more: Any
    ) -> None:
        self.folder = folder
        self._site = site  # another Django than the one of this environment
        lines = [STAND_IN, "from project.settings import *", f"DATABASES = {dict(databases)!r}"]
        lines += [f"{name} = {value!r}" for name, value in more.items()]
        (folder / "settings_of_test.py").write_text("\n".join(lines) + "\n")

    def run(self, *arguments: str | Path, fails: bool = False, **environment: str) -> str:
        path = [self._site, str(self.folder), str(SHOP), str(SOURCE)]
        result = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=self.folder,
            env={
                **os.environ,
                "COLUMNS": "200",
                "PYTHONPATH": os.pathsep.join(filter(None, path)),
                "DJANGO_SETTINGS_MODULE": "settings_of_test",
                "PYTHONDONTWRITEBYTECODE": "1",
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=100,
        )
        said = result.stdout + result.stderr
        assert (result.returncode != 0) == fails, said
        return said

    def manage(self, *arguments: str, fails: bool = False) -> str:
        return self.run(SHOP / "manage.py", *arguments, fails=fails)

    def pytest(self, *arguments: str | Path) -> str:
        return self.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", SHOP / "pytest.ini", *arguments)

    def do(self, code: str) -> str:
        """A program within the project."""
        return self.run("-c", f"import django\ndjango.setup()\n{dedent(code)}")
