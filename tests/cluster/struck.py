"""`python -m tests.cluster.struck STEP FOLDER WORDS...` is `headrace WORDS`, killed by SIGKILL before its STEP-th
change to the files of a folder or to znodes; it tells of the change that it did not come to."""

import os
import runpy
import signal
import sys
from collections.abc import Sequence
from itertools import count
from typing import Any

from headrace.quorum.zookeeper.operations import Operation
from headrace.quorum.zookeeper.session import KazooSession
from headrace.storage.checkpoints import LOCK

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def changed(event: str, arguments: Sequence[Any], folder: str) -> str | None:
    """Which file, if Python announces by this event that one is about to change."""
    if event in ("os.remove", "os.rmdir"):
        return str(arguments[0])  # of a tree that is removed, names only
    if event in ("os.rename", "os.mkdir") or (event == "open" and arguments[2] & WRITES):
        path = str(arguments[0])
        return path if path.startswith(folder) and not path.endswith(LOCK) else None
    return None


def strike(step: int, folder: str) -> None:
    changes = count(1)

    def about_to(what: str) -> None:
        if next(changes) == step:
            print(what, file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def announced(event: str, arguments: Sequence[Any]) -> None:
        if (path := changed(event, arguments, folder)) is not None:
            about_to(f"{event} {path.removeprefix(folder)}")

    send = KazooSession.multi

    def multi(session: KazooSession, operations: Sequence[Operation]) -> Any:
        about_to(f"multi of {len(operations)}, first {operations[0].path}")
        return send(session, operations)

    KazooSession.multi = multi  # type: ignore[assignment, method-assign]
    sys.addaudithook(announced)


if __name__ == "__main__":
    _, step, folder, *words = sys.argv
    strike(int(step), folder)
    sys.argv = ["headrace", *words]
    runpy.run_module("headrace", run_name="__main__")
