"""Topics from one cluster to another, between Headrace and Apache Kafka: whole, in order, once."""

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import headrace
from headrace.client.admin.admin import Resource
from headrace.client.admin.groups import Groups
from headrace.testing.broker import TestBroker
from headrace.tools.mirror import mirroring
from headrace.tools.mirror.mirroring import Mirror, MirrorRequest, MirrorStatus
from headrace.tools.mirror.topics import MirrorStopped
from headrace.tools.ranges import create_and_await
from tests.client.conftest import SETTINGS
from tests.tools.support import ODD, cli, contents, create, fill, many, new_name, refused, within
from tests.waiting import eventually, until

RECENT_MS = time.time_ns() // 1_000_000 - 10_000_000
"""Not so old that brokers delete it."""


class Pair(NamedTuple):
    source: TestBroker
    target: TestBroker

    @property
    def words(self) -> tuple[str, ...]:
        return ("--source", self.source.bootstrap, "--target", self.target.bootstrap)


@pytest.fixture(scope="module")
def other() -> Iterator[TestBroker]:
    with TestBroker(settings=SETTINGS) as running:
        yield running


@pytest.fixture(params=["out of it", "into it"])
def pair(request: pytest.FixtureRequest, broker: TestBroker, other: TestBroker) -> Pair:
    if request.param == "into it" and isinstance(broker, TestBroker):
        pytest.skip("between two of Headrace's, one direction is like the other")
    return Pair(broker, other) if request.param == "out of it" else Pair(other, broker)


def mirrored(pair: Pair, *words: str) -> dict[str, Any]:
    said = cli("mirror", *words, *pair.words, "--until-end", "--json").stdout
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    assert found["done"]
    return found


def test_everything_of_a_record_is_copied_once(pair: Pair) -> None:
    topic = create(pair.source, partitions=3)
    fill(pair.source, topic, ODD * 5, partitions=3, first_ms=RECENT_MS)
    name = ("--name", new_name("mirror"))
    assert mirrored(pair, topic, *name)["records"] == len(ODD) * 5
    assert mirrored(pair, topic, *name)["records"] == 0
    fill(pair.source, topic, many(30), partitions=3)
    done = mirrored(pair, topic, *name)
    assert (done["records"], done["lag"]) == (30, 0)
    assert contents(pair.target, topic, offsets=False) == contents(pair.source, topic, offsets=False)


def test_topics_follow_in_partitions_and_options(pair: Pair) -> None:
    topic = create(pair.source, partitions=1, **{"cleanup.policy": "compact", "segment.ms": "600000"})
    name = ("--name", new_name("mirror"), "--prefix", "copy.")
    mirrored(pair, topic, *name)

    async def change() -> None:
        async with headrace.Admin(pair.source.bootstrap) as admin:
            await admin.create_partitions(topic, 3)
            await admin.alter_configs(Resource.TOPIC, topic, set={"retention.ms": "1234567"}, unset=["segment.ms"])

    within(change)
    fill(pair.source, topic, [(b"%d" % i, b"x", ()) for i in range(9)], partitions=3)
    assert mirrored(pair, topic, *name)["records"] == 9

    async def look() -> tuple[int, dict[str, str | None]]:
        async with headrace.Admin(pair.target.bootstrap) as admin:
            rows = await admin.describe_configs(Resource.TOPIC, f"copy.{topic}")
            own = {row.name: row.value for row in rows if row.source == 1}
            return len((await admin.describe_topic(f"copy.{topic}")).partitions), own

    count, own = within(look)
    assert count == 3 and own == {"cleanup.policy": "compact", "retention.ms": "1234567"}


def test_groups_go_on_where_they_were(pair: Pair) -> None:
    topic, group, name = create(pair.source, partitions=2), new_name("group"), new_name("mirror")
    fill(pair.source, topic, many(100))
    words = (topic, "--name", name, "--groups", group)
    mirrored(pair, *words)
    fill(pair.source, topic, many(100))

    async def commit() -> None:
        async with headrace.Admin(pair.source.bootstrap) as admin:
            await Groups(admin).commit(group, {(topic, 0): 20, (topic, 1): 75})

    within(commit)
    done = mirrored(pair, *words)
    assert done["groups"] == {group: 2}

    async def rest() -> dict[int, list[Any]]:
        """What a member of the group has left to read in the target."""
        found: dict[int, list[Any]] = {0: [], 1: []}
        async with headrace.Admin(pair.target.bootstrap) as admin:
            committed = await Groups(admin).committed(group)
        for at, rows in contents_with_offsets.items():
            found[at] = [row[2:4] for row in rows if row[0] >= committed[topic, at].offset]
        return found

    contents_with_offsets = contents(pair.target, topic)
    expected = {at: [row[2:4] for row in rows] for at, rows in contents(pair.source, topic).items()}
    assert within(rest) == {0: expected[0][20:], 1: expected[1][75:]}


