"""Large requests in portions: each row is handled once and in order, and the answer is the one that it would have
been."""

import asyncio
from random import Random
from types import SimpleNamespace
from typing import Any

from headrace.broker.net.large_requests import AT_ONCE, PORTIONS, LargeRequests, Portions
from headrace.broker.net.request import Request
from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from headrace.protocol.codec import CODECS


def answer_offsets(message: Any) -> Any:
    R = m.OffsetCommitResponse
    return R(
        topics=[
            R.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    R.OffsetCommitResponsePartition(
                        partition_index=row.partition_index, error_code=row.committed_offset % 7
                    )
                    for row in topic.partitions
                ],
            )
            for topic in message.topics
        ]
    )


def joined(portions: Portions, message: Any, answer: Any) -> Any:
    whole = None
    for part in portions.split(message):
        if whole is None:
            whole = answer(part)
        else:
            portions.join(whole, answer(part))
    return whole


def test_rows_within_rows_are_divided_and_joined_again() -> None:
    T, P = m.OffsetCommitRequest.OffsetCommitRequestTopic, m.OffsetCommitRequest.OffsetCommitRequestPartition
    for seed in range(200):
        dice = Random(seed)
        topics = [
            T(
                name=f"t{number}",
                partitions=[
                    P(partition_index=i, committed_offset=dice.randrange(99)) for i in range(dice.choice([0, 1, 3, 40]))
                ],
            )
            for number in range(dice.randint(1, 12))
        ]
        message = m.OffsetCommitRequest(group_id="g", topics=topics)
        portions = Portions("topics", "topics", "partitions", "partitions", size=dice.randint(1, 50))
        parts = list(portions.split(message))
        assert all(sum(max(1, len(topic.partitions)) for topic in part.topics) <= portions.size for part in parts), seed
        assert all(part.group_id == "g" for part in parts)
        assert joined(portions, message, answer_offsets) == answer_offsets(message), seed


def test_a_message_that_names_nothing_is_one_portion() -> None:
    assert [part.topics for part in PORTIONS[ApiKey.METADATA].split(m.MetadataRequest(topics=None))] == [None]
    assert [part.topics for part in PORTIONS[ApiKey.METADATA].split(m.MetadataRequest(topics=[]))] == [[]]


def test_what_is_named_twice_is_answered_once() -> None:
    T = m.MetadataRequest.MetadataRequestTopic
    message = m.MetadataRequest(topics=[T(name=f"t{number % 7}") for number in range(1000)])
    (part,) = PORTIONS[ApiKey.METADATA].split(message)
    assert [topic.name for topic in part.topics] == [f"t{number}" for number in range(7)]


def test_the_table_names_arrays_that_exist() -> None:
    for key, portions in PORTIONS.items():
        name = API[key].name
        request, response = CODECS[f"{name}Request"].root, CODECS[f"{name}Response"].root
        asked = {field.name: field for field in request.fields if field.is_array}[portions.field]
        answered = {field.name: field for field in response.fields if field.is_array}[portions.answer]
        if portions.inner:
            assert asked.struct is not None and answered.struct is not None
            assert portions.inner in {field.name for field in asked.struct.fields if field.is_array}
            assert portions.inner_answer in {field.name for field in answered.struct.fields if field.is_array}


class Work:
    """Large requests on one connection."""

    def __init__(self) -> None:
        async def in_thread(work: Any, *args: Any) -> Any:
            return work(*args)

        runtime: Any = SimpleNamespace(
            loop=asyncio.get_running_loop(), run_in_thread=in_thread, perf_counter=lambda: 0.0
        )
        self._connection: Any = SimpleNamespace(
            closed=False, inbox=SimpleNamespace(buf=bytearray(), view=memoryview(b""))
        )
        self._large = LargeRequests(runtime)

    def begin(self, key: ApiKey, message: Any, handler: Any) -> Any:
        request = Request(self._connection, key, API[key].latest_stable, 1, 0, 0, 0, 0.0)
        return asyncio.ensure_future(self._large.work(request, lambda _: message, handler, lambda it: it, b"", None))

    async def assert_others_have_their_turn(self) -> None:
        other = self.begin(ApiKey.METADATA, m.MetadataRequest(topics=None), lambda *_: m.MetadataResponse())
        assert await asyncio.wait_for(other, 10) == m.MetadataResponse()


