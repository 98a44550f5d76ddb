"""The pages on readers: groups, as a queue and as subscribers, and transactions."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from headrace.cli.tour.stage import PATIENCE_S, Stage
from headrace.client.api.consumer import Consumer
from headrace.client.api.producer import Producer
from headrace.client.errors import ClientError
from headrace.pictures.groups import Reading, groups_picture
from headrace.pictures.logs import Sent, exactly_once_picture
from headrace.pictures.replicas import replicas_picture

PARTITIONS = 4


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
