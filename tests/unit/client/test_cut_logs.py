"""A log that was cut under a consumer: which epoch a leader is told, what its answer leads to, what is committed."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from headrace.client.consume.consumer import ConsumerCore
from headrace.client.consume.epochs import RUNS_MAX, FetchedEpochs
from headrace.client.consume.fetcher import Fetcher, FetchOptions
from headrace.client.consume.offsets import GroupOffsets
from headrace.client.consume.places import Chunk, Handed, Place
from headrace.client.consume.records import Record
from headrace.client.consume.resets import read_reset
from headrace.client.consume.sessions import Wanted
from headrace.client.errors import ClientError
from headrace.client.net.cluster import Cluster, Partition, Topic
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.records.batch import BatchBuilder
from headrace.records.layout import HEADER_BYTES
from tests.unit.client.fake import TOPIC_ID, FakeBroker

AT = ("t", 0)
Row = m.FetchResponse.PartitionData


def batch(base_offset: int, count: int, epoch: int) -> bytes:
    builder = BatchBuilder()
    for _ in range(count):
        builder.append(1, None, b"value")
    data = bytearray(builder.build())
    assert len(data) > HEADER_BYTES
    data[:8] = base_offset.to_bytes(8, "big")
    data[12:16] = epoch.to_bytes(4, "big")
    return bytes(data)


def lead(cluster: Cluster, epoch: int) -> None:
    cluster.topics["t"] = Topic("t", TOPIC_ID, False, {0: Partition(0, 1, epoch, (1, 2), (1, 2), ())})
    cluster.looks += 1


@pytest.fixture
def fetcher() -> Iterator[Fetcher]:
    cluster = Cluster("127.0.0.1:1")
    yield Fetcher(cluster, lambda: None, FetchOptions(reset=read_reset("none")))
    cluster.close()


def take(fetcher: Fetcher, place: Place, leader_epoch: int, **row: Any) -> None:
    asked = Wanted(TOPIC_ID, place.fetch_offset, leader_epoch, -1)
    fetcher._take_row(AT, place, Row(partition_index=0, high_watermark=100, log_start_offset=0, **row), asked)


def test_a_leader_is_told_the_epoch_of_the_last_record_that_was_fetched(fetcher: Fetcher) -> None:
    """Not that of the last one handed out: its epoch ends before what was fetched, which would look like a cut."""
    lead(fetcher._cluster, 6)
    fetcher.add(place := Place(*AT, 0, TOPIC_ID))
    take(fetcher, place, 6, records=batch(0, 10, epoch=5) + batch(10, 10, epoch=6))
    assert place.take(10)[0][-1].offset == 9
    assert fetcher._wanted(AT) == Wanted(TOPIC_ID, 20, 6, -1), "this leader wrote it"
    lead(fetcher._cluster, 7)
    assert fetcher._wanted(AT) == Wanted(TOPIC_ID, 20, 7, 6)
    take(fetcher, place, 7)
    assert fetcher._wanted(AT) == Wanted(TOPIC_ID, 20, 7, -1), "checked once"
    assert [place.epoch_before(offset) for offset in (0, 1, 10, 11, 20, 21)] == [-1, 5, 5, 6, 6, -1]


def test_what_was_fetched_and_not_handed_out_is_let_go_of_without_a_word(fetcher: Fetcher) -> None:
    lead(fetcher._cluster, 6)
    fetcher.add(place := Place(*AT, 0, TOPIC_ID))
    take(fetcher, place, 6, records=batch(0, 10, epoch=5) + batch(10, 10, epoch=6))
    place.take(10)
    lead(fetcher._cluster, 7)
    take(fetcher, place, 7, diverging_epoch=m.FetchResponse.EpochEndOffset(epoch=5, end_offset=12))
    assert (place.position, place.fetch_offset, place.has_records) == (10, 10, False)
    assert fetcher._wanted(AT) == Wanted(TOPIC_ID, 10, 7, 5), "what was handed out is checked next"
    with pytest.raises(ClientError, match="cut at offset 8, and records up to 10 were read: seek to go on"):
        take(fetcher, place, 7, diverging_epoch=m.FetchResponse.EpochEndOffset(epoch=5, end_offset=8))


def test_only_a_leader_is_asked_whether_its_log_was_cut(fetcher: Fetcher) -> None:
    async def work() -> None:
        lead(fetcher._cluster, 6)
        fetcher.add(place := Place(*AT, 10, TOPIC_ID, 5))
        place.replica, place.replica_until_s = 2, asyncio.get_running_loop().time() + 60
        assert fetcher._node_of(AT) == 1 and fetcher._wanted(AT) == Wanted(TOPIC_ID, 10, 6, 5)
        take(fetcher, place, 6)
        assert fetcher._node_of(AT) == 2 and fetcher._wanted(AT) == Wanted(TOPIC_ID, 10, 6, -1)

    asyncio.run(work())


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2)), max_size=30), st.data())
def test_epochs_are_remembered_as_they_were_fetched(batches: list[tuple[int, int]], data: st.DataObject) -> None:
    epochs, model, epoch = FetchedEpochs(0), list[int](), 0
    for count, step in batches:
        epoch += step
        epochs.note(len(model), epoch)
        model += [epoch] * count
    cut = data.draw(st.integers(0, len(model)))
    epochs.cut(cut)
    for offset in range(cut + 1):
        expected = model[offset - 1] if offset else -1
        is_old = len({*model[max(0, offset - 1) :]}) > RUNS_MAX
        assert epochs.before(offset) == expected or (is_old and epochs.before(offset) == -1)


def test_a_committed_epoch_is_waited_for_and_told_to_the_leader() -> None:
    async def work() -> None:
        async with FakeBroker() as broker, asyncio.timeout(30):
            broker.add_topic("t")
            row = broker.topics["t"].partitions[0]
            kind = m.OffsetFetchResponse
            part = kind.OffsetFetchResponsePartitions(partition_index=0, committed_offset=10, committed_leader_epoch=6)
            topic = kind.OffsetFetchResponseTopics(name="t", partitions=[part])
            group = kind.OffsetFetchResponseGroup(group_id="g", topics=[topic])
            found = m.FindCoordinatorResponse.Coordinator(key="g", node_id=1, host=broker.host, port=broker.port)
            broker.handlers[ApiKey.FIND_COORDINATOR] = lambda *_: m.FindCoordinatorResponse(coordinators=[found])
            broker.handlers[ApiKey.OFFSET_FETCH] = lambda *_: kind(groups=[group])
            broker.handlers[ApiKey.FETCH] = lambda *_: m.FetchResponse(session_id=0, responses=[])
            async with Cluster(broker.address) as cluster:
                await cluster.refresh(["t"])
                core = ConsumerCore(
                    cluster, FetchOptions(reset=read_reset("earliest")), offsets=GroupOffsets(cluster, "g")
                )
                asked = broker.count(ApiKey.METADATA)
                assigning = asyncio.create_task(core.assign([AT]))
                # The leader that is known, of epoch 5, was deposed before offset 10 was read.
                await broker.received(ApiKey.METADATA, asked + 3)
                assert not assigning.done() and not core.fetcher.places
                row.leader_epoch = 7
                await assigning
                assert core.fetcher._wanted(AT) == Wanted(TOPIC_ID, 10, 7, 6)
                # A broker that is behind does not bring the deposed one back.
                row.leader_epoch = 5
                await cluster.refresh(["t"])
                assert cluster.topics["t"].partitions[0].leader_epoch == 7
                await core.fetcher.close()

    asyncio.run(work())


def step(core: ConsumerCore, data: st.DataObject) -> None:
    fetcher = core.fetcher
    kind = data.draw(st.sampled_from(["fetch", "next", "pass", "commit", "seek", "reset", "auto", "other"]))
    place = fetcher.places["t", data.draw(st.integers(0, 2))]
    if kind == "fetch" and place.wants_more:
        records = [Record("t", place.partition, place.fetch_offset + n, 0, None, None) for n in range(3)]
        place.keep(Chunk(iter([(1, records)]), place.fetch_offset, place.fetch_offset + 4, 10))
        fetcher._enqueue(place)
    elif kind == "next":
        core._pass()
        if (found := fetcher.take(2)) is not None:
            core.handed = Handed(*found)
            core.handed.current = data.draw(st.sampled_from([None, *core.handed.records]))
    elif kind == "pass":
        core._pass()
    elif kind == "seek":
        core.seek(("t", place.partition), data.draw(st.integers(0, 8)))
    elif kind == "reset":
        fetcher.reset(place, data.draw(st.integers(0, 8)))
    elif kind in ("commit", "auto"):
        was_committed(core, core.to_commit(handed=kind == "commit"))
    elif kind == "other":
        was_committed(core, {("t", place.partition): data.draw(st.integers(0, 8))})


def was_committed(core: ConsumerCore, offsets: dict[tuple[str, int], int]) -> None:
    for at, offset in offsets.items():
        core.fetcher.places[at].committed = offset
        core.fetcher.moved[at] = None


def all_to_commit(core: ConsumerCore, *, handed: bool) -> dict[tuple[str, int], int]:
    found = {}
    for at, place in core.fetcher.places.items():
        offset, before = core.handed_position(place) if handed else place.passed, place.committed
        if before is None or (offset != before and (handed or offset > before)):
            found[at] = offset
    return found


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_what_is_to_be_committed_is_found_among_the_moved(data: st.DataObject) -> None:
    """As if all partitions were looked at each time."""

    async def work() -> None:
        cluster = Cluster("127.0.0.1:1")
        core = ConsumerCore(cluster, FetchOptions(reset=read_reset("earliest")))
        for index in range(3):
            core.fetcher.add(Place("t", index, 0, TOPIC_ID))
        for _ in range(data.draw(st.integers(1, 25))):
            step(core, data)
            for handed in (True, False):
                assert core.to_commit(handed=handed) == all_to_commit(core, handed=handed)
        await core.fetcher.close()
        cluster.close()

    asyncio.run(work())


def test_partitions_that_were_committed_are_not_looked_at_again() -> None:
    async def work() -> None:
        cluster = Cluster("127.0.0.1:1")
        core = ConsumerCore(cluster, FetchOptions(reset=read_reset("earliest")))
        for index in range(1_000):
            core.fetcher.add(Place("t", index, 0, TOPIC_ID))
        first = core.to_commit(handed=True)
        assert len(first) == 1_000
        was_committed(core, first)
        assert core.to_commit(handed=True) == {} == core.fetcher.moved
        core.seek(("t", 7), 3)
        assert core.to_commit(handed=True) == {("t", 7): 3} and [*core.fetcher.moved] == [("t", 7)]
        await core.fetcher.close()
        cluster.close()

    asyncio.run(work())
