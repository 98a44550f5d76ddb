"""The real broker on a real ext4 whose power is cut under load: the proof that no simulation can give.

Every record acknowledged before the cut must be there after the journal is replayed and the broker is started again.
Needs root and loop devices; skipped with the reason where there are none.
"""

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from headrace.client.admin.admin import Admin
from headrace.client.errors import RequestFailed
from headrace.clock import SystemClock
from headrace.errors import Err
from headrace.testing.simulator.checkers import Anomaly, check
from headrace.testing.simulator.workload import Options, Workload, summary
from tests.compat.process import HeadraceProcess
from tests.simulation.ext4 import Ext4, Unavailable, fill, make_room

OPTIONS = Options(partitions=3, pause_s_max=0.002, connect_timeout_s=20.0, request_timeout_s=20.0, retry_timeout_s=20.0)
LOAD_S = 0.7


@pytest.fixture
def ext4(tmp_path: Path) -> Iterator[Ext4]:
    try:
        disk = Ext4(tmp_path)
    except Unavailable as missing:
        pytest.skip(f"no power can be cut here: {missing}")
    yield disk
    disk.unplug()


async def load(workload: Workload, producers: int) -> None:
    """Create the topic if need be, then write and read until cancelled."""
    async with Admin(workload.bootstrap) as admin:
        if not await admin.list_topics():
            await admin.create_topic(workload.options.topic, workload.options.partitions, 1)
    async with asyncio.TaskGroup() as group:
        for number in range(producers):
            group.create_task(workload.produce(f"p{number}"))
        for partition in range(workload.options.partitions):
            group.create_task(workload.consume(f"c{partition}", partition))


async def until_the_cut(workload: Workload, disk: Ext4, broker: HeadraceProcess) -> None:
    loading = asyncio.create_task(load(workload, 4))
    await asyncio.sleep(LOAD_S)
    # A machine without power runs no programs either. Left to run, the broker would be told by ext4 that an fdatasync
    # which raced the shutdown had succeeded, and acknowledge what no real power cut would let it.
    broker.freeze()
    disk.cut_power()
    await asyncio.sleep(0.1)
    loading.cancel()
    await asyncio.wait([loading])
    if not loading.cancelled() and (error := loading.exception()) is not None:
        raise error


def cycle(disk: Ext4, data: Path, workload: Workload, settings: dict[str, str]) -> list[Anomaly]:
    """Load, cut, kill, remount, restart, read everything back."""
    broker = HeadraceProcess(data, config=settings)
    # Its own output must not be on the disk that goes away.
    broker.log_file = disk.image.with_name("broker.out")
    broker.start()
    workload.bootstrap = broker.bootstrap
    try:
        asyncio.run(until_the_cut(workload, disk, broker))
    finally:
        broker.kill9()
        disk.unplug()
    disk.plug_in()
    broker.start()
    try:
        workload.history.final = asyncio.run(workload.read_all())
    finally:
        broker.kill9()
    return check(workload.history, idempotent=True)


@pytest.mark.parametrize("segment_bytes", ["1073741824", "1048576"])
def test_acknowledged_records_survive_a_power_cut(ext4: Ext4, segment_bytes: str) -> None:
    workload = Workload("", Random(1), SystemClock(), OPTIONS)
    for _ in range(2):
        anomalies = cycle(ext4, ext4.mount / "data", workload, {"log.segment.bytes": segment_bytes})
        assert not anomalies, "\n".join(map(str, anomalies[:5]))
    assert summary(workload.history)["acknowledged"] > 50, summary(workload.history)


def test_a_broker_that_acknowledges_before_the_sync_is_caught(ext4: Ext4) -> None:
    """Kafka's own promise, with one replica: a power cut may take what was acknowledged. The test must see it."""
    workload = Workload("", Random(2), SystemClock(), OPTIONS)
    try:
        anomalies = cycle(ext4, ext4.mount / "data", workload, {"durability": "replicated"})
    except RequestFailed as error:
        assert error.error is Err.KAFKA_STORAGE_ERROR, "it misses what it lost, and says so itself"
    else:
        assert "lost-write" in {anomaly.kind for anomaly in anomalies}


def test_room_that_was_made_is_there_after_a_power_cut(ext4: Ext4) -> None:
    """Else a disk that somebody filled and cleared is full for ever, and its broker never in sync again."""
    ballast = fill(ext4.mount, leaving_bytes=shutil.disk_usage(ext4.mount).free - (1 << 20))
    with ballast.open("rb") as file:
        os.fsync(file.fileno())
    make_room(ext4.mount)
    ext4.cut_power()
    ext4.unplug()
    ext4.plug_in()
    assert not ballast.exists()


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_acknowledged_records_survive_many_power_cuts(ext4: Ext4) -> None:
    workload = Workload("", Random(3), SystemClock(), OPTIONS)
    for _ in range(50):
        anomalies = cycle(ext4, ext4.mount / "data", workload, {"log.segment.bytes": "1048576"})
        assert not anomalies, "\n".join(map(str, anomalies[:5]))
