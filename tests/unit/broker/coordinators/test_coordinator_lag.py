"""Lag in records and in seconds, from the offsets and the time index of a broker in a simulated world."""

import asyncio
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

from headrace.broker.coordinators import lag as lag_module
from headrace.broker.coordinators.leader_offsets import ENTRIES_MAX, Question, chunks
from headrace.broker.handlers.offsets import AGES_AT_ONCE, OffsetHandlers
from headrace.broker.net.pauses import WORK_S
from headrace.broker.replicas.partition import Partition
from headrace.broker.replicas.record_age import age_ms
from headrace.broker.server import Broker
from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups
from headrace.client.net.cluster import Cluster
from headrace.client.raw import produce
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.protocol.private_fields import RECORD_AGE_TAG
from headrace.protocol.private_fields.record_age import OFFSETS_MAX, tagged, value_in, values_in
from headrace.records.builder import build_batch
from headrace.records.reader import Record
from headrace.testing.simulator.world import World
from tests.unit.broker.group_world import BOOTSTRAP, Machine, connect, in_world, with_topic

STEP_MS = 60_000


def offset_handlers(broker: Broker) -> OffsetHandlers:
    return OffsetHandlers(broker.replicas, broker.node, broker.checkpoints, broker.runtime)


def asking(*tags: dict[int, bytes] | None, **fields: Any) -> m.ListOffsetsRequest:
    """For the ends of so many partitions of `t`, with these tagged fields."""
    kind = m.ListOffsetsRequest
    rows = [
        kind.ListOffsetsPartition(partition_index=index, timestamp=-1, unknown_tags=one)
        for index, one in enumerate(tags)
    ]
    return kind(topics=[kind.ListOffsetsTopic(name="t", partitions=rows)], **{"replica_id": -1, **fields})


async def fill(now_ms: int, records: int = 100) -> None:
    """One record a minute, the last of them now; large enough that the index has an entry every few."""
    async with Cluster(BOOTSTRAP) as cluster:
        for number in range(records):
            timestamp = now_ms - (records - 1 - number) * STEP_MS
            await produce(cluster, "t", 0, build_batch([Record(0, timestamp, None, bytes(1000))]))


async def fill_in_segments(machine: Machine, configs: dict[str, str], keys: Callable[[int], bytes | None]) -> Partition:
    """The same in a topic of its own, with sixteen records in a segment."""
    now_ms = machine.node.clock.wall_ms()
    async with Admin(BOOTSTRAP) as admin:
        await admin.create_topic("cut", 1, configs=configs)
        partition = machine.broker.replicas.by_name["cut"][0]
        for number in range(100):
            if number % 16 == 0:
                partition.log.roll(now_ms)
            batch = build_batch([Record(0, now_ms - (99 - number) * STEP_MS, keys(number), bytes(1000))])
            await produce(admin.cluster, "cut", 0, batch)
    return partition


def test_seconds_come_from_the_time_index() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        now_ms = machine.node.clock.wall_ms()
        await fill(now_ms)
        partition = machine.broker.replicas.by_name["t"][0]
        assert len(partition.log.active.times) > 5
        assert age_ms(partition, 100, now_ms) == 0
        assert age_ms(partition, 101, now_ms) == 0, "a group may be ahead after records were lost or deleted"
        for offset in (0, 1, 17, 50, 98, 99):
            assert abs(age_ms(partition, offset, now_ms) - (99 - offset) * STEP_MS) <= STEP_MS, offset
        partition.log.advance_log_start(90)
        assert abs(age_ms(partition, 10, now_ms) - 9 * STEP_MS) <= STEP_MS, "what was deleted is not waited for"

    in_world(main)


def test_seconds_are_right_on_both_sides_of_a_border_between_segments() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        now_ms = machine.node.clock.wall_ms()
        # An index entry only where a segment ends: what lies between comes from the neighbours.
        partition = await fill_in_segments(machine, {"index.interval.bytes": "1000000"}, lambda _: None)
        for offset in range(100):
            assert abs(age_ms(partition, offset, now_ms) - (99 - offset) * STEP_MS) <= STEP_MS, offset

    in_world(main)


def test_what_compaction_has_removed_is_not_waited_for() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        now_ms = machine.node.clock.wall_ms()
        configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
        # The first record is the last of its key; of all others only the last remains, in the segment that is written
        # to.
        partition = await fill_in_segments(machine, configs, lambda number: b"often" if number else b"once")
        await machine.broker.cleaner.run()
        log = partition.log
        assert log.size < 20_000 and len(log.segments) > 1
        active = log.active.base_offset
        assert age_ms(partition, 0, now_ms) == 99 * STEP_MS
        for offset in range(1, 100):
            # Compaction keeps the last record before the active segment.
            expected = (99 - max(offset, active - 1)) * STEP_MS
            assert abs(age_ms(partition, offset, now_ms) - expected) <= STEP_MS, offset

    in_world(main)


