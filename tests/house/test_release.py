"""What would be published is whole, and only what is meant to be."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def built(release: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if not (ROOT / ".git").exists():
        pytest.skip("what is committed can be told only in a clone")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def test_wheel_and_sdist_are_complete(release: ModuleType, built: tuple[Path, Path]) -> None:
    release._complete(*built)


def test_a_wheel_without_one_of_our_files_is_refused(
    release: ModuleType, built: tuple[Path, Path], tmp_path: Path
) -> None:
    poorer = tmp_path / built[0].name
    with zipfile.ZipFile(built[0]) as whole, zipfile.ZipFile(poorer, "w") as copy:
        for item in whole.infolist():
            if item.filename != "relaybox/py.typed":
                copy.writestr(item, whole.read(item))
        copy.writestr("tests/test_of_ours.py", "")
    with pytest.raises(SystemExit, match=r"missing: \['relaybox/py.typed'\].*\['tests/test_of_ours.py'\]"):
        release._complete(poorer, built[1])


def test_the_sdist_holds_no_secret_and_nothing_built(built: tuple[Path, Path]) -> None:
    with tarfile.open(built[1]) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert [
        name for name in names if name.startswith((".venv", "build/", "dist/")) or name.endswith((".db", ".pyc"))
    ] == []


def test_the_sums_are_those_of_the_files_and_can_be_signed(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not here: apt-get install openssh-client")
    monkeypatch.setattr(release, "DIST", tmp_path)
    file = tmp_path / "relaybox-1.0.0.tar.gz"
    file.write_bytes(b"made")
    listed = release._sums([file])
    assert subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, check=False).returncode == 0
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    release._sign(key, listed)
    (tmp_path / "allowed").write_text(f"us {key.with_suffix('.pub').read_text()}")
    verify = [
        "ssh-keygen",
        "-Y",
        "verify",
        "-f",
        "allowed",
        "-I",
        "us",
        "-n",
        release.NAMESPACE,
        "-s",
        "SHA256SUMS.sig",
    ]
    for text, code in ((listed.read_bytes(), 0), (listed.read_bytes() + b"\n", 255)):
        assert subprocess.run(verify, cwd=tmp_path, input=text, capture_output=True, check=False).returncode == code


def test_a_release_needs_its_day_in_the_changelog(release: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "_output", lambda *command: "")
    monkeypatch.setattr(release, "_changelog", lambda: "## [1.0.0] - unreleased\n\n## [0.9.0] - 2026-01-02\n")
    with pytest.raises(SystemExit, match=r"'## \[1.0.0\] - YYYY-MM-DD'"):
        release._released("1.0.0")
    release._released("0.9.0")
    monkeypatch.setattr(release, "_output", lambda *command: " M README.md\n")
    with pytest.raises(SystemExit, match="not committed"):
        release._released("0.9.0")


def test_every_development_dependency_is_locked_with_its_hashes() -> None:
    text = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8")
    entries = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(entries) > 100
    assert [line for line in entries if "==" not in line or not line.endswith("\\")] == []
    locked = {line.partition("==")[0].lower() for line in entries}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    wanted = set()
    groups = ["all", "dev"]
    for group in groups:
        for requirement in extras[group]:
            name, _, rest = re.split(r"([\[<>=~!; ])", requirement, maxsplit=1)
            if name == "relaybox":
                groups += [extra for extra in rest.rstrip("]").split(",") if extra not in groups]
            else:
                wanted.add(name.lower())
    assert wanted - locked == set(), "run make lock"
