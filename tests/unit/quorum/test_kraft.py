"""The quorum of one: restarts, group commit, snapshots, and every way a disk can fail it."""

import asyncio
import errno
import json
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from headrace.errors import Err, KafkaError
from headrace.metadata.image import BROKER_CONFIG, NO_LEADER, Image
from headrace.protocol import messages as m
from headrace.quorum import QuorumError
from headrace.quorum.cleaning import SnapshotLimits
from headrace.quorum.kraft import KraftOptions
from headrace.quorum.opening import open_quorum
from headrace.quorum.snapshots import SnapshotId, Voter, list_snapshots
from headrace.testing.simulator.disk import MemoryDisk
from headrace.testing.simulator.faults import PowerCut
from headrace.testing.simulator.pages import CrashMode
from tests.unit.quorum.node import DATA, METADATA, Clock, Node, golden_disk, layout
from tests.waiting import T, until

LOG = f"{METADATA}/00000000000000000000.log"
LIMITS = SnapshotLimits(bytes_between=2000, interval_ms=3_600_000)


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return asyncio.run(main())


def state(disk: MemoryDisk) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(disk.read_bytes(f"{METADATA}/quorum-state"))
    return state


def partition_facts(image: Image, topic: str = "t1") -> tuple[int, int, tuple[int, ...]]:
    found = image.topic_named(topic)
    assert found is not None
    partition = found.partitions[0]
    return partition.leader, partition.leader_epoch, partition.isr


# --- lives and epochs -------------------------------------------------------------------------------------------------


def test_restarts_raise_epochs_as_kafkas_do() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        node = await Node(disk).start()
        assert (await node.create("t1")).error_code == Err.NONE
        assert partition_facts(node.quorum.image) == (1, 0, (1,))
        assert state(disk) == {
            "leaderId": 1,
            "leaderEpoch": 1,
            "votedId": -1,
            "votedDirectoryId": "AAAAAAAAAAAAAAAAAAAAAA",
            "data_version": 1,
        }
        await node.stop()
        assert partition_facts(node.quorum.image) == (NO_LEADER, 1, ()), "eligible, and in sync with nobody"
        assert node.quorum.image.brokers[1].fenced
        node = await Node(disk, 1).start()
        assert partition_facts(node.quorum.image) == (1, 2, (1,))
        # Killed: the new life finds the leadership abandoned, and gives it up before it takes it.
        disk.kill()
        again = await Node(disk, 2).start()
        assert partition_facts(again.quorum.image) == (1, 4, (1,))
        assert again.quorum.leader_epoch == 3
        assert state(disk)["leaderEpoch"] == 3
        assert again.broker_epoch > node.broker_epoch

    run(main)


@pytest.mark.parametrize(
    ("name", "features", "leader_epoch"),
    [
        # Kafka itself goes on with these leader epochs on the same folders.
        ("kafka-4.3.1-stopped", 6, 2),
        ("kafka-4.3.1-killed", 5, 2),
        ("kafka-4.3.1-killed-elr", 6, 2),
        ("kafka-4.3.1-snapshots", 5, 8),
    ],
)
def test_starts_on_kafkas_folder(name: str, features: int, leader_epoch: int) -> None:
    async def main() -> None:
        disk = golden_disk(name)
        node = Node(disk)
        before = node.quorum.image
        assert len(before.features) == features and before.metadata_version == 30
        await node.start()
        assert partition_facts(node.quorum.image) == (1, leader_epoch, (1,))
        assert (await node.create("t1")).error_code == Err.TOPIC_ALREADY_EXISTS
        assert (await node.create("ours")).error_code == Err.NONE
        if name.endswith("snapshots"):
            assert node.quorum.image.scrams["alice", 1].iterations == 4096
            assert node.quorum.image.quotas[(("user", "alice"),)] == {"producer_byte_rate": 1000.0}
        if name.endswith("stopped"):
            assert node.quorum.image.config(2, "t1") == {"retention.ms": "12345"}
            assert node.quorum.image.config(BROKER_CONFIG, "") == {"min.insync.replicas": "1"}
        await node.stop()
        again = Node(disk)
        assert again.quorum.image.same_content(node.quorum.image)

    run(main)


def test_starts_on_kafkas_folder_with_voters_in_the_configuration() -> None:
    """kraft.version 0: the log names no voters, and quorum-state keeps its version 0."""

    async def main() -> None:
        disk = golden_disk("kafka-4.3.1-static-voters")
        before = state(disk)
        with pytest.raises(QuorumError, match="names no voters"):
            Node(disk)
        voter = Voter(1, bytes(16), (("CONTROLLER", "127.0.0.1", 19893),))
        node = await Node(disk, 0, KraftOptions(static_voters=(voter,))).start()
        assert state(disk) == {**before, "leaderEpoch": before["leaderEpoch"] + 1}
        assert partition_facts(node.quorum.image, "s1") == (1, 2, (1,))
        assert node.quorum.kraft_version == 0
        await node.stop()

    run(main)


