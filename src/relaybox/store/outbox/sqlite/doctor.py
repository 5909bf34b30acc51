"""What SQLite's version, pragmas and file mean for delivery."""

from __future__ import annotations

from collections.abc import Iterator

from ...doctor import Circumstances, Facts, Finding, Severity, Vitals, version

NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "9p", "ceph", "gluster", "lustre", "afs", "fuse.sshfs", "ocfs2", "gfs")


def judge(seen: Vitals, around: Circumstances) -> Iterator[Finding]:
    facts = Facts(seen)
    shown = facts.text("version") or ""
    numbers = version(shown)
    journal = facts.text("journal_mode")
    if numbers < (3, 35):
        yield Finding("critical", "version", f"SQLite {shown} is older than 3.35", "use a newer Python build")
    elif numbers >= (3, 51, 3) or journal != "wal":
        yield Finding("ok", "version", f"SQLite {shown}")
    elif around.processes < 2:
        yield Finding("ok", "version", f"SQLite {shown}; before several processes write this file, get 3.51.3 or newer")
    else:
        yield Finding(
            "warning",
            "version",
            f"SQLite {shown} has the WAL-reset bug: processes that write at the same moment can, very rarely, "
            "damage the file",
            "use SQLite 3.51.3 or newer, or one writing process",
        )
    if journal is not None:
        yield (
            Finding("ok", "journal_mode", journal)
            if journal in ("wal", "memory")
            else Finding("warning", "journal_mode", f"{journal}: readers and writers wait for one another", "use WAL")
        )
    synchronous = facts.number("synchronous")
    if synchronous is not None and synchronous < 2:
        level: Severity = "critical" if synchronous == 0 or journal != "wal" else "warning"
        yield Finding(
            level,
            "synchronous",
            "synchronous is below FULL: the last commits may be lost at a power cut",
            "PRAGMA synchronous = FULL",
        )
    elif synchronous is not None:
        yield Finding("ok", "synchronous", "FULL: commits survive a power cut")
    damage = facts.text("quick_check")
    if damage is not None:
        yield (
            Finding("ok", "integrity", "quick_check found no damage")
            if damage == "ok"
            else Finding("critical", "integrity", f"the file is damaged: {damage[:200]}", "restore a backup")
        )
    if around.file_system and around.file_system.startswith(NETWORK_FILE_SYSTEMS):
        yield Finding(
            "critical",
            "file system",
            f"the file lies on {around.file_system}, a network file system: SQLite's locks and WAL do not work there",
            "move it to a local disk, or use PostgreSQL or MySQL",
        )
