"""A load test: figures that fit together, and nothing left behind."""

import asyncio
import time
from pathlib import Path

import headrace
from headrace.testing.broker import TestBroker
from headrace.tools.loadtest.workload import Bench, BenchRequest
from tests.tools.support import cli, cli_json, create, refused, within

QUICK = ("--for", "1s", "--warm-up", "0.2s")


def topics(broker: TestBroker) -> list[str]:
    async def work() -> list[str]:
        async with headrace.Admin(broker.bootstrap) as admin:
            return [topic.name for topic in await admin.list_topics() if topic.name.startswith("headrace-bench")]

    return within(work)


def test_all_of_it(broker: TestBroker, tmp_path: Path) -> None:
    plot = tmp_path / "latency.svg"
    words = ("bench", *QUICK, "-n", "5000", "--rate", "500", "--partitions", "2", "--keys", "10", "-z", "lz4")
    found = cli_json(*words, "--plot", str(plot), "-b", broker.bootstrap)
    assert found["produce"]["records"] == 5_000
    assert found["consume"]["records"] == 5_001, "with the one before the clock began"
    latency = found["latency"]
    assert (latency["measured"], latency["lost"], latency["doubled"]) == (500, 0, 0)
    for figures in (latency["end_to_end_ms"], latency["ack_ms"], found["produce"]["ack_ms"]):
        assert 0 < figures["p50"] <= figures["p90"] <= figures["p99"] <= figures["p99.9"] <= figures["max"]
    assert "<svg" in plot.read_text()
    assert topics(broker) == []


def test_what_people_see(broker: TestBroker) -> None:
    said = cli("bench", *QUICK, "--only", "latency", "--rate", "200", "-b", broker.bootstrap).stdout
    assert "200 records at 200 per second" in said and "p99.9" in said and "█" in said


def test_a_topic_that_is_given_stays(broker: TestBroker) -> None:
    topic = create(broker, partitions=1)
    cli("bench", "--only", "produce", "-n", "10", "--topic", topic, "-b", broker.bootstrap)
    found = cli_json("bench", "--only", "consume", "--topic", topic, "-b", broker.bootstrap)
    assert found["consume"]["records"] == 11


def test_a_stall_makes_all_late_that_were_meant_for_it(broker: TestBroker) -> None:
    """No coordinated omission: while everything stands still for half a second, records go on being due."""

    async def work() -> tuple[int, int]:
        bench = Bench(BenchRequest(phases=("latency",), duration_s=2.0, warmup_s=0.0, rate=200.0), broker.bootstrap)
        stalled = False

        def stall(phase: str, part: float) -> None:
            nonlocal stalled
            if part >= 0.5 and not stalled:
                stalled = True
                time.sleep(0.5)

        report = await bench.run(stall)
        slow = sum(count for low, _, count in report.end_to_end.rows(40) if low > 50_000_000)
        return slow, report.end_to_end.count

    slow, count = asyncio.run(work())
    assert count == 400
    assert slow >= 80, "some 100 were meant for that half second, and all but the last of them wait over 50 ms"


def test_mistakes_are_told(broker: TestBroker) -> None:
    at = ("-b", broker.bootstrap)
    assert "write some of produce, consume, latency" in refused("bench", "--only", "fast", *at)
    assert "--topic" in refused("bench", "--only", "consume", *at)
    assert "there is no topic" in refused("bench", "--topic", "no-such-topic-at-all", *at)
    assert ".png" in refused("bench", "--plot", "x.doc", *at)
    assert topics(broker) == []
