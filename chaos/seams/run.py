"""Runs trials in lanes: each a process with servers of its own, one trial after the other."""

from __future__ import annotations

import json
import logging
import multiprocessing
import queue
import signal
import sys
from pathlib import Path
from typing import Any

from .plan import missing_here
from .trial import Plan, Trial
from .world import World


def lane(number: int, todo: Any, done: Any, keep: bool) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us, in order
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    logging.getLogger("relaybox").setLevel(logging.CRITICAL)  # of the trial's own operators and maintainers
    with World(number) as world:
        while True:
            plan = todo.get()
            if plan is None:
                break
            why = missing_here(plan)
            result = {"trial": plan.name, "verdict": f"SKIP: {why}"} if why else Trial(plan, world, keep=keep).run()
            done.put(result)
    done.put(None)


def run(plans: list[Plan], lanes: int, results: Path, *, keep: bool = False) -> list[dict[str, Any]]:
    """Results as they come are appended to the file, so that an interrupted run goes on where it was."""
    context = multiprocessing.get_context("spawn")
    todo, done = context.Queue(), context.Queue()
    for plan in plans:
        todo.put(plan)
    workers = [
        context.Process(target=lane, args=(number, todo, done, keep)) for number in range(min(lanes, len(plans)))
    ]
    for worker in workers:
        todo.put(None)
        worker.start()
    found: list[dict[str, Any]] = []
    left = len(workers)
    former = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        while left:
            try:
                result = done.get(timeout=5)
            except queue.Empty:
                if not any(worker.is_alive() for worker in workers):
                    raise RuntimeError("a lane ended without a word") from None
                continue
            if result is None:
                left -= 1
                continue
            found.append(result)
            results.parent.mkdir(parents=True, exist_ok=True)
            with results.open("a") as file:
                file.write(json.dumps(result) + "\n")
            tell(result, len(found), len(plans))
    finally:
        signal.signal(signal.SIGTERM, former)
        for worker in workers:
            if left:
                worker.terminate()
            worker.join(30)
    return found


def tell(result: dict[str, Any], number: int, of: int) -> None:
    print(f"[{number}/{of}] {result['trial']}: {result['verdict']} ({result.get('seconds', 0)} s)", flush=True)
    for example in result.get("examples", ()):
        print(f"      {example}", flush=True)
    if "folder" in result:
        print(f"      {result['folder']}", flush=True)
