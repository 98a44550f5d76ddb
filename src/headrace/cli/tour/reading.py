"""The pages on readers: what they commit, groups, as a queue and as subscribers, and transactions."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack

from headrace.cli.tour.stage import PATIENCE_S, Stage
from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups
from headrace.client.api.consumer import Consumer
from headrace.client.api.producer import Producer
from headrace.client.errors import ClientError
from headrace.pictures.groups import Reading, groups_picture
from headrace.pictures.logs import Progress, Sent, commits_picture, exactly_once_picture
from headrace.pictures.replicas import replicas_picture

PARTITIONS = 4


def commits(stage: Stage) -> None:
    print("A consumer asks for records at its own pace, from any offset, back and forth.\n")
    stage.show("topic", "create", "drawing", "-p", "3", "-r", "1")
    for partition in range(3):
        stage.show("produce", "drawing", "-p", str(partition), "-v", "a", "-v", "b", "-v", "c", hide=True)
    stage.show("consume", "drawing", "-p", "0", "--from", "1", "-f", r"offset %o: %s\n")
    for asked, given in asyncio.run(_back_and_forth(stage.bootstrap)):
        print(f"seek({asked}) gives offset {given}")
    print("\nA group commits how far it is. The latest record of the first partition is not committed:\n")

    async def commit(admin: Admin) -> list[Progress]:
        groups = Groups(admin)
        await groups.commit("readers", {("drawing", 0): 2, ("drawing", 1): 3, ("drawing", 2): 3})
        committed = await groups.committed("readers")
        ends = await admin.list_offsets("drawing")
        return [Progress(n, ends[n].offset, committed["drawing", n].offset) for n in sorted(ends)]

    found = stage.ask(commit)
    stage.show("group", "describe", "readers")
    stage.draw("commits", commits_picture("drawing", "readers", found))
    _crash(stage)


async def _back_and_forth(bootstrap: str) -> list[tuple[int, int]]:
    async with Consumer(bootstrap=bootstrap) as consumer:
        await consumer.assign({("drawing", 0): 0})
        found = []
        for offset in (2, 0, 1):
            consumer.seek(("drawing", 0), offset)
            found.append((offset, (await consumer.poll(max_records=1))[0].offset))
        return found


CRASHING = """
import asyncio, sys, headrace
async def main():
    options = {"group": "quiz", "auto_offset_reset": "earliest", "auto_commit": False}
    async with headrace.Consumer(bootstrap=sys.argv[1], **options) as consumer:
        await consumer.assign({("quiz", 0): 0})
        handled = 0
        async for record in consumer:
            handled += 1
            if handled == 20:
                await consumer.commit()
            if handled == 25:
                print("25 processed", flush=True)
                await asyncio.sleep(600)
