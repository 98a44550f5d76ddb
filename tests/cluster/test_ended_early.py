"""`headrace tour` and `headrace proof` leave no broker and no folder of theirs behind when they are ended early."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import eventually


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=lambda how: how.name)
@pytest.mark.parametrize("words", [("tour", "partitions"), ("proof", "--quick")], ids=lambda words: words[0])
def test_nothing_is_left_behind(tmp_path: Path, words: tuple[str, ...], how: signal.Signals) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "headrace", *words],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # SIGTERM as in a script's background, where SIGINT is ignored; Ctrl-C as on a terminal, however pytest runs.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN if how is signal.SIGTERM else signal.SIG_DFL),
    )
    try:
        eventually(lambda: len(brokers_below(tmp_path)) == 4, "four brokers have begun to start")
        running.send_signal(how)
        assert running.wait(60) != 0
    finally:
        running.kill()
        running.wait()
    eventually(lambda: not brokers_below(tmp_path), "no broker is left")
    assert list(tmp_path.iterdir()) == []


def brokers_below(folder: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended meanwhile
        if b"up" in words and any(word.startswith(bytes(folder)) for word in words):
            found.append(path.parent.name)
    return found