def test_the_snapshot_and_the_log_say_the_same() -> None:
    """Kafka's snapshot at 166 equals the replay of Kafka's log up to there."""
    disk = golden_disk("kafka-4.3.1-snapshots")
    with_snapshot = Node(disk).quorum.image
    for found in list_snapshots(disk, METADATA):
        if found != SnapshotId(0, 0):
            disk.remove(f"{METADATA}/{found.file_name}")
    replayed = Node(disk).quorum.image
    assert replayed.same_content(with_snapshot)
    assert replayed.offset == with_snapshot.offset


def test_first_log_is_kafkas_first_log() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        node = await Node(disk).start()
        assert node.broker_epoch == 11, (
            "leader change, version, voters, begin, four levels, the minimum ISR, end, controller come first"
        )
        facts = node.quorum.facts()
        assert (facts.leader_id, facts.leader_epoch, facts.high_watermark) == (1, 1, node.quorum.next_offset)
        assert facts.voters[0].directory_id == node.identity.directory_ids[DATA]
        assert facts.voters[0].log_end_offset == facts.high_watermark

    run(main)


# --- writing ----------------------------------------------------------------------------------------------------------


def test_concurrent_writes_share_a_sync_and_commit_in_order() -> None:
    async def main() -> None:
        syncs: list[asyncio.Event] = []

        async def slow(work: Callable[[], Any]) -> Any:
            gate = asyncio.Event()
            syncs.append(gate)
            await gate.wait()
            return work()

        disk = MemoryDisk()
        node = await Node(disk).start()
        node.quorum._run_in_thread = slow
        told: list[str] = []
        node.quorum.listen(lambda delta, image: told.extend(name for _, name in delta.topics_created))
        tasks = [asyncio.create_task(node.create("t0"))]
        await until(lambda: syncs, "the first sync")
        tasks += [asyncio.create_task(node.create(f"t{n}")) for n in range(1, 5)]
        duplicate = asyncio.create_task(node.create("t0"))
        await until(lambda: "t4" in node.quorum.tip.topic_ids, "all are decided")
        assert len(syncs) == 1 and told == []
        assert not node.quorum.image.topics
        assert not duplicate.done(), "that t0 exists is not yet safe to say"
        syncs[0].set()
        await until(lambda: len(syncs) == 2, "the other four share the second sync")
        syncs[1].set()
        results = await asyncio.gather(*tasks)
        assert [r.error_code for r in results] == [Err.NONE] * 5
        assert (await duplicate).error_code == Err.TOPIC_ALREADY_EXISTS
        assert told == ["t0", "t1", "t2", "t3", "t4"]
        assert node.quorum.image is node.quorum.tip

    run(main)


def test_disk_full_refuses_and_changes_nothing() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        node = await Node(disk).start()
        disk.fail("append", errno.ENOSPC, path="*.log", short=True)
        with pytest.raises(KafkaError) as refused:
            await node.create("t1")
        assert refused.value.error is Err.KAFKA_STORAGE_ERROR
        assert "t1" not in node.quorum.tip.topic_ids
        assert (await node.create("t1")).error_code == Err.NONE
        disk.kill()
        assert "t1" in Node(disk, 1).quorum.image.topic_ids

    run(main)


def test_a_failed_sync_is_final() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        node = await Node(disk).start()
        failures: list[Exception] = []
        node.quorum.on_failure = failures.append
        disk.fail("sync", errno.EIO, path="*.log")
        for _ in range(2):
            with pytest.raises(KafkaError) as refused:
                await node.create("t1")
            assert refused.value.error is Err.KAFKA_STORAGE_ERROR
        assert len(failures) == 1
        assert node.quorum.leader_id == -1
        await node.quorum.close()

    run(main)


def test_an_oversized_batch_is_refused() -> None:
    async def main() -> None:
        node = await Node(MemoryDisk()).start()
        record = m.ConfigRecord(resource_type=4, resource_name="", name="k", value="x" * 30_000)
        with pytest.raises(KafkaError) as refused:
            node.quorum.append([(record, 0)] * 300)
        assert refused.value.error is Err.RECORD_LIST_TOO_LARGE

    run(main)


# --- power cuts -------------------------------------------------------------------------------------------------------


async def busy_life(disk: Any, seed: int, acked: list[str], options: KraftOptions) -> None:
    node = await Node(disk, seed, options).start()
    for n in range(6):
        name = f"t{seed}-{n}"
        await node.create(name)
        acked.append(name)
    await node.quorum.maintain()
    await node.stop()


