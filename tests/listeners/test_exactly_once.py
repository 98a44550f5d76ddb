"""Exactly once from topic to topic, while listeners and the broker are killed."""

import subprocess
import sys

from headrace.client.admin.admin import Admin
from headrace.client.api.consumer import Consumer
from headrace.testing.broker import TestBroker
from tests.consumer.conftest import QUICK
from tests.listeners.support import KEYS, committed, fill
from tests.waiting import eventually, run

COUNT = 1_500


async def doubled(bootstrap: str, wanted: int) -> list[int]:
    """What readers with read_committed see of the results, once there are so many or the end is reached."""
    found: list[int] = []
    async with Consumer(
        "doubled", bootstrap=bootstrap, auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        while True:
            records = await consumer.poll(1.0)
            found += [int(record.value) for record in records]
            if len(found) >= wanted or (
                not records and not any(one.records for one in (await consumer.lag()).values())
            ):
                return found


def test_killed_listeners_and_a_killed_broker_neither_lose_nor_double_a_result() -> None:
    processes: list[subprocess.Popen[bytes]] = []

    def start(broker: TestBroker) -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", "tests.listeners.transformer", broker.bootstrap]
        processes.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        return processes[-1]

    async def prepare(broker: TestBroker) -> None:
        async with Admin(broker.bootstrap) as admin:
            await admin.create_topic("doubled", partitions=3)
        await fill(broker.bootstrap, "numbers", 0, COUNT)

    def progress(broker: TestBroker) -> int:
        return run(committed(broker.bootstrap, "numbers", "doubling"))

    with TestBroker(settings=QUICK) as broker:
        try:
            run(prepare(broker))
            process = start(broker)
            eventually(lambda: progress(broker) > 100, "it has begun")
            process.kill()
            process.wait()
            process = start(broker)
            at = progress(broker)
            eventually(lambda: progress(broker) > at + 100, "the next one goes on")
            broker.kill()
            broker.start()
            eventually(lambda: progress(broker) == COUNT, "all are committed", limit_s=90)
            process.terminate()
            assert process.wait(30) == 0
            found = run(doubled(broker.bootstrap, COUNT + 1))
        finally:
            for one in processes:
                one.kill()
                one.wait()
    assert sorted(found) == [2 * i for i in range(COUNT)]
    for key in range(KEYS):
        mine = [number for number in found if number // 2 % KEYS == key]
        assert mine == sorted(mine)