def test_markers_that_wait_for_followers_do_not_hold_up_other_large_requests() -> None:
    """All portions are appended at once, and the turn goes on to others while none of them is committed."""

    async def main() -> None:
        appended: list[int] = []
        committed = asyncio.Event()

        def write(_: Any, message: Any) -> Any:
            appended.extend(marker.producer_id for marker in message.markers)
            R = m.WriteTxnMarkersResponse

            async def answer() -> Any:
                await committed.wait()
                return R(markers=[R.WritableTxnMarkerResult(producer_id=one.producer_id) for one in message.markers])

            return answer()

        markers = [m.WriteTxnMarkersRequest.WritableTxnMarker(producer_id=number) for number in range(500)]
        request, work = m.WriteTxnMarkersRequest(markers=markers), Work()
        slow = [work.begin(ApiKey.WRITE_TXN_MARKERS, request, write) for _ in range(AT_ONCE)]
        await work.assert_others_have_their_turn()
        assert len(appended) == AT_ONCE * len(markers) and not any(one.done() for one in slow)
        committed.set()
        for one in slow:
            assert [row.producer_id for row in (await one).markers] == list(range(500))

    asyncio.run(main())


def test_portions_that_wait_long_lend_their_turn_and_follow_one_another_all_the_same() -> None:
    """Commits behind slow followers, deletions that followers have not heard of, changes without a controller."""

    async def main() -> None:
        begun: list[list[int]] = []
        committed = asyncio.Event()
        kind, R = m.OffsetCommitRequest, m.OffsetCommitResponse

        async def commit(_: Any, message: Any) -> Any:
            (topic,) = message.topics
            indexes = [row.partition_index for row in topic.partitions]
            begun.append(indexes)
            await committed.wait()
            rows = [R.OffsetCommitResponsePartition(partition_index=index) for index in indexes]
            return R(topics=[R.OffsetCommitResponseTopic(name=topic.name, partitions=rows)])

        rows = [kind.OffsetCommitRequestPartition(partition_index=index) for index in range(2500)]
        request = kind(group_id="g", topics=[kind.OffsetCommitRequestTopic(name="t", partitions=rows)])
        work = Work()
        slow = [work.begin(ApiKey.OFFSET_COMMIT, request, commit) for _ in range(AT_ONCE)]
        await work.assert_others_have_their_turn()
        first = list(range(1000))
        assert begun == [first] * AT_ONCE and not any(one.done() for one in slow), "one portion after the other"
        committed.set()
        for one in slow:
            ((topic,),) = ((await one).topics,)
            assert [row.partition_index for row in topic.partitions] == list(range(2500))
        await work.assert_others_have_their_turn()

        gone = work.begin(ApiKey.OFFSET_COMMIT, request, lambda *_: asyncio.get_running_loop().create_future())
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.wait((gone,))
        for _ in range(AT_ONCE + 1):
            await work.assert_others_have_their_turn()

    asyncio.run(main())


def test_brokers_end_as_many_transactions_as_there_are() -> None:
    """Two hundred sinks of one job commit at the same time, each to a few hundred partitions of a leader."""

    async def main() -> None:
        kind, R = m.WriteTxnMarkersRequest, m.WriteTxnMarkersResponse
        topic = kind.WritableTxnMarkerTopic(name="t", partition_indexes=list(range(300)))
        markers = [kind.WritableTxnMarker(producer_id=number, topics=[topic]) for number in range(200)]

        def write(_: Any, message: Any) -> Any:
            return R(markers=[R.WritableTxnMarkerResult(producer_id=one.producer_id) for one in message.markers])

        answer = await Work().begin(ApiKey.WRITE_TXN_MARKERS, kind(markers=markers), write)
        assert [row.producer_id for row in answer.markers] == list(range(200))

    asyncio.run(main())
