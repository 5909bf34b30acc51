"""Gets the peers from their registries into benchmarks/.cache, once per set of pinned versions."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from benchmarks.spi import PeerFailed

HERE = Path(__file__).parent
CACHE = HERE / ".cache"
REQUIREMENTS = HERE / "peers" / "requirements.txt"
NODE_SOURCES = HERE / "peers" / "node"
PEERS_PYTHON = CACHE / "peers-venv" / "bin" / "python"
NODE_HOME = CACHE / "node"
PGQ_HOME = CACHE / "pgq"


@cache
def python_peers() -> None:
    """Create the peers' virtualenv from the pinned requirements."""
    mark = CACHE / "peers-venv" / "installed"
    wanted = _digest(REQUIREMENTS)
    if mark.exists() and mark.read_text() == wanted:
        return
    print("installing the Python peers …", flush=True)
    _run([sys.executable, "-m", "venv", "--clear", str(CACHE / "peers-venv")])
    _run([str(PEERS_PYTHON), "-m", "pip", "install", "--quiet", "-r", str(REQUIREMENTS)])
    mark.write_text(wanted)


@cache
def node_peers() -> None:
    """Install the pinned npm packages, and put the peers' programs beside them."""
    NODE_HOME.mkdir(parents=True, exist_ok=True)
    for source in (*NODE_SOURCES.glob("*.mjs"), NODE_SOURCES / "package.json"):
        shutil.copy(source, NODE_HOME / source.name)
    mark = NODE_HOME / "installed"
    wanted = _digest(NODE_SOURCES / "package.json")
    if mark.exists() and mark.read_text() == wanted:
        return
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise PeerFailed("node and npm are not on the path")
    print("installing the Node peers …", flush=True)
    _run([npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"], NODE_HOME)
    mark.write_text(wanted)


@cache
def pgq() -> None:
    """Unpack the PgQ package of this machine's Debian release; nothing of the machine is changed."""
    python_peers()
    if (PGQ_HOME / "usr").exists():
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise PeerFailed("PgQ is a Debian package: no apt-get or dpkg on the path")
    print("getting PgQ …", flush=True)
    PGQ_HOME.mkdir(parents=True, exist_ok=True)
    _run(["apt-get", "download", "postgresql-*-pgq3"], PGQ_HOME)
    _run(["dpkg", "-x", str(max(PGQ_HOME.glob("*.deb"))), str(PGQ_HOME)])


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run(command: list[str], cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        tail = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise PeerFailed(f"installation failed: {' | '.join(tail)}")
