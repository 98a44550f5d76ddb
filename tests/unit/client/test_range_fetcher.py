"""A range of offsets over a broker that misbehaves: pipelined, retried, never silently short."""

import asyncio
from typing import Any

import pytest

from headrace.client.consume.buffer_pool import BufferPool
from headrace.client.consume.range_fetcher import (
    FETCH_BYTES,
    FIRST_BYTES,
    BlockingFetcher,
    OffsetsGone,
    RangeFetcher,
    end_of,
)
from headrace.client.errors import ClientError
from headrace.client.net.cluster import Cluster
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.records.batch import Record, build_batch, iter_records
from headrace.testing.broker import TestBroker
from tests.unit.client.fake import HANG_UP, SILENT, TOPIC_ID, FakeBroker, Handler
from tests.waiting import run

PER_BATCH = 10
LOG = [
    build_batch([Record(0, 1, None, b"%d" % i) for i in range(at, at + PER_BATCH)], base_offset=at)
    for at in range(0, 100, PER_BATCH)
]


def answer(records: bytes = b"", error: Err = Err.NONE, high_watermark: int = 100) -> m.FetchResponse:
    kind = m.FetchResponse
    row = kind.PartitionData(
        partition_index=0, error_code=error, high_watermark=high_watermark, last_stable_offset=high_watermark,
        log_start_offset=0, records=records,
    )  # fmt: skip
    return kind(responses=[kind.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[row])])


def from_log(request: Any, version: int) -> m.FetchResponse:
    """Two batches and a piece of a third from the one that holds the offset."""
    offset = request.topics[0].partitions[0].fetch_offset
    at = offset // PER_BATCH
    return answer(b"".join(LOG[at : at + 2]) + b"".join(LOG[at + 2 : at + 3])[:50])


def offsets_listed(first: int, last: int) -> Handler:
    def handle(request: Any, version: int) -> Any:
        kind = m.ListOffsetsResponse
        part = request.topics[0].partitions[0]
        row = kind.ListOffsetsPartitionResponse(partition_index=0, offset=first if part.timestamp == -2 else last)
        return kind(topics=[kind.ListOffsetsTopicResponse(name=request.topics[0].name, partitions=[row])])

    return handle


def play(
    script: Handler, start: int = 0, end: int = 100, retry_timeout_s: float = 5.0, request_timeout_s: float = 5.0
) -> tuple[list[int], FakeBroker]:
    """Fetch the range from a broker whose Fetch handler is `script`; the offsets and the broker."""

    async def go() -> tuple[list[int], FakeBroker]:
        async with FakeBroker() as broker:
            broker.add_topic("t")
            broker.handlers[ApiKey.FETCH] = script
            broker.handlers[ApiKey.LIST_OFFSETS] = offsets_listed(30, 60)
            found: list[int] = []
            async with Cluster(
                broker.address, retry_timeout_s=retry_timeout_s, request_timeout_s=request_timeout_s
            ) as cluster:
                fetcher = RangeFetcher(cluster, "t", 0, start, end)
                async for got in fetcher:
                    rows = [record.offset for record in iter_records(got.records)]
                    found += [offset for offset in rows if fetcher.answer_start <= offset < end]
                fetcher.close()
            return found, broker

    return run(go())


def failing(*faults: Any) -> Handler:
    left = list(faults)

    def handle(request: Any, version: int) -> Any:
        if left:
            fault = left.pop(0)
            return fault if fault in (HANG_UP, SILENT) else answer(error=fault)
        return from_log(request, version)

    return handle


@pytest.mark.parametrize("bounds", [(0, 100), (0, 1), (7, 93), (35, 36), (99, 100), (20, 20)])
def test_exactly_the_range(bounds: tuple[int, int]) -> None:
    found, _ = play(from_log, *bounds)
    assert found == list(range(*bounds))


def test_nothing_is_fetched_beyond_the_end() -> None:
    _, broker = play(from_log, 0, 40)
    asked = [request.topics[0].partitions[0].fetch_offset for key, _, request in broker.seen if key is ApiKey.FETCH]
    assert asked == [0, 20]


@pytest.mark.parametrize(
    "fault",
    [Err.NOT_LEADER_OR_FOLLOWER, Err.FENCED_LEADER_EPOCH, Err.UNKNOWN_LEADER_EPOCH, Err.LEADER_NOT_AVAILABLE,
     Err.UNKNOWN_TOPIC_ID, Err.KAFKA_STORAGE_ERROR, Err.OFFSET_NOT_AVAILABLE, HANG_UP],
)  # fmt: skip
def test_what_passes_is_tried_again_after_a_look_at_the_cluster(fault: object) -> None:
    found, broker = play(failing(fault, fault))
    assert found == list(range(100))
    assert broker.count(ApiKey.METADATA) >= 3


def test_a_broker_that_falls_silent_is_asked_again_on_a_new_connection() -> None:
    found, broker = play(failing(SILENT), request_timeout_s=0.2)
    assert found == list(range(100)) and broker.connections == 2


def test_errors_that_do_not_pass_reach_the_caller() -> None:
    with pytest.raises(ClientError, match="TOPIC_AUTHORIZATION_FAILED"):
        play(failing(Err.TOPIC_AUTHORIZATION_FAILED))


