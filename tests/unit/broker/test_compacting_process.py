"""The process that compacts must not outlive a broker that was killed: the next one writes files of the same names."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BROKER = """
import asyncio, multiprocessing, pathlib, sys, time
from headrace.broker.runtime import SystemRuntime
from headrace.storage.compaction import Compaction

def slowly(length):
    pathlib.Path(sys.argv[1], "begun").touch()
    time.sleep(60)

async def main():
    runtime = SystemRuntime(asyncio.get_running_loop())
    async def compacting():
        async for _ in runtime.compact(Compaction(sys.argv[1], ((0, size),), 0, 1, 0, {}), slowly):
            pass
    task = asyncio.create_task(compacting())
    while not pathlib.Path(sys.argv[1], "begun").exists():
        await asyncio.sleep(0.01)
    print(multiprocessing.active_children()[0].pid, flush=True)
    await task

if __name__ == "__main__":
    size = len(open(sys.argv[1] + "/00000000000000000000.log", "rb").read())
    asyncio.run(main())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a child with its parent")
def test_the_compacting_process_ends_with_a_broker_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "broker.py"
    script.write_text(BROKER)
    (tmp_path / "00000000000000000000.log").write_bytes(bytes(1000))
    with subprocess.Popen([sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None
        worker = int(broker.stdout.readline())
        os.kill(worker, 0)
        broker.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while _runs(worker):
        assert time.monotonic() < deadline, "still compacting"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