def test_a_round_sums_over_partitions_and_has_a_limit() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        await fill(machine.node.clock.wall_ms())
        async with Admin(BOOTSTRAP) as admin:
            groups = Groups(admin)
            await groups.commit("slow", {("t", 0): 40, ("t", 1): 0})
            await groups.commit("done", {("t", 0): 100, ("t", 1): -1})
            await groups.commit("nowhere", {("t", 0): -5})
            now_ms = machine.node.clock.wall_ms()
            seen = {(row.topic, row.partition): row for row in await groups.lag("slow", [("t", 2)], now_ms=now_ms)}
        watch = machine.broker.lag
        await watch.refresh()
        found = {lag.group: lag for lag in watch.latest.shown}
        assert {name: lag.records for name, lag in found.items()} == {"slow": 60, "done": 0}
        assert abs((found["slow"].seconds or 0) - 59 * 60) < 70
        assert (watch.latest.groups, watch.latest.offsets, watch.latest.hidden) == (3, 5, 0)
        # What the command line shows is the leader's own figure.
        assert (seen["t", 0].records, seen["t", 1].records, seen["t", 2].records) == (60, 0, None)
        told = age_ms(machine.broker.replicas.by_name["t"][0], 40, now_ms) / 1000
        assert abs((seen["t", 0].seconds or 0) - told) < 5
        assert seen["t", 1].seconds == 0

        before, lag_module.SHOWN_MAX = lag_module.SHOWN_MAX, 1
        try:
            await watch.refresh()
        finally:
            lag_module.SHOWN_MAX = before
        assert [lag.group for lag in watch.latest.shown] == ["slow"] and watch.latest.hidden == 1
        shown = {family.name: family for family in machine.broker.collector().collect()}
        (sample,) = shown["headrace_group_lag_records"].samples
        assert (sample.labels, sample.value) == ({"group": "slow", "topic": "t"}, 60)
        assert shown["headrace_group_lags_hidden"].samples[0].value == 1

    in_world(main)


def test_a_new_leader_that_does_not_know_what_is_committed_is_not_believed() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        await fill(machine.node.clock.wall_ms())
        async with Admin(BOOTSTRAP) as admin:
            await Groups(admin).commit("g", {("t", 0): 40, ("t", 1): 0})
        watch = machine.broker.lag
        await watch.refresh()
        (before,) = watch.latest.shown
        leader = machine.broker.replicas.by_name["t"][0].leader
        assert leader is not None
        # As it is when a leader was elected and its followers have not fetched yet.
        leader.high_watermark, leader.epoch_start_offset = 50, 100
        await watch.refresh()
        (lag,) = watch.latest.shown
        assert (before.records, before.unknown) == (60, 0)
        assert (lag.records, lag.unknown, watch.latest.unknown) == (60, 1, 1)
        assert (lag.seconds or 0) >= (before.seconds or 0) > 0
        leader.high_watermark = 100
        await watch.refresh()
        assert [(lag.records, lag.unknown) for lag in watch.latest.shown] == [(60, 0)]

    in_world(main)


def test_the_more_there_is_to_look_at_the_longer_it_rests() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        async with Admin(BOOTSTRAP) as admin:
            await admin.create_topic("wide", 300)
            await Groups(admin).commit("g", {("wide", index): 0 for index in range(300)})
        watch = machine.broker.lag
        await watch.refresh()
        assert watch.rest_ms() == lag_module.REFRESH_MS
        seconds = count(step=WORK_S * 0.6)
        machine.broker.runtime.perf_counter = lambda: next(seconds)  # type: ignore[method-assign]
        await watch.refresh()
        assert watch.rest_ms() > 10 * lag_module.REFRESH_MS

    before, lag_module.REFRESH_MS = lag_module.REFRESH_MS, 100
    try:
        in_world(main)
    finally:
        lag_module.REFRESH_MS = before


def test_a_leader_is_asked_once_about_many_partitions_and_what_is_gone_is_left_open() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        async with Admin(BOOTSTRAP) as admin:
            await admin.create_topic("wide", 300)
            groups = Groups(admin)
            await groups.commit("g", {("wide", index): 0 for index in range(300)})
            asked = machine.broker.metrics.request_latency(ApiKey.LIST_OFFSETS)
            before = sum(asked.counts)
            gone = [("wide", 300), ("nowhere", 0)]
            rows = {(row.topic, row.partition): row for row in await groups.lag("g", gone, now_ms=0)}
            assert {rows["wide", index].seconds for index in range(300)} == {0.0}
            assert [(rows[at].committed, rows[at].end_offset, rows[at].seconds) for at in gone] == [
                (None, None, None)
            ] * 2
            assert sum(asked.counts) - before <= 3

    in_world(main)


