"""A real disk that fills up under one of three brokers: others lead, writes and commits go on, and it comes back by
itself."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from headrace.client.admin.groups import Groups
from headrace.client.errors import ClientError
from headrace.metadata.names import OFFSETS_TOPIC
from headrace.testing.cluster import TestCluster
from tests.cluster.command_line import headrace
from tests.cluster.conftest import QUICK
from tests.cluster.history import ConfluentWriter, Writer, assert_replicas_identical, judge, read_log

DISK_BYTES = 64 << 20
RESERVE_BYTES = 4 << 20
SMALL = 1
"""The broker on the small disk."""
PAUSE_S_MAX = 15.0
"""Measured: well below one second. The machine may be busy."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TestCluster]:
    folder = tmp_path / "cluster"
    mount = folder / f"node-{SMALL}"
    mount.mkdir(parents=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(mount)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.strip()}")
    settings = {**QUICK, "log.dir.reserve.bytes": str(RESERVE_BYTES), "leader.imbalance.check.interval.seconds": "2"}
    try:
        with TestCluster(3, folder=folder, settings=settings) as found:
            yield found
    finally:
        subprocess.run(["umount", "-l", str(mount)], check=True)


class Committer:
    """A group that commits 1, 2, 3, ...; it keeps how long it waited at worst, and every error."""

    def __init__(self, cluster: TestCluster, topic: str) -> None:
        self.cluster, self.topic = cluster, topic
        self.count = 0
        self.slowest_s = 0.0
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Committer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self.cluster.ask(lambda admin: Groups(admin).commit("g", {(self.topic, 0): self.count + 1}))
                self.count += 1
            except ClientError as error:
                self.errors.append(str(error))
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            time.sleep(0.02)


def fill(folder: Path, leaving_bytes: int) -> None:
    """Take all the room there is but for some."""
    with (folder / "ballast").open("ab", buffering=0) as file:
        while (take := _free(folder) - leaving_bytes) > 0:
            try:
                file.write(bytes(min(take, 1 << 20)))
            except OSError:
                return


def _free(folder: Path) -> int:
    stats = os.statvfs(folder)
    return stats.f_bavail * stats.f_frsize


def led_by_small(cluster: TestCluster) -> str:
    """A new topic whose one partition prefers the broker on the small disk."""
    cluster.create_topic("filling", configs={"min.insync.replicas": "2"}, assignments={0: [SMALL, 2, 3]}, partitions=-1)
    cluster.wait_in_sync("filling")
    assert cluster.leader_of("filling") == SMALL
    return "filling"


def pause_s(writer: Writer, at: float) -> float:
    """The longest time without an acknowledgement, from the moment given on."""
    times = [at, *(when for when in writer.book.times if when > at)]
    return max((later - earlier for earlier, later in pairwise(times)), default=0.0)


@pytest.mark.parametrize("leaving_bytes", [RESERVE_BYTES // 2, 0], ids=["below its reserve", "without a byte left"])
def test_a_full_disk_hands_over_and_takes_back(
    cluster: TestCluster, leaving_bytes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = led_by_small(cluster)
    data = cluster[SMALL].data
    with ConfluentWriter(cluster.bootstrap, topic, 1) as writer, Committer(cluster, topic) as committer:
        writer.wait_acked(200)
        cluster.wait("the first commits", lambda: committer.count > 10)
        began = time.monotonic()
        fill(data, leaving_bytes)
        cluster.wait("others lead", lambda: cluster.leader_of(topic) in (2, 3))
        writer.wait_acked(500)
        cluster.wait_isr(topic, 0, {2, 3})
        status = json.loads(headrace("cluster", "status", "--json", "-b", cluster.bootstrap))
        (disk,) = [row for row in status["disks"] if row["broker"] == SMALL]
        assert (disk["state"], disk["reserve_bytes"], status["healthy"]) == ("full", RESERVE_BYTES, False)
        if leaving_bytes:
            served_by = {p.leader for p in cluster.topic(OFFSETS_TOPIC).partitions.values()}
            assert SMALL in served_by, "groups are served from the reserve"
        (data / "ballast").unlink()
        cluster.wait_in_sync(topic)
        cluster.wait("it leads again", lambda: cluster.leader_of(topic) == SMALL)
        writer.wait_acked(200)
        writer.stop()
    paused_s = pause_s(writer, began)
    assert paused_s < PAUSE_S_MAX
    assert not committer.errors, committer.errors
    judge(read_log(cluster.bootstrap, topic), writer.book)
    cluster.wait_in_sync()
    assert_replicas_identical(cluster, topic)
    with capsys.disabled():
        print(
            f" [writes paused for {paused_s:.2f} s, slowest of {committer.count} commits {committer.slowest_s:.2f} s]",
            end="",
        )