SMALL_CYCLES = """
import sys
from headrace.tools.mirror import mirroring
mirroring.CYCLE_RECORDS = 100
from headrace.cli.main import main
main(sys.argv[1:])
"""


def test_kill_9_loses_and_doubles_nothing(pair: Pair) -> None:
    topic, name = create(pair.source, partitions=2), new_name("mirror")
    fill(pair.source, topic, many(6_000), first_ms=RECENT_MS)
    words = ["mirror", topic, "--name", name, *pair.words]

    async def end() -> int:
        async with headrace.Admin(pair.target.bootstrap) as admin:
            if topic not in {one.name for one in await admin.list_topics()}:
                return 0
            return sum((await admin.offsets_of([(topic, 0), (topic, 1)], -1)).values())

    for _ in range(2):
        before = within(end)
        running = subprocess.Popen([sys.executable, "-c", SMALL_CYCLES, *words], stderr=subprocess.PIPE)
        eventually(lambda: running.poll() is not None or within(end) > before + 350, "several cycles")  # noqa: B023
        running.send_signal(signal.SIGKILL)
        assert running.communicate()[1] is not None
    done = mirrored(pair, topic, "--name", name)
    assert 0 < done["records"] < 6_000, "it went on where it was"
    assert contents(pair.target, topic, offsets=False) == contents(pair.source, topic, offsets=False)


def test_brokers_that_go_away_and_come_back_do_not_end_it() -> None:
    async def work(source: TestBroker, target: TestBroker, topic: str) -> int:
        mirror = Mirror(MirrorRequest(topics=(topic,), refresh_s=0.5), source.bootstrap, target.bootstrap)
        running = asyncio.create_task(mirror.run())
        written = 1_000
        for victim in (target, source):
            await until(lambda: mirror.status.records == written or running.done(), "all copied")  # noqa: B023
            await asyncio.to_thread(victim.kill)
            await until(lambda: mirror.status.restarts > 0 or running.done(), "noticed")
            await asyncio.to_thread(victim.restart)
            await asyncio.to_thread(fill, source, topic, many(500))
            mirror.status.restarts, written = 0, written + 500
        await until(lambda: mirror.status.records == written or running.done(), "all copied")
        assert not running.done(), running
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return written

    with TestBroker(settings=SETTINGS) as source, TestBroker(settings=SETTINGS) as target:
        topic = create(source)
        fill(source, topic, many(1_000))
        assert asyncio.run(work(source, target, topic)) == 2_000
        assert contents(target, topic, offsets=False) == contents(source, topic, offsets=False)


async def forget(target: TestBroker, group: str) -> None:
    """As brokers do after offsets.retention.minutes."""
    async with headrace.Admin(target.bootstrap) as admin:
        await Groups(admin).delete(group)


def test_a_mirror_whose_offsets_are_forgotten_doubles_nothing_unasked(other: TestBroker) -> None:
    topic, name = create(other), new_name("mirror")
    fill(other, topic, many(10))
    pair = Pair(other, other)
    words = (topic, "--name", name, "--prefix", "copy.")
    assert mirrored(pair, *words)["records"] == 10
    group = group_of(other, name)
    within(lambda: forget(other, group))
    assert "--from earliest, which may double" in refused("mirror", *words, *pair.words, "--until-end")
    fill(other, topic, many(3))
    assert mirrored(pair, *words, "--from", "latest")["records"] == 0
    fill(other, topic, many(5))
    assert mirrored(pair, *words)["records"] == 5


def test_offsets_of_partitions_at_rest_are_kept(other: TestBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirroring, "KEEP_S", 0.0)
    topic, name = create(other), new_name("mirror")
    fill(other, topic, many(10))
    group = group_of(other, name)

    async def offsets() -> dict[tuple[str, int], int]:
        async with headrace.Admin(other.bootstrap) as admin:
            return {at: found.offset for at, found in (await Groups(admin).committed(group)).items()}

    async def work() -> None:
        mirror = Mirror(MirrorRequest(topics=(topic,), name=name, prefix="copy."), other.bootstrap, other.bootstrap)
        running = asyncio.create_task(mirror.run())
        await until(lambda: mirror.status.records == 10 or running.done(), "all copied")
        while sum((before := await offsets()).values()) != 10:  # a transaction's offsets count with its marker
            assert not running.done(), running
            await asyncio.sleep(0.05)
        await forget(other, group)
        while await offsets() != before:
            assert not running.done(), running
            await asyncio.sleep(0.05)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    within(work)


