"""What a consumer commits by itself, beside commits of the caller and while positions move. The group is in memory."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import pytest

from headrace.client.api.tables import read_tables
from headrace.client.consume.consumer import ConsumerCore
from headrace.client.consume.fetcher import FetchOptions
from headrace.client.consume.membership import Membership, Subscription
from headrace.client.consume.offsets import GroupOffsets
from headrace.client.consume.places import Chunk, Handed, Place, Start
from headrace.client.consume.records import Record
from headrace.client.consume.resets import read_reset
from headrace.client.errors import RequestFailed
from headrace.client.net.cluster import Cluster
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.records.batch import BatchBuilder

AT = ("t", 0)
CUT_AT_3 = m.FetchResponse.EpochEndOffset(epoch=0, end_offset=3)


class Offsets:
    """Notes each commit; `gate` holds back its answer."""

    def __init__(self) -> None:
        self.commits: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failures: list[Err] = []
        """What is answered to those who ask for committed offsets, one after the other; then there are none."""

    async def starts(self, partitions: object, *, stable: bool) -> dict[tuple[str, int], Start]:
        if self.failures:
            raise RequestFailed("offsets of group 'g'", self.failures.pop(0))
        return dict.fromkeys(cast(frozenset[tuple[str, int]], partitions), Start(7))

    async def commit(self, offsets: Mapping[tuple[str, int], int], *_: Any, check_member: Callable[[], None]) -> None:
        check_member()
        self.commits += offsets.values()
        await self.gate.wait()


def run(work: Callable[[ConsumerCore, Place, Offsets], Awaitable[None]]) -> None:
    """With a partition of which records 0 to 4 are fetched, and nothing is asked of a broker."""

    async def with_core() -> None:
        offsets = Offsets()
        cluster = Cluster("127.0.0.1:1")
        options = FetchOptions(reset=read_reset("earliest"))
        core = ConsumerCore(cluster, options, offsets=cast(GroupOffsets, offsets), auto_commit_s=0.0)
        place = Place(*AT, 0, bytes(16))
        place.keep(Chunk(iter([(1, [Record(*AT, n, 0, None, None) for n in range(5)])]), 0, 5, 10))
        core.fetcher.add(place)
        try:
            async with asyncio.timeout(30):
                await work(core, place, offsets)
        finally:
            await core.fetcher.close()
            cluster.close()

    asyncio.run(with_core())


def hand_out(core: ConsumerCore, place: Place, limit: int) -> Handed:
    core._pass()
    records, _ = place.take(limit)
    core.handed = Handed(place, records)
    return core.handed


async def by_itself(core: ConsumerCore) -> None:
    """A turn of the commits that nobody asks for."""
    await core._attend(asyncio.get_running_loop().time())


def test_a_commit_of_the_caller_is_not_set_back_by_one_that_was_due_before_it() -> None:
    async def work(core: ConsumerCore, place: Place, offsets: Offsets) -> None:
        hand_out(core, place, 1)
        hand_out(core, place, 1)
        await by_itself(core)
        await core.commit()
        await asyncio.gather(*core._commits)
        assert offsets.commits == [2]
        hand_out(core, place, 1)
        hand_out(core, place, 1)
        await by_itself(core)
        await asyncio.gather(*core._commits)
        assert offsets.commits == [2, 3]

    run(work)


def test_after_a_seek_back_commits_go_back_too() -> None:
    async def work(core: ConsumerCore, place: Place, offsets: Offsets) -> None:
        hand_out(core, place, 5)
        offsets.gate.clear()
        under_way = core.commit_soon()
        while not offsets.commits:
            await asyncio.sleep(0)
        place.seek(3)
        core.handed = None
        offsets.gate.set()
        await under_way
        await by_itself(core)
        await asyncio.gather(*core._commits)
        assert offsets.commits == [5, 3]

    run(work)


def test_a_log_that_is_cut_does_not_pass_what_is_being_worked_on() -> None:
    async def work(core: ConsumerCore, place: Place, offsets: Offsets) -> None:
        hand_out(core, place, 1)
        handed = hand_out(core, place, 4)
        handed.current = handed.records[-1]
        core.fetcher._diverged(place, CUT_AT_3)
        assert (place.passed, place.position, place.fetch_offset) == (1, 3, 3)
        await by_itself(core)
        await asyncio.gather(*core._commits)
        assert offsets.commits == [1] and core.to_commit(handed=True) == {AT: 3}
        core._pass()
        assert (place.passed, place.position, place.fetch_offset) == (3, 3, 3), "what took their place comes next"

    run(work)


def test_a_log_that_is_cut_takes_commits_back_with_it() -> None:
    async def work(core: ConsumerCore, place: Place, offsets: Offsets) -> None:
        hand_out(core, place, 5)
        core._pass()
        await core.commit()
        core.fetcher._diverged(place, CUT_AT_3)
        await by_itself(core)
        await asyncio.gather(*core._commits)
        assert offsets.commits == [5, 3]

    run(work)


def test_a_member_that_is_expelled_while_it_asks_where_to_begin_joins_again() -> None:
    """The coordinator has forgotten it, which its own heartbeat finds out a moment later."""
    other = ("t", 1)

    async def work(core: ConsumerCore, place: Place, offsets: Offsets) -> None:
        member = Membership(Subscription(core.cluster, core.cluster, "g", on_change=core.note_news))
        held: list[frozenset[tuple[str, int]]] = []
        member.owns = lambda partitions: held.append(frozenset(partitions))  # type: ignore[method-assign]
        member.topic_ids["t"] = bytes(16)
        member.wanted = frozenset({AT, other})
        offsets.failures += [Err.UNKNOWN_MEMBER_ID]
        await core._reconcile(member)
        assert core.fetcher.places.keys() == {AT}
        member._be_expelled()
        await core._reconcile(member)
        assert not core.fetcher.places
        member.wanted = frozenset({other})
        await core._reconcile(member)
        assert core.fetcher.places[other].position == 7 and held[-1] == {other}
        offsets.failures += [Err.GROUP_AUTHORIZATION_FAILED]
        member.wanted = frozenset({AT, other})
        with pytest.raises(RequestFailed):
            await core._reconcile(member)

    run(work)


def test_a_chunk_that_cannot_be_decoded_is_not_passed_by_tables() -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("numba")

    async def work(core: ConsumerCore, place: Place, offsets: Offsets) -> None:
        builder = BatchBuilder()
        for _ in range(5):
            builder.append(1, None, b"value")
        damaged = bytearray(builder.build())
        damaged[-2] ^= 1
        for _ in range(2):
            place.chunks.clear()
            place.fetch_offset = 0
            place.keep(Chunk(iter(()), 0, 5, len(damaged)))
            place.chunks[0].raw = bytes(damaged), ()
            core.fetcher.resume(place)
            with pytest.raises(Exception, match=r"(?i)crc|checksum|corrupt"):
                await anext(aiter(read_tables(core, ["value"])))
            assert (place.passed, place.position, place.fetch_offset) == (0, 0, 0)
        await core.close(passed=True)
        assert set(offsets.commits) <= {0}

    run(work)