def cut_one_life(step: int, mode: CrashMode, random: Random) -> bool:
    """Cut the power after `step` mutations of the disk; whether the life had ended before that."""
    options = KraftOptions(limits=LIMITS)
    disk = MemoryDisk()
    acked: list[str] = []
    disk.cut_after(step)
    finished = False
    try:
        run(lambda: busy_life(disk.session(), 1, acked, options))
        finished = True
    except (PowerCut, OSError, KafkaError):
        pass
    disk.crash(random, mode)
    epoch_before = state(disk)["leaderEpoch"] if disk.exists(f"{METADATA}/quorum-state") else 0

    async def next_life() -> None:
        node = Node(disk, 2, options)
        lost = [name for name in acked if name not in node.quorum.image.topic_ids]
        assert not lost, (step, lost)
        await node.start()
        assert node.quorum.leader_epoch > epoch_before
        await node.create("after")
        await node.stop()

    run(next_life)
    return finished


@pytest.mark.parametrize("mode", list(CrashMode))
def test_a_power_cut_at_any_step_loses_nothing_acknowledged(mode: CrashMode) -> None:
    """What was answered is there; epochs never repeat; the folder always opens."""
    random = Random(mode.value)
    step = 1
    while not cut_one_life(step, mode, random):
        step += random.randint(1, 4)
    assert step > 60


# --- damage -----------------------------------------------------------------------------------------------------------


def stopped_disk(options: KraftOptions | None = None) -> MemoryDisk:
    async def main() -> MemoryDisk:
        disk = MemoryDisk()
        node = await Node(disk, 0, options).start()
        for n in range(12):
            await node.create(f"t{n}")
        await node.quorum.maintain()
        await node.stop()
        return disk

    return run(main)


def test_a_torn_tail_at_every_byte_is_cut_off() -> None:
    disk = stopped_disk()
    whole = disk.read_bytes(LOG)
    offset = Node(disk).quorum.log.end_offset
    for size in range(len(whole) - 90, len(whole)):
        torn = disk.fork()
        torn.open(LOG).truncate(size)
        node = Node(torn)
        assert node.quorum.log.end_offset < offset
        assert "t11" in node.quorum.image.topic_ids


def test_a_flipped_bit_in_the_log_is_refused_and_nothing_is_touched() -> None:
    """Cutting the log there would take back what was committed."""
    disk = stopped_disk()
    size = disk.size(LOG)
    for position in range(0, size - 700, 97):
        bad = disk.fork()
        bad.flip(LOG, position, position % 8)
        before = bad.tree()
        with pytest.raises(QuorumError, match="is damaged at byte") as refused:
            Node(bad)
        assert "\n" not in str(refused.value)
        assert bad.tree() == before


def test_a_corrupt_snapshot_is_refused_and_nothing_is_deleted() -> None:
    disk = stopped_disk(KraftOptions(limits=LIMITS))
    latest = f"{METADATA}/{list_snapshots(disk, METADATA)[-1].file_name}"
    size = disk.size(latest)
    for position in [*range(0, size, 53), size - 1]:
        bad = disk.fork()
        bad.flip(latest, position, position % 8)
        before = bad.tree()
        with pytest.raises(QuorumError, match=r"\.checkpoint is damaged"):
            Node(bad)
        assert bad.tree() == before
    for cut in (0, 1, 100, size - 75, size - 1):
        short = disk.fork()
        short.open(latest).truncate(cut)
        with pytest.raises(QuorumError, match=r"\.checkpoint is damaged"):
            Node(short)


def test_a_newer_quorum_state_is_refused_and_a_damaged_one_does_no_harm_where_nobody_else_votes() -> None:
    disk = stopped_disk()
    disk.replace_bytes(f"{METADATA}/quorum-state", b'{"data_version":2}')
    with pytest.raises(QuorumError, match="quorum-state has version 2"):
        Node(disk)
    for text in (b"", b"{}", b"[1]"):
        disk.replace_bytes(f"{METADATA}/quorum-state", text)
        assert Node(disk.fork()).quorum.leader_epoch >= 1


def test_a_newer_log_is_refused() -> None:
    async def main() -> MemoryDisk:
        disk = MemoryDisk()
        node = await Node(disk).start()
        await node.quorum.append([(m.FeatureLevelRecord(name="metadata.version", feature_level=31), 0)])
        await node.quorum.close()
        return disk

    disk = run(main)
    with pytest.raises(QuorumError, match="newer version"):
        Node(disk)


def test_a_foreign_disk_has_no_vote() -> None:
    """Another directory.id than the voters' is not the disk that voted."""
    disk = stopped_disk()
    node = Node(disk)
    other = node.identity._replace(directory_ids={DATA: bytes(15) + b"\x99"})
    with pytest.raises(QuorumError, match="must not vote"):
        open_quorum(disk, other, layout(), KraftOptions(), Clock(), lambda work: work())


