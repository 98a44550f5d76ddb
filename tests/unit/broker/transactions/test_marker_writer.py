"""A leader writes markers on its own log, and says so when they are committed: neither earlier nor for nothing."""

import asyncio
import errno
from typing import Any

from headrace.broker.replicas.environment import Environment
from headrace.broker.replicas.partition import Partition
from headrace.broker.replicas.transactional import append_in_transaction
from headrace.broker.transactions.marker_writer import MarkerWriter
from headrace.config import LogConfig
from headrace.coordinator.transactions.shard import Markers
from headrace.coordinator.transactions.transaction import TopicPartition
from headrace.errors import Err
from headrace.metadata.image import Partition as Assignment
from headrace.protocol import messages as m
from headrace.protocol.private_fields.marker_origin import decision_tag, leader_epochs_tag
from headrace.records.builder import BatchBuilder
from headrace.replication.partition import always_eligible
from headrace.storage.log import Log
from headrace.testing.simulator.disk import MemoryDisk

TIMEOUT_MS = 30_000
PRODUCER = 7, 0


class Leader:
    """One partition, led here; nothing is synced, and so nothing committed, before `sync`."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.disk.make_dirs("/data")
        self.waits: list[tuple[Any, int]] = []
        self.open(0)

    def open(self, high_watermark: int, epoch: int = 0) -> None:
        log = Log.open(self.disk, "/data/t-0", LogConfig(), now_ms=1000, topic_id=b"t" * 16)
        log.flush()
        anything: Any = None
        syncer: Any = self
        environment = Environment(
            node_id=1, wall_ms=lambda: 1000, monotonic_ms=lambda: 1000, syncer=syncer, durable_acks=True,
            validate_records=False, eligible=always_eligible, lag_ms_max=10_000, fetchable=lambda partition: None,
            dir_failed=anything, no_space=anything, run_in_thread=anything,
        )  # fmt: skip
        self.partition = Partition("t", b"t" * 16, 0, log, environment)
        self.partition.restore(high_watermark)
        self.partition.become_leader(Assignment((1,), (1,), 1, epoch, 0, (bytes(16),)))

    def dirty(self, partition: object) -> None:
        """It is synced by `sync`."""

    def sync(self) -> None:
        plan = self.partition.log.sync_plan()
        if plan is not None:
            plan.run()
            self.partition.log.mark_durable(plan)
            self.partition.durable()

    def begin(self, producer: tuple[int, int] = PRODUCER) -> None:
        """A transaction's first batch."""
        builder = BatchBuilder(producer_id=producer[0], producer_epoch=producer[1], transactional=True)
        builder.append(1000, None, b"value")
        guard = self.partition.log.producers.begin_verification(*producer, -1, 1000, supports_epoch_bump=False)
        append_in_transaction(self.partition, bytearray(builder.build()), 1, 1000, *producer, guard)
        self.sync()

    def add(self, waiter: Any, timeout_ms: int) -> None:
        """The wheel, as the writer sees it."""
        self.waits.append((waiter, timeout_ms))

    def writer(self) -> MarkerWriter:
        groups: Any = None
        loop = asyncio.get_running_loop()
        return MarkerWriter({"t": {0: self.partition}}, groups, self, lambda: TIMEOUT_MS, loop)


def end(
    *producers: tuple[int, int], committed: bool = True, decision: int = -1, leader_epoch: int = -1
) -> m.WriteTxnMarkersRequest:
    kind = m.WriteTxnMarkersRequest
    epochs = leader_epochs_tag([leader_epoch])
    return kind(
        markers=[
            kind.WritableTxnMarker(
                producer_id=producer_id,
                producer_epoch=epoch,
                transaction_result=committed,
                topics=[kind.WritableTxnMarkerTopic(name="t", partition_indexes=[0], unknown_tags=epochs)],
                unknown_tags=decision_tag(decision),
            )
            for producer_id, epoch in producers
        ]
    )


