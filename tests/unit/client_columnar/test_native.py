"""The kernels are compiled once per machine, however many processes want them at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="needs headrace[spark]")

PROGRAM = """
from headrace.client.columnar import native

compile = native._compile
native._compile = lambda: print("compiled") or compile()
assert not native.is_ready()
print("ready", flush=True)
input()
assert native.load() is not None and native.is_ready()
"""


def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    both = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"XDG_CACHE_HOME": str(tmp_path)},
        )
        for _ in range(2)
    ]
    for process in both:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=200)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0] and sorted(outputs) == ["", "compiled\n"]
    assert len(list(tmp_path.glob("headrace/kernels-*.bin"))) == 1
