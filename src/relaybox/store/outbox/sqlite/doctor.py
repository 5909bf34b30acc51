"""What SQLite's version, pragmas and file mean for delivery."""

from __future__ import annotations

from collections.abc import Iterator

from ...doctor import Circumstances, Facts, Finding, Severity, Vitals, verdict, version

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
        ill = f"{journal}: readers and writers wait for one another"
        yield verdict(journal in ("wal", "memory"), "journal_mode", journal, "warning", ill, "use WAL")
    synchronous = facts.number("synchronous")
    if synchronous is not None:
        level: Severity = "critical" if synchronous == 0 or journal != "wal" else "warning"
        well = "FULL: commits survive a power cut"
        ill = "synchronous is below FULL: the last commits may be lost at a power cut"
        yield verdict(synchronous >= 2, "synchronous", well, level, ill, "PRAGMA synchronous = FULL")
    damage = facts.text("quick_check")
    if damage is not None:
        ill = f"the file is damaged: {damage[:200]}"
        yield verdict(damage == "ok", "integrity", "quick_check found no damage", "critical", ill, "restore a backup")
    if around.file_system and around.file_system.startswith(NETWORK_FILE_SYSTEMS):
        yield Finding(
            "critical",
            "file system",
            f"the file lies on {around.file_system}, a network file system: SQLite's locks and WAL do not work there",
            "move it to a local disk, or use PostgreSQL or MySQL",
        )