def test_whatever_stands_in_the_question_for_the_age() -> None:
    whole_s = 99 * 60.0
    questions: list[tuple[dict[int, bytes] | None, float | None]] = [
        (tagged(0), whole_s),
        (tagged(-5), whole_s),
        (tagged(-(2**63)), whole_s),
        (tagged(99), 0),
        (tagged(100), 0),
        (tagged(2**63 - 1), 0),
        (tagged(*range(2)), None),  # answered, but not with one number
        (tagged(0) | dict.fromkeys(range(2_000), b"q"), whole_s),
        (None, None),
        ({5: bytes(8)}, None),
        ({RECORD_AGE_TAG: b""}, None),
        ({RECORD_AGE_TAG: bytes(7)}, None),
        ({RECORD_AGE_TAG: bytes(100_000)}, None),
    ]

    async def main(world: World) -> None:
        machine = await with_topic(world)
        await fill(machine.node.clock.wall_ms())
        connection = await connect()
        for tags, age_s in questions:
            for replica_id, isolation_level in ((-1, 0), (-1, 1), (-2, 0)):
                request = asking(tags, replica_id=replica_id, isolation_level=isolation_level)
                got = (await connection.request(ApiKey.LIST_OFFSETS, request)).topics[0].partitions[0]
                assert (got.error_code, got.offset) == (0, 100)
                age_ms = value_in(got.unknown_tags)
                assert (age_ms is None) == (age_s is None), (tags, age_ms)
                assert abs((age_ms or 0) / 1000 - (age_s or 0)) < 10, (tags, age_ms)

    in_world(main)


def test_many_offsets_of_a_partition_are_asked_about_at_once() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        now_ms = machine.node.clock.wall_ms()
        await fill(now_ms)
        partition = machine.broker.replicas.by_name["t"][0]
        connection = await connect()
        for offsets in ([7], [99, 3, 50, 3, 100], list(range(OFFSETS_MAX))):
            got = (await connection.request(ApiKey.LIST_OFFSETS, asking(tagged(*offsets)))).topics[0].partitions[0]
            told = values_in(got.unknown_tags)
            assert len(told) == len(offsets)
            for offset, age in zip(offsets, told):
                assert abs(age - age_ms(partition, offset, now_ms)) < 10_000, offset

    in_world(main)


def test_a_long_answer_lets_others_have_their_turn() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        await fill(machine.node.clock.wall_ms(), records=3)
        message = asking(tagged(*range(OFFSETS_MAX)), *[None] * 99)
        broker = machine.broker
        request = SimpleNamespace(version=11)
        at_once: Any = offset_handlers(broker).list_offsets(cast(Any, request), message)
        seconds = count(step=WORK_S * 1.1)
        broker.runtime.perf_counter = lambda: next(seconds)  # type: ignore[method-assign]
        later: Any = offset_handlers(broker).list_offsets(cast(Any, request), message)
        turns = 0
        task = asyncio.ensure_future(later)
        while not task.done():
            await asyncio.sleep(0)
            turns += 1
        steps = 100 + OFFSETS_MAX // AGES_AT_ONCE
        assert turns >= steps, "in the midst of a partition as well as between two"
        assert task.result().topics == at_once.topics

    in_world(main)


def test_what_is_deleted_while_a_long_answer_is_made_is_an_error_like_any_other() -> None:
    async def main(world: World) -> None:
        machine = await with_topic(world)
        await fill(machine.node.clock.wall_ms(), records=3)
        message = asking(tagged(*range(OFFSETS_MAX)))
        seconds = count(step=WORK_S * 1.1)
        before, machine.broker.runtime.perf_counter = machine.broker.runtime.perf_counter, lambda: next(seconds)  # type: ignore[method-assign]
        answer: Any = offset_handlers(machine.broker).list_offsets(cast(Any, SimpleNamespace(version=11)), message)
        machine.broker.runtime.perf_counter = before  # type: ignore[method-assign]
        async with Admin(BOOTSTRAP) as admin:
            await admin.delete_topic("t")
        got = (await answer).topics[0].partitions[0]
        assert (got.error_code, got.offset, got.unknown_tags) == (Err.UNKNOWN_TOPIC_OR_PARTITION, -1, None)

    in_world(main)


def test_requests_to_a_leader_are_small_and_leave_nothing_out() -> None:
    sizes = [0, 0, 1, 500, 497, 0, OFFSETS_MAX - 1, OFFSETS_MAX, 2 * OFFSETS_MAX + 7, 1, *([0] * 2_500), *([1] * 1_200)]
    questions = [Question("t", index, 0, list(range(size))) for index, size in enumerate(sizes)]
    found: dict[int, list[int]] = {}
    requests = list(chunks(questions))
    for request in requests:
        assert 0 < sum(1 + len(question.offsets) for question in request) <= ENTRIES_MAX
        assert len({question.partition for question in request}) == len(request), "a partition may be named once"
        for question in request:
            found.setdefault(question.partition, []).extend(question.offsets)
    assert found == {question.partition: question.offsets for question in questions}
    assert len(requests) <= sum(1 + size for size in sizes) // ENTRIES_MAX + 4
