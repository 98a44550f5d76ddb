"""Brokers as child processes of one that may end at any moment."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from headrace.platform import IS_PORTABLE, process_started
from tests.waiting import eventually

FREEZES_AND_WAITS = """
import sys, time
from pathlib import Path
from headrace.local_cluster.layout import Wish
from headrace.local_cluster.process import ClusterProcesses

cluster = ClusterProcesses(Path(sys.argv[1]), Wish(1, port=0))
cluster.start()
broker = cluster.brokers[1]
broker.freeze()
print(broker.process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(IS_PORTABLE, reason="without Linux's call a process sees for itself whether its parent is there")
def test_a_frozen_broker_ends_with_the_process_that_froze_it(tmp_path: Path) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", FREEZES_AND_WAITS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    with owner.stdout:
        pid = int(owner.stdout.readline())
        eventually(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "frozen")
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    try:
        eventually(lambda: process_started(pid) is None, "ended, though it was frozen")
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