def test_offsets_that_are_gone_say_what_there_is() -> None:
    with pytest.raises(OffsetsGone, match="offset 5 is wanted, but the log holds 30 to 60") as caught:
        play(failing(Err.OFFSET_OUT_OF_RANGE), 5, 50)
    assert (caught.value.log_start, caught.value.log_end) == (30, 60)


def test_a_log_that_ends_before_the_range_is_not_taken_for_its_end() -> None:
    with pytest.raises(OffsetsGone, match="t-0: offset 0 is wanted"):
        play(lambda request, version: answer(high_watermark=0), retry_timeout_s=0.1)


def test_a_batch_larger_than_asked_for_is_asked_for_whole() -> None:
    large = build_batch([Record(0, 1, None, bytes(5000)) for _ in range(10)])

    def handle(request: Any, version: int) -> m.FetchResponse:
        return answer(large[: request.topics[0].partitions[0].partition_max_bytes])

    async def go() -> tuple[int, object]:
        async with FakeBroker() as broker:
            broker.add_topic("t")
            broker.handlers[ApiKey.FETCH] = handle
            async with Cluster(broker.address) as cluster:
                fetcher = RangeFetcher(cluster, "t", 0, 0, 10, fetch_bytes=1000)
                first = await fetcher.next()
                assert first is not None
                return end_of(first.records), await fetcher.next()

    assert run(go()) == (10, None)


def test_the_next_answer_is_under_way_while_the_last_is_worked_on() -> None:
    async def go() -> int:
        async with FakeBroker() as broker:
            broker.add_topic("t")
            broker.handlers[ApiKey.FETCH] = from_log
            async with Cluster(broker.address) as cluster:
                fetcher = RangeFetcher(cluster, "t", 0, 0, 100)
                await fetcher.next()
                await broker.received(ApiKey.FETCH, 2)
                fetcher.skip_to(90)
                got = await fetcher.next()
                assert got is not None
                return end_of(got.records)

    assert run(go()) == 100


def test_from_a_thread_and_through_a_restart() -> None:
    with TestBroker() as broker:

        async def fill() -> None:
            from headrace.client.admin.admin import Admin
            from headrace.client.raw import produce

            async with Admin(broker.bootstrap) as admin:
                await admin.create_topic("t", 1)
                for _ in range(50):
                    await produce(admin.cluster, "t", 0, LOG[0])

        run(fill())
        fetcher = BlockingFetcher(broker.bootstrap, "t", 0, 3, 490, fetch_bytes=300)
        found = []
        for got in fetcher:
            found += [r.offset for r in iter_records(got.records) if fetcher.answer_start <= r.offset < 490]
            if len(found) == 200 - 3:
                broker.kill()
                broker.start()
        fetcher.close()
        assert found == list(range(3, 490))


def test_large_answers_are_read_into_the_same_memory() -> None:
    rows = [build_batch([Record(0, 1, None, bytes([at]) * 200_000)], base_offset=at) for at in range(20)]

    def handle(request: Any, version: int) -> Any:
        offset = request.topics[0].partitions[0].fetch_offset
        # Of different sizes, as they are where batches are.
        return answer(b"".join(rows[offset : offset + 1 + offset % 2]))

    def read(address: str) -> tuple[list[bytes], int]:
        buffers, found, used = BufferPool(), list[bytes](), list[object]()
        for _ in range(3):
            fetcher = BlockingFetcher(address, "t", 0, 0, 20, buffers=buffers)
            for got in fetcher:
                found += [(record.value or b"")[:1] for record in iter_records(got.records)]
                assert isinstance(got.records, memoryview)
                used.append(got.records.obj)
            fetcher.close()
        return found, len({id(buffer) for buffer in used})

    async def go() -> tuple[list[bytes], int]:
        async with FakeBroker() as broker:
            broker.add_topic("t")
            broker.handlers[ApiKey.FETCH] = handle
            return await asyncio.to_thread(read, broker.address)

    found, buffers = run(go())
    assert found == [bytes([at]) for at in range(20)] * 3
    # One is worked on while the next is filled; the first may have been too small for what came later.
    assert buffers <= 4


def test_buffers_beyond_a_limit_are_let_go_of() -> None:
    buffers = BufferPool()
    for buffer in [buffers.take(300_000) for _ in range(4)]:
        buffers.give_back(buffer)
    buffers.trim(700_000)
    assert len(buffers._free) == 2
    buffers.trim(0)
    assert not buffers._free


def test_little_is_asked_for_first_and_then_more_and_more() -> None:
    found, broker = play(from_log)
    assert found == list(range(100))
    sizes = [
        request.topics[0].partitions[0].partition_max_bytes for key, _, request in broker.seen if key is ApiKey.FETCH
    ]
    assert sizes == [FIRST_BYTES, 4 * FIRST_BYTES, 16 * FIRST_BYTES, FETCH_BYTES, FETCH_BYTES]


def test_the_end_of_what_came() -> None:
    whole = b"".join(LOG[:3])
    assert [end_of(whole[:size]) for size in (0, 10, len(LOG[0]) - 1, len(LOG[0]), len(whole) - 1, len(whole))] == [
        -1,
        -1,
        -1,
        10,
        20,
        30,
    ]
    for at, what in ((16, "magic"), (8, "length")):
        damaged = bytearray(whole)
        damaged[len(LOG[0]) + at] = 0xFF
        with pytest.raises(KafkaError, match=what):
            end_of(damaged)
