"""The `relaybox` command. Needs the extra `cli` (typer, rich); without it, one line says so."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None, program: str | None = None) -> None:
    """`arguments`: instead of those of the process. `program`: how it was called."""
    try:
        from .app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich", "click"):
            raise
        sys.stderr.write(f"error: the command line needs the package {error.name!r}: pip install 'relaybox[cli]'\n")
        sys.exit(1)
    app(None if arguments is None else list(arguments), prog_name=program)