# --- snapshots --------------------------------------------------------------------------------------------------------


def test_snapshots_bound_the_log_and_hold_everything() -> None:
    async def main() -> None:
        clock = Clock()
        disk = MemoryDisk(now_ms=clock.wall_ms)
        limits = SnapshotLimits(bytes_between=3000, retention_bytes=9000)
        options = KraftOptions(segment_bytes=2500, limits=limits)
        node = await Node(disk, 0, options, clock).start()
        for n in range(80):
            await node.create(f"t{n}")
            await node.quorum.maintain()
        assert len(list_snapshots(disk, METADATA)) >= 1
        assert node.quorum.log.log_start_offset > 0
        kept = sum(len(data) for path, data in disk.tree().items() if path.startswith(METADATA))
        assert kept < 40_000
        image = node.quorum.image
        disk.kill()
        again = Node(disk, 1, options, clock)
        assert again.quorum.image.same_content(image)
        assert [v.id for v in again.quorum.voters] == [1]
        await again.start()

    run(main)


def test_a_snapshot_becomes_due_by_time() -> None:
    async def main() -> None:
        clock = Clock()
        disk = MemoryDisk(now_ms=clock.wall_ms)
        node = await Node(disk, 0, None, clock).start()
        await node.quorum.maintain()
        assert list_snapshots(disk, METADATA) == [SnapshotId(0, 0)]
        clock.now_ms += 3_600_001
        await node.quorum.maintain()
        assert len(list_snapshots(disk, METADATA)) == 2
        await node.quorum.maintain()
        assert len(list_snapshots(disk, METADATA)) == 2, "nothing new, nothing to write"

    run(main)


def test_a_snapshot_that_was_overtaken_by_the_leaders_is_none() -> None:
    """A node that falls behind while it writes one loads its leader's: that is the latest, whichever was done last."""

    async def main() -> None:
        clock = Clock()
        disk = MemoryDisk(now_ms=clock.wall_ms)
        node = await Node(disk, 0, None, clock).start()
        keeper = node.quorum._keeper
        fetched = SnapshotId(1000, 9)
        writing = keeper._run_in_thread

        async def slowly(work: Any) -> Any:
            if fetched not in keeper.snapshots:
                disk.replace_bytes(f"{METADATA}/{fetched.file_name}", b"stands for all up to there")
                keeper.snapshots.append(fetched)
            return await writing(work)

        keeper._run_in_thread = slowly
        clock.now_ms += 3_600_001
        await node.quorum.maintain()
        assert keeper.snapshots == [SnapshotId(0, 0), fetched] == list_snapshots(disk, METADATA)

    run(main)


def test_a_snapshot_that_cannot_be_written_is_tried_again_later() -> None:
    async def main() -> None:
        clock = Clock()
        disk = MemoryDisk(now_ms=clock.wall_ms)
        node = await Node(disk, 0, None, clock).start()
        clock.now_ms += 3_600_001
        disk.fail("append", errno.ENOSPC, path="*.part")
        await node.quorum.maintain()
        assert len(list_snapshots(disk, METADATA)) == 1
        assert (await node.create("t1")).error_code == Err.NONE
        clock.now_ms += 3_600_001
        await node.quorum.maintain()
        assert len(list_snapshots(disk, METADATA)) == 2

    run(main)


def test_an_open_transaction_is_aborted_by_the_next_leader() -> None:
    async def main() -> None:
        disk = MemoryDisk()
        node = await Node(disk).start()
        topic_id = bytes(range(16))
        await node.quorum.append(
            [(m.BeginTransactionRecord(name="half"), 0), (m.TopicRecord(name="t", topic_id=topic_id), 0)]
        )
        assert "t" not in node.quorum.image.topic_ids
        disk.kill()
        again = await Node(disk, 1).start()
        assert "t" not in again.quorum.image.topic_ids
        assert (await again.create("t")).error_code == Err.NONE

    run(main)


def test_metadata_that_cannot_be_written_down_stops_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock = Clock()
        node = await Node(MemoryDisk(now_ms=clock.wall_ms), 0, None, clock).start()
        failures: list[Exception] = []
        node.quorum.on_failure = failures.append

        def broken(image: Image) -> Any:
            raise TypeError("a bug")

        monkeypatch.setattr("headrace.quorum.cleaning.image_records", broken)
        clock.now_ms += 3_600_001
        await node.quorum.maintain()
        assert [type(error) for error in failures] == [TypeError]
        with pytest.raises(KafkaError):
            await node.create("t1")

    run(main)