def errors(response: m.WriteTxnMarkersResponse) -> dict[int, int]:
    return {one.producer_id: one.topics[0].partitions[0].error_code for one in response.markers}


def test_a_marker_that_is_committed_before_its_answer_is_waited_for_is_answered_at_once() -> None:
    async def main() -> None:
        leader = Leader()
        leader.begin()
        answer = leader.writer().write(end(PRODUCER))
        leader.sync()
        assert errors(await asyncio.wait_for(answer, 1)) == {7: Err.NONE}

    asyncio.run(main())


def test_a_marker_of_a_leader_that_is_deposed_before_its_answer_is_waited_for_does_not_count() -> None:
    """The next leader's log may be longer than this one's, and not have it."""

    async def main() -> None:
        leader = Leader()
        leader.begin()
        answer = leader.writer().write(end(PRODUCER))
        leader.partition.become_follower(2, 1)
        assert errors(await asyncio.wait_for(answer, 1)) == {7: Err.NOT_LEADER_OR_FOLLOWER}

    asyncio.run(main())


def test_markers_of_one_request_for_one_partition_are_each_waited_for() -> None:
    async def main() -> None:
        leader = Leader()
        leader.begin()
        leader.begin((8, 0))
        asked = asyncio.ensure_future(leader.writer().write(end(PRODUCER, (8, 0))))
        await asyncio.sleep(0)
        assert not asked.done() and [timeout_ms for _, timeout_ms in leader.waits] == [TIMEOUT_MS]
        leader.sync()
        assert errors(await asyncio.wait_for(asked, 1)) == {7: Err.NONE, 8: Err.NONE}
        assert leader.partition.last_stable_offset == 4

    asyncio.run(main())


def test_a_classic_marker_that_comes_again_does_not_end_the_next_transaction() -> None:
    async def main() -> None:
        leader = Leader()
        writer = leader.writer()
        leader.begin()
        asked = end(PRODUCER, decision=5, leader_epoch=0)
        answers = [asyncio.ensure_future(writer.write(asked)), asyncio.ensure_future(writer.write(asked))]
        await asyncio.sleep(0)
        assert not any(answer.done() for answer in answers), "the second one, too, waits until the first is committed"
        assert leader.partition.log.end_offset == 2
        leader.sync()
        assert [errors(await answer) for answer in answers] == [{7: Err.NONE}] * 2

        leader.begin()
        for decision in (5, 4):
            assert errors(await writer.write(end(PRODUCER, decision=decision, leader_epoch=0))) == {7: Err.NONE}
        assert leader.partition.last_stable_offset == 2, "the next transaction is open"
        answer = asyncio.ensure_future(writer.write(end(PRODUCER, decision=8, leader_epoch=0)))
        await asyncio.sleep(0)
        leader.sync()
        assert errors(await answer) == {7: Err.NONE}
        assert leader.partition.last_stable_offset == 4

    asyncio.run(main())


def test_a_classic_marker_does_not_outlive_the_leader_it_was_meant_for() -> None:
    """The leader moves away and back; meanwhile another has written the marker, and the next transaction began."""

    async def main() -> None:
        leader = Leader()
        leader.begin()
        leader.partition.become_follower(2, 1)
        leader.partition.become_leader(Assignment((1,), (1,), 1, 2, 0, (bytes(16),)))
        late = end(PRODUCER, committed=False, decision=5, leader_epoch=0)
        assert errors(await leader.writer().write(late)) == {7: Err.NOT_LEADER_OR_FOLLOWER}
        assert leader.partition.last_stable_offset == 0

    asyncio.run(main())


