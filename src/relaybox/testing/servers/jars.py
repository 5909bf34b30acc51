"""What runs in a Java machine, as jars: where they lie, and how Maven fetches them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .process import ServerFailed, ServerUnavailable, find_program

KAFKA_VERSION = "4.1.1"
DEBEZIUM_VERSION = "3.5.0.Final"
JARS_VARIABLE = "RELAYBOX_KAFKA_JARS"
LOGGING = ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3")


@dataclass(frozen=True)
class Jars:
    what: str
    name: str  # of their folder in the cache
    mark: str  # one of them, by which the folder is known to be whole
    wanted: tuple[tuple[str, str, str], ...]  # group, artifact and version; Maven adds what they need
    variable: str | None = None  # of the environment: names another folder

    @property
    def folder(self) -> Path:
        if self.variable and (named := os.environ.get(self.variable)):
            return Path(named)
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "relaybox" / self.name

    @property
    def there(self) -> bool:
        return any(self.folder.glob(self.mark))

    def fetch(self) -> Path:
        """All or nothing, so that a broken download is not taken for the whole."""
        target = self.folder
        if self.there:
            return target
        maven = find_program("mvn")
        if maven is None:
            raise ServerUnavailable(f"Maven (to fetch {self.what})", "apt-get install maven (or your system's package)")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as name:
            folder = Path(name)
            (folder / "pom.xml").write_text(self._pom())
            copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=jars"]
            done = subprocess.run([maven, "-B", "-q", *copy], cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise ServerFailed(f"Maven could not fetch {self.what}\n{done.stdout[-2000:]}")
            shutil.rmtree(target, ignore_errors=True)
            (folder / "jars").rename(target)
        return target

    def _pom(self) -> str:
        """A project that is nothing but what is wanted."""
        dependencies = "".join(
            f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>"
            for group, artifact, version in self.wanted
        )
        return (
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>relaybox</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>"
            f"<dependencies>{dependencies}</dependencies></project>"
        )


KAFKA = Jars(
    f"Kafka {KAFKA_VERSION}",
    f"kafka-{KAFKA_VERSION}",
    "kafka_*.jar",
    (("org.apache.kafka", "kafka_2.13", KAFKA_VERSION), LOGGING),
    JARS_VARIABLE,
)
CONNECT = Jars(
    f"Debezium {DEBEZIUM_VERSION}",
    f"connect-{KAFKA_VERSION}-debezium-{DEBEZIUM_VERSION}",
    "debezium-connector-postgres-*.jar",
    (
        ("org.apache.kafka", "connect-runtime", KAFKA_VERSION),
        ("io.debezium", "debezium-connector-postgres", DEBEZIUM_VERSION),
        ("io.debezium", "debezium-connector-mariadb", DEBEZIUM_VERSION),
        LOGGING,
    ),
)
