"""`/health` and `/ready`: what probes are told, and when."""

import asyncio
import re
import threading
import urllib.error
import urllib.request
from pathlib import Path

from headrace.broker.health import on_loop
from headrace.local_cluster.process import BrokerProcess
from tests.unit.broker.controlled import Node, in_world

LIMIT_S = 30.0


def asked(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def test_a_broker_that_serves_is_healthy_and_ready(tmp_path: Path) -> None:
    words = ["--data", str(tmp_path / "data"), "--metrics-port", "0"]
    broker = BrokerProcess(tmp_path / "data", tmp_path / "broker.log", words)
    try:
        broker.start()
        found = re.search(r"metrics on (http://\S+)/metrics", (tmp_path / "broker.log").read_text())
        assert found is not None
        assert asked(f"{found[1]}/health") == asked(f"{found[1]}/ready") == (200, "ok\n")
        assert "headrace_loop_lag_seconds" in asked(f"{found[1]}/metrics")[1]
    finally:
        broker.kill9()


def test_each_reason_is_told() -> None:
    async def scenario(node: Node) -> None:
        broker = node.broker
        health = broker.health
        topic_id = await node.create("orders", [1], [1])
        assert health.troubles() == health.obstacles() == []

        partition = broker.replicas.by_id[topic_id].pop(1)
        assert health.troubles() == []
        assert health.obstacles() == ["it does not serve orders-1, which it should lead"]
        broker.replicas.by_id[topic_id][1] = partition

        (log_dir,) = broker.logs.dirs
        log_dir.failed = OSError(5, "Input/output error")
        assert health.troubles() == health.obstacles() == [
            f"log dir {log_dir.path} is offline: [Errno 5] Input/output error"
        ]  # fmt: skip
        log_dir.failed = None

        await node.node.stop()
        assert health.troubles() == []
        assert "starting, or stopping: it does not serve" in health.obstacles()
        assert "it hands over what it leads, and stops" in health.obstacles()

    in_world(scenario)


def test_a_loop_that_does_not_turn_is_told_from_outside_of_it() -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    goes_on = threading.Event()
    assert on_loop(loop, lambda: ["a reason"]) == ["a reason"]
    loop.call_soon_threadsafe(goes_on.wait)
    assert on_loop(loop, list, limit_s=0.1) == ["the event loop has not turned for 0.1 s"]
    goes_on.set()
    assert on_loop(loop, list) == []
    loop.call_soon_threadsafe(loop.stop)
    thread.join(LIMIT_S)
    loop.close()
    assert on_loop(loop, list) == ["Event loop is closed"]