def test_a_marker_that_was_cut_with_its_leaders_log_is_written_again() -> None:
    """What a leader has written is known in its own epoch only: later another log may have taken its place."""

    async def main() -> None:
        leader = Leader()
        writer = leader.writer()
        leader.begin()
        lost = asyncio.ensure_future(writer.write(end(PRODUCER, decision=5, leader_epoch=0)))
        await asyncio.sleep(0)
        leader.partition.become_follower(2, 1)
        assert errors(await lost) == {7: Err.NOT_LEADER_OR_FOLLOWER}
        leader.partition.become_leader(Assignment((1,), (1,), 1, 2, 0, (bytes(16),)))
        before = leader.partition.log.end_offset
        again = asyncio.ensure_future(writer.write(end(PRODUCER, decision=5, leader_epoch=2)))
        await asyncio.sleep(0)
        leader.sync()
        assert errors(await again) == {7: Err.NONE}
        assert leader.partition.log.end_offset == before + 1

    asyncio.run(main())


def test_a_marker_that_is_not_committed_in_time_has_to_be_sent_again() -> None:
    async def main() -> None:
        leader = Leader()
        leader.begin()
        answer = leader.writer().write(end(PRODUCER))
        ((waiter, _),) = leader.waits
        waiter.expire()
        assert errors(await asyncio.wait_for(answer, 1)) == {7: Err.REQUEST_TIMED_OUT}
        leader.sync()

    asyncio.run(main())


def test_a_coordinator_on_this_broker_is_told_once_when_its_markers_are_committed_or_late() -> None:
    async def main() -> None:
        leader = Leader()
        writer = leader.writer()
        told: list[dict[TopicPartition, Err]] = []
        ending = Markers("id", *PRODUCER, True, frozenset({("t", 0), ("t", 1)}), 0, 5)
        leader.begin()
        writer.write_here(ending, 0, ending.partitions, lambda errors: told.append(dict(errors)))
        assert not told
        leader.sync()
        assert told == [{("t", 0): Err.NONE, ("t", 1): Err.UNKNOWN_TOPIC_OR_PARTITION}]
        writer.write_here(ending, 0, [("t", 0)], lambda errors: told.append(dict(errors)))
        assert told[1:] == [{("t", 0): Err.NONE}], "the same decision: it is there already"

        leader.begin()
        writer.write_here(ending._replace(decision=9), 0, [("t", 0)], lambda errors: told.append(dict(errors)))
        leader.waits[-1][0].expire()
        assert told[2:] == [{("t", 0): Err.REQUEST_TIMED_OUT}]
        leader.sync()
        assert len(told) == 3

    asyncio.run(main())


def test_a_disk_too_full_for_the_transaction_index_shows_nobody_what_was_aborted() -> None:
    async def main() -> None:
        leader = Leader()
        leader.begin()
        leader.disk.fail("append", errno.ENOSPC, path="*.txnindex", times=None)
        answer = leader.writer().write(end(PRODUCER, committed=False))
        leader.sync()
        assert errors(await asyncio.wait_for(answer, 1)) == {7: Err.NONE}
        assert leader.partition.last_stable_offset == 2
        assert leader.partition.log.aborted_transactions(0, 2) == [(7, 0)]

    asyncio.run(main())


def test_after_a_crash_transactions_that_ended_long_ago_hold_nobody_back() -> None:
    """Nothing is written any more, so the high watermark never moves again."""

    async def main() -> None:
        leader = Leader()
        leader.begin()
        answer = leader.writer().write(end(PRODUCER))
        leader.sync()
        await asyncio.wait_for(answer, 1)
        assert leader.partition.last_stable_offset == leader.partition.high_watermark == 2
        leader.partition.log.abandon()
        leader.open(2, epoch=1)
        assert leader.partition.high_watermark == 2
        assert leader.partition.last_stable_offset == 2

    asyncio.run(main())


def test_an_open_transaction_whose_first_records_were_deleted_sends_nobody_before_the_start_of_the_log() -> None:
    leader = Leader()
    leader.begin()
    leader.begin((8, 0))
    assert leader.partition.last_stable_offset == 0
    leader.partition.delete_up_to(2)
    assert leader.partition.log.log_start_offset == leader.partition.last_stable_offset == 2
