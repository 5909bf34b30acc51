"""Run by the Python of dbt's own environment: takes commands of dbt as lines of JSON, answers with lines of JSON.

One process for many commands, because loading dbt takes longer than most of them.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def answer(result: Any) -> dict[str, Any]:
    found = getattr(result.result, "results", None) or []
    nodes = {one.node.name: [str(one.status), one.message] for one in found if getattr(one, "node", None) is not None}
    return {"success": result.success, "error": str(result.exception or ""), "nodes": nodes}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what dbt says is not an answer
    from dbt.cli.main import dbtRunner  # type: ignore[import-not-found]

    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        os.environ.update(asked["environment"])
        print(json.dumps(answer(dbtRunner().invoke(asked["command"]))), file=answers, flush=True)


if __name__ == "__main__":  # dbt starts processes that import this anew
    main()