def at_ten(mirror: Mirror, change: Callable[[], None]) -> Callable[[MirrorStatus], None]:
    """Do something to the source as soon as ten records are copied, while the mirror's loop stands still."""
    done: list[bool] = []

    def look(status: MirrorStatus) -> None:
        if status.records == 10 and not done:
            done.append(True)
            thread = threading.Thread(target=change)
            thread.start()
            thread.join()

    return look


def test_what_the_source_deletes_before_it_is_copied_is_counted(other: TestBroker) -> None:
    topic = create(other, partitions=1)
    fill(other, topic, many(10), partitions=1)

    def write_and_delete() -> None:
        for _ in range(4):
            fill(other, topic, many(5), partitions=1)

        async def delete() -> None:
            async with headrace.Admin(other.bootstrap) as admin:
                await admin.delete_records(topic, {0: 25})

        within(delete)

    async def work() -> MirrorStatus:
        request = MirrorRequest(topics=(topic,), name=new_name("mirror"), prefix="copy.")
        mirror = Mirror(request, other.bootstrap, other.bootstrap)
        mirror._on_status = at_ten(mirror, write_and_delete)
        running = asyncio.create_task(mirror.run())
        status = mirror.status
        await until(lambda: status.records + status.missing == 30 or running.done(), "all copied or counted")
        assert not running.done(), running
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return status

    status = within(work)
    # A Fetch that waited at the broker may have brought the first of those that were deleted.
    assert 0 < status.missing <= 15
    assert [note for note in status.notes if f"has deleted {status.missing} offsets that were not copied" in note]
    assert len(contents(other, f"copy.{topic}", offsets=False)[0]) == status.records


@pytest.mark.parametrize("count", [3, 15], ids=["shorter", "longer"])
def test_a_source_that_was_made_again_is_not_mixed_with_what_was_copied(other: TestBroker, count: int) -> None:
    topic = create(other, partitions=1)
    fill(other, topic, many(10), partitions=1)

    def make_again() -> None:
        async def work() -> None:
            async with headrace.Admin(other.bootstrap) as admin:
                await admin.delete_topic(topic)
                await create_and_await(admin, topic, 1)

        within(work)
        fill(other, topic, many(count), partitions=1)

    async def work() -> None:
        request = MirrorRequest(topics=(topic,), name=new_name("mirror"), prefix="copy.", refresh_s=0.5)
        mirror = Mirror(request, other.bootstrap, other.bootstrap)
        mirror._on_status = at_ten(mirror, make_again)
        with pytest.raises(MirrorStopped, match="Delete the target's topic, or give the mirror another --name"):
            await mirror.run()
        assert mirror.status.records == 10

    within(work)
    assert len(contents(other, f"copy.{topic}", offsets=False)[0]) == 10


def test_a_pattern_does_not_match_its_own_copies(other: TestBroker) -> None:
    topic = create(other)
    fill(other, topic, many(3))
    words = ("--pattern", f".*{topic}", "--name", new_name("mirror"), "--prefix", "copy.")
    pair = Pair(other, other)
    assert mirrored(pair, *words)["records"] == 3
    assert mirrored(pair, *words)["records"] == 0


def group_of(source: TestBroker, name: str) -> str:
    async def work() -> str:
        async with headrace.Admin(source.bootstrap) as admin:
            return f"headrace-mirror.{(await admin.describe_cluster()).cluster_id}.{name}"

    return within(work)


def test_aborted_records_are_not_copied(pair: Pair) -> None:
    topic = create(pair.source, partitions=1)

    async def work() -> None:
        async with headrace.Producer(pair.source.bootstrap, transactional_id=new_name("tx")) as producer:
            for number in range(4):
                async with producer.transaction() as transaction:
                    await producer.send(topic, b"%d" % number)
                    if number % 2:
                        await transaction.abort()

    within(work)
    assert mirrored(pair, topic, "--name", new_name("mirror"))["records"] == 2


def test_mistakes_are_told(broker: TestBroker, other: TestBroker) -> None:
    topic = create(broker)
    pair = Pair(broker, other)
    assert "--pattern" in refused("mirror", *pair.words)
    assert f"did you mean '{topic}'?" in refused("mirror", topic + "x", *pair.words)
    same = ("--source", broker.bootstrap, "--target", broker.bootstrap)
    assert "give --prefix" in refused("mirror", topic, *same)
    assert "no regular expression" in refused("mirror", "--pattern", "(", *pair.words)
    assert "Is a broker running there?" in refused("mirror", topic, "--source", "127.0.0.1:1", *same[2:])