asyncio.run(main())
"""


def _crash(stage: Stage) -> None:
    print(
        "A quiz: 20 of 30 records are committed, five more are processed, and the consumer is killed. What is next?\n"
    )
    stage.show("topic", "create", "quiz", "-p", "1", "-r", "3")
    values = [word for n in range(30) for word in ("-v", f"record {n + 1}")]
    stage.show("produce", "quiz", *values, hide=True)
    with subprocess.Popen([sys.executable, "-c", CRASHING, stage.bootstrap], stdout=subprocess.PIPE) as crashing:
        assert crashing.stdout is not None
        said = crashing.stdout.readline()
        crashing.kill()
    if not said:
        raise ClientError("the consumer that is to crash did so before it had processed 25 records")
    print("$ kill -9 the consumer\n")
    stage.show("group", "describe", "quiz")
    stage.show("consume", "quiz", "-g", "quiz", "-n", "1", "-f", r"offset %o: %s\n")
    print("Offsets are records in a compacted topic; the coordinator answers from memory.\n")
    stage.show("topic", "describe", "__consumer_offsets")


def groups(stage: Stage) -> None:
    print("Two brokers and four partitions, with one replica each and with two.\n")
    for name, assignment, words in (
        ("once", "1,1,2,2", "One replica: p0 and p1 are on broker 1, p2 and p3 on broker 2."),
        ("doubled", "1:2,2:1,1:2,2:1", "Two replicas: each broker leads two partitions and follows two."),
    ):
        stage.show("topic", "create", name, "--assignment", assignment)
        stage.wait_in_sync(name)
        stage.show("topic", "describe", name)
        title = f"{name}: four partitions on two brokers"
        stage.draw(f"groups-{name}", replicas_picture(title, words, stage.shown_brokers(1, 2), stage.placed(name)))
    print("Members of a group share the partitions. A group of its own gets all of them.\n")
    shared = asyncio.run(_read_together(stage.bootstrap, "doubled", {"A": 2, "B": 4}))
    _tell(shared)
    stage.draw(
        "groups",
        groups_picture(
            "Groups of two and of four",
            "Each group gets every partition; its members share them.",
            "doubled",
            PARTITIONS,
            shared,
        ),
    )
    print("One group is a queue: each record goes to one of its members. Groups of one are subscribers.\n")
    queue = asyncio.run(_read_together(stage.bootstrap, "once", {"queue": 3}))
    _tell(queue)
    words = "One group: every record goes to one of its members."
    stage.draw("queue", groups_picture("A queue", words, "once", PARTITIONS, queue))
    subscribers = asyncio.run(_read_together(stage.bootstrap, "once", {"subscriber-1": 1, "subscriber-2": 1}))
    _tell(subscribers)
    words = "A group for each reader: every record goes to all of them."
    stage.draw("publish-subscribe", groups_picture("Publish/subscribe", words, "once", PARTITIONS, subscribers))


def _tell(readings: Sequence[Reading]) -> None:
    for reading in readings:
        for member, given in reading.members.items():
            print(f"group {reading.group}: {member} reads {', '.join(f'p{number}' for number in given)}")
    print()


async def _read_together(bootstrap: str, topic: str, sizes: dict[str, int]) -> list[Reading]:
    """Groups of these sizes, all at once, as they have settled who reads what."""
    async with AsyncExitStack() as stack:
        members: dict[str, list[Consumer]] = {}
        for group, size in sizes.items():
            members[group] = [
                await stack.enter_async_context(
                    Consumer(topic, bootstrap=bootstrap, group=group, remote_assignor="range")
                )
                for _ in range(size)
            ]
        everyone = [consumer for consumers in members.values() for consumer in consumers]
        async with asyncio.timeout(PATIENCE_S):
            while not all(_have_shared(consumers) for consumers in members.values()):
                await asyncio.gather(*(consumer.poll(timeout_s=0.2) for consumer in everyone))
        return [
            Reading(group, {f"C{n}": given for n, given in enumerate(sorted(map(_given, consumers)), 1)})
            for group, consumers in members.items()
        ]


def _given(consumer: Consumer) -> list[int]:
    return sorted(at.partition for at in consumer.assignment())


def _have_shared(consumers: Sequence[Consumer]) -> bool:
    given = [_given(consumer) for consumer in consumers]
    return all(given) and sorted(number for one in given for number in one) == list(range(PARTITIONS))


def exactly_once(stage: Stage) -> None:
    print("Records of a transaction count together or not at all. One is committed, one aborted, one committed.\n")
    stage.show("topic", "create", "payments", "-p", "1", "-r", "3")
    log, readers = asyncio.run(_transactions(stage.bootstrap))
    for name, given in readers.items():
        print(f"{name:<18} was given the offsets {', '.join(map(str, given))}")
    print()
    stage.draw("exactly-once", exactly_once_picture("payments", log, readers))


class _Undone(Exception):
    """Ends a transaction without a commit."""


async def _transactions(bootstrap: str) -> tuple[list[Sent], dict[str, list[int]]]:
    sent: list[Sent] = []
    async with Producer(bootstrap, transactional_id="tour") as producer:
        for outcome, values in (
            ("committed", ("+10", "-10")),
            ("aborted", ("+99", "-99")),
            ("committed", ("+5", "-5")),
        ):
            try:
                async with producer.transaction():
                    for value in values:
                        where = await producer.send("payments", value.encode())
                        sent.append(Sent(where.offset, value, outcome))
                    if outcome == "aborted":
                        raise _Undone
            except _Undone:
                pass
    readers = {
        level: await _offsets_given(bootstrap, level, sent[-1].offset)
        for level in ("read_uncommitted", "read_committed")
    }
    known = {one.offset for one in sent}
    markers = [Sent(offset, "marker", "marker") for offset in range(sent[-1].offset + 2) if offset not in known]
    return sorted([*sent, *markers]), readers


async def _offsets_given(bootstrap: str, level: str, last_offset: int) -> list[int]:
    found: list[int] = []
    async with Consumer(bootstrap=bootstrap, isolation_level=level, auto_offset_reset="earliest") as consumer:
        await consumer.assign([("payments", 0)])
        async with asyncio.timeout(PATIENCE_S):
            while not found or found[-1] < last_offset:
                found += [record.offset for record in await consumer.poll()]
    if level == "read_committed" and not found:
        raise ClientError("nothing that was committed could be read")
    return found
