"""The live view against real brokers: what scripts get, and a terminal with keys."""

import os
import pty
import subprocess
import sys
import time

import headrace
from headrace.client.admin.groups import Groups
from headrace.testing.broker import TestBroker
from tests.tools.support import cli, cli_json, create, fill, many, new_name, within


def test_scripts_get_everything(broker: TestBroker) -> None:
    topic, group = create(broker), new_name("group")
    fill(broker, topic, many(100), first_ms=time.time_ns() // 1_000_000 - 600_000)

    async def commit() -> None:
        async with headrace.Admin(broker.bootstrap) as admin:
            await Groups(admin).commit(group, {(topic, 0): 10})

    within(commit)
    found = cli_json("top", "--once", "-n", "0.2", "-b", broker.bootstrap)
    (node,) = found["brokers"]
    assert node["is_up"] and node["is_controller"] and node["answer_ms"] > 0 and node["leads"] >= 2
    (row,) = [one for one in found["topics"] if one["topic"] == topic]
    assert (row["partitions"], row["in_per_s"], row["leaders"]) == (2, 0, [node["node_id"]]) and row["size_bytes"] > 0
    (behind,) = [one for one in found["groups"] if one["group"] == group]
    assert behind["lag"] == 40 and 400 < behind["seconds"] < 900
    assert f"group {group}: 40 behind" in " ".join(found["slow"])
    said = cli("top", "--once", "-n", "0.2", "-b", broker.bootstrap).stdout
    assert topic in said and group in said and "q quit" not in said


def test_a_terminal_gets_a_screen_with_keys(broker: TestBroker) -> None:
    master, slave = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-m", "headrace.cli.main", "top", "-n", "0.3", "-b", broker.bootstrap],
        stdin=slave, stdout=slave, stderr=slave, env={**os.environ, "TERM": "xterm", "LINES": "24", "COLUMNS": "80"},
    )  # fmt: skip
    os.close(slave)
    seen = b""
    try:
        while b"q quit" not in seen:  # the last line of the screen, which comes in pieces
            seen += os.read(master, 65_536)
        assert b"nobody is slow" in seen or b"slow:" in seen
        assert b"brokers (1)" in seen and b"groups" in seen
        os.write(master, b"2")
        seen = b""
        while b"topics (" not in seen or b"brokers (" in seen[seen.rfind(b"headrace top") :]:
            seen += os.read(master, 65_536)
        os.write(master, b"q")
        while True:
            try:
                if not os.read(master, 65_536):
                    break
            except OSError:  # the other side is closed
                break
        assert running.wait(30) == 0
    finally:
        running.kill()
        running.wait()
        os.close(master)
