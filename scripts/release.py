"""Makes dist/ ready to be published, and stops there:

    python scripts/release.py --sign ~/.ssh/release_key
    python scripts/release.py --rehearse                  of a tree that is not released, unsigned

Builds wheel and sdist from what is committed, looks that nothing is missing in them, installs each in a new environment
where no compiler can be called, runs a program there, and writes sbom.json (CycloneDX, of all extras), SHA256SUMS and
its signature.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
NAMESPACE = "relaybox-release"  # of signatures: one made for something else is none of ours
ALSO = {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml"}
PROGRAM = """
import sqlite3
from relaybox import Event, Listeners, Outbox
seen, listeners = [], Listeners()
listeners.on("OrderPlaced")(lambda event: seen.append(event.payload["id"]))
with Outbox("sqlite:///shop.db") as outbox:
    outbox.migrate()
    with outbox.transaction() as tx:
        outbox.write(tx, Event("OrderPlaced", {"id": 7}))
    outbox.deliver(listeners).once()
assert seen == [7], seen
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make dist/ ready to be published.")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--sign", type=Path, metavar="KEY", help="an SSH key, for the list of files")
    how.add_argument("--rehearse", action="store_true", help="of any commit, and unsigned")
    given = parser.parse_args(argv)
    version = _version()
    if not given.rehearse:
        _released(version)
    wheel, sdist = _build()
    _complete(wheel, sdist)
    for made in (wheel, sdist):
        _tried(made)
    _bill_of_materials()
    listed = _sums([wheel, sdist, DIST / "sbom.json"])
    if given.sign:
        _sign(given.sign, listed)
    _say(f"dist/ holds relaybox {version}; to publish it: twine upload {_shown(wheel)} {_shown(sdist)}")
    return 0


def _version() -> str:
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "src/relaybox/__init__.py").read_text(), re.MULTILINE)
    assert found, "src/relaybox/__init__.py names no version"
    return found[1]


def _released(version: str) -> None:
    """What is published can be found again, and the changelog says when."""
    if _output("git", "status", "--porcelain"):
        raise SystemExit("there are changes that are not committed; commit them, or use --rehearse")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", _changelog(), re.MULTILINE):
        raise SystemExit(f"CHANGELOG.md has no heading '## [{version}] - YYYY-MM-DD'; write the day of the release")


def _changelog() -> str:
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def _build() -> tuple[Path, Path]:
    """From a clone: what is not committed is not published."""
    shutil.rmtree(DIST, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        _run("git", "clone", "--quiet", "--no-local", str(ROOT), folder)
        _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST), folder)
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    return wheel, sdist


def _complete(wheel: Path, sdist: Path) -> None:
    tracked = set(_output("git", "ls-files").splitlines())
    library = {name.removeprefix("src/") for name in tracked if name.startswith("src/relaybox/")}
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    missing = {*(library - in_wheel), *(({f"src/{name}" for name in library} | ALSO) - in_sdist)}
    foreign = {name for name in in_wheel if not name.startswith(("relaybox/", "relaybox-"))}
    if missing or foreign:
        raise SystemExit(f"missing: {sorted(missing)}; in the wheel, and not of the library: {sorted(foreign)}")
    _run(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist))
    _say(f"{len(in_wheel)} files in the wheel, {len(in_sdist)} in the sdist")


def _tried(made: Path) -> None:
    """By itself, then with the command line."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "venv/bin/python")
        _run(sys.executable, "-m", "venv", str(python.parents[1]))
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "RELAYBOX_"))}
        bare |= {"CC": "/bin/false", "CXX": "/bin/false"}
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run(*install, str(made), cwd=folder, env=bare)
        _run(str(python), "-c", PROGRAM, cwd=folder, env=bare)
        _run(*install, f"{made}[cli]", cwd=folder, env=bare)
        _run(str(python.with_name("relaybox")), "demo", "--json", cwd=folder, env=bare, stdout=subprocess.DEVNULL)
    _say(f"{made.name} works where no compiler is")


def _bill_of_materials() -> None:
    """Of all extras in the versions that are newest now; the core itself needs nothing."""
    with tempfile.TemporaryDirectory() as folder:
        resolved = Path(folder, "all.txt")
        compile_ = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--no-emit-index-url"]
        _run(*compile_, "--extra", "all", "--generate-hashes", "--output-file", str(resolved), "pyproject.toml")
        made = ["--output-format", "JSON", "--output-file", str(DIST / "sbom.json"), "--pyproject", "pyproject.toml"]
        _run(sys.executable, "-m", "cyclonedx_py", "requirements", *made, str(resolved))


def _sums(files: Iterable[Path]) -> Path:
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (DIST / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")
    return DIST / "SHA256SUMS"


def _sign(key: Path, listed: Path) -> None:
    """Beside it, as SHA256SUMS.sig; `ssh-keygen -Y verify` looks whether it is ours."""
    _run("ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(listed))


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def _run(*command: str, cwd: Path | str = ROOT, **more: object) -> None:
    done = subprocess.run(command, cwd=cwd, **more)  # type: ignore[call-overload]
    if done.returncode:
        raise SystemExit(f"failed: {' '.join(command)}")


def _shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _say(text: str) -> None:
    sys.stderr.write(f"release: {text}\n")


if __name__ == "__main__":
    raise SystemExit(main())
