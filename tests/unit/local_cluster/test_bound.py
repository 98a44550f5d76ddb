"""Programs of others that must not stay behind."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.local_cluster.bound import bound
from headrace.platform import IS_PORTABLE, process_started
from tests.waiting import eventually

SLEEP = ["/bin/sleep", "600"]
STARTS_AND_WAITS = """
import subprocess, sys, time
from headrace.local_cluster.bound import bound

print(subprocess.Popen(bound(sys.argv[1:])).pid, flush=True)
time.sleep(600)
"""


def became(pid: int, words: list[str]) -> bool:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1] == [os.fsencode(word) for word in words]


@pytest.mark.skipif(IS_PORTABLE, reason="only Linux ends a program that knows nothing of its parent")
@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_program_ends_with_a_parent_that_is_killed(when: str) -> None:
    owner = subprocess.Popen([sys.executable, "-c", STARTS_AND_WAITS, *SLEEP], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        pid = int(owner.stdout.readline())
    try:
        if when == "later":
            eventually(lambda: became(pid, SLEEP), "it has become the program")
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        eventually(lambda: process_started(pid) is None, "ended")
    finally:
        owner.kill()
        owner.wait()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_program_that_a_thread_starts_is_not_bound_to_it() -> None:
    words: list[list[str]] = []
    thread = threading.Thread(target=lambda: words.append(bound(SLEEP)))
    thread.start()
    thread.join()
    assert words == [SLEEP]
    assert bound(SLEEP) != SLEEP
