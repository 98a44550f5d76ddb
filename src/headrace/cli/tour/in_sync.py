"""The pages on replicas that keep up and replicas that do not: who may lead, what is committed, what is refused."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from headrace.cli.dump.segments import walk
from headrace.cli.tour.stage import Stage
from headrace.client.api.producer import Producer
from headrace.client.errors import ClientError
from headrace.pictures.moments import Copies, Moment, committed_picture, in_sync_picture

REFUSED_MS = 4_000
"""A record that is not acknowledged for so long is refused: an election takes far less."""
BEHIND_MS = 60_000
"""Far longer than followers may be behind: a record that waits for them is not given up."""


def in_sync(stage: Stage) -> None:
    print("A leader is lost: a follower that is in sync leads. The lost one leaves the list of in-sync replicas.\n")
    stage.show("topic", "create", "kept", "--assignment", "4:2:3", "--set", "min.insync.replicas=2")
    stage.wait_in_sync("kept")
    moments = [_moment(stage, "all are there", [])]
    print("$ kill -9 broker 4\n")
    stage.brokers[4].kill9()
    stage.wait("another leads", lambda: stage.placed("kept")[0].leader not in (-1, 4))
    stage.show("topic", "describe", "kept")
    moments.append(_moment(stage, "broker 4 is killed", [4]))
    print("Two are in sync, as many as min.insync.replicas asks for: writes go on. Now the second one is killed.\n")
    print("$ kill -9 broker 3\n")
    stage.brokers[3].kill9()
    stage.wait("one alone in sync", lambda: list(stage.placed("kept")[0].in_sync) == [2])
    stage.show("topic", "describe", "kept")
    moments.append(_moment(stage, "broker 3 is killed", [3, 4]))
    print("One is left: acks=all is refused, and nothing that was acknowledged is at risk. Brokers come back.\n")
    stage.brokers[3].start()
    stage.wait("broker 3 in sync", lambda: 3 in stage.placed("kept")[0].in_sync)
    moments.append(_moment(stage, "broker 3 is back, and in sync", [4]))
    stage.brokers[4].start()
    stage.wait("broker 4 leads again", lambda: stage.placed("kept")[0].leader == 4)
    stage.show("topic", "describe", "kept")
    moments.append(_moment(stage, "broker 4 is back, and leads", []))
    for moment in moments:
        answer = "written" if moment.written else "refused"
        print(f"{moment.what:<30} in sync {','.join(map(str, moment.in_sync)):<6} acks=all: {answer}")
    print()
    stage.draw("in-sync", in_sync_picture("kept", (4, 2, 3), 2, moments))


def _moment(stage: Stage, what: str, lost: list[int]) -> Moment:
    """How the topic is, and whether it takes a record."""

    async def send() -> bool:
        try:
            async with Producer(
                stage.bootstrap, delivery_timeout_ms=REFUSED_MS, request_timeout_ms=REFUSED_MS
            ) as sender:
                await sender.send("kept", what.encode())
        except ClientError:
            return False
        return True

    written = asyncio.run(send())
    (part,) = stage.placed("kept")
    return Moment(what, part.leader, part.in_sync, lost, written)


def committed(stage: Stage) -> None:
    print(
        "A record is committed once every in-sync replica has it. Then it is acknowledged (acks=all) and given to\n"
        "consumers. Here followers freeze. After replica.lag.time.max.ms, 10 s, they leave the list, with the leader\n"
        "alone in it. It then commits alone or, with min.insync.replicas=2, refuses.\n"
    )
    # Broker 1 leads. A controller that froze would have a successor, which is another page.
    followers = [node for node in (2, 3, 4) if node != stage.controller()][-2:]
    for topic, least in (("alone", 1), ("pair", 2)):
        at = ":".join(map(str, (1, *followers)))
        stage.show("topic", "create", topic, "--assignment", at, "--set", f"min.insync.replicas={least}")
        stage.wait_in_sync(topic)
        stage.show("produce", topic, "-v", "a", "-v", "b", "-v", "c", hide=True)
        stage.wait(f"three copies of {topic}", partial(_have, stage, topic, (1, *followers), 3))
    found = asyncio.run(_fall_behind(stage, followers))
    for copies in found:
        ends = ", ".join(f"broker {node} has {end}" for node, end in copies.ends.items())
        print(f"{copies.topic}: {copies.what}\n  {ends}; {copies.committed} committed; in sync {_list(copies.in_sync)}")
        print(f"  acks=all: {copies.answer}\n")
    stage.draw("committed", committed_picture(found))


async def _fall_behind(stage: Stage, followers: Sequence[int]) -> list[Copies]:
    address = stage.brokers[1].address
    holders = (1, *followers)
    # One each: records that are sent in one request are answered together.
    alone, pair = (Producer(address, request_timeout_ms=BEHIND_MS, delivery_timeout_ms=BEHIND_MS) for _ in range(2))
    hasty = Producer(address, request_timeout_ms=REFUSED_MS, delivery_timeout_ms=REFUSED_MS)
    async with stage.patient_admin(address) as admin, alone, pair, hasty:

        async def look(topic: str, what: str, answer: str) -> Copies:
            committed = (await admin.list_offsets(topic))[0].offset
            in_sync = (await admin.describe_topic(topic)).partitions[0].isr
            return Copies(topic, what, _ends(stage, topic, holders), committed, in_sync, answer)

        async def until(what: str, topic: str, in_sync: Sequence[int]) -> None:
            async def is_so() -> bool:
                return sorted((await admin.describe_topic(topic)).partitions[0].isr) == sorted(in_sync)

            await stage.wait_here(what, is_so)

        for producer, topic in ((alone, "alone"), (pair, "pair"), (hasty, "pair")):
            await producer.partitions(topic)  # who leads is known before those who might be asked are frozen
        found = [await look("alone", "all three have everything", "acknowledged")]
        for node in followers:
            print(f"$ kill -STOP broker {node}")
            stage.brokers[node].freeze()
        print()
        try:
            sent = {
                topic: [await producer.send_soon(topic, value) for value in ("d", "e")]
                for topic, producer in (("alone", alone), ("pair", pair))
            }
            for topic in sent:
                await asyncio.to_thread(stage.wait, "the leader has five", partial(_have, stage, topic, (1,), 5))
            found.append(await look("alone", "the followers are frozen", "waits"))
            for topic in sent:
                await until("the leader alone in sync", topic, [1])
            await asyncio.gather(*sent["alone"])
            found.append(await look("alone", "10 s later, min.insync.replicas=1", "acknowledged by the leader alone"))
            try:
                await hasty.send("pair", "f")
            except ClientError as error:
                found.append(await look("pair", "10 s later, min.insync.replicas=2", f"refused, {_named(error)}"))
        finally:
            for node in followers:
                stage.brokers[node].thaw()
        for topic in sent:
            await until("all in sync again", topic, holders)
        await asyncio.gather(*sent["pair"])
        found.append(await look("pair", "the followers are back", "acknowledged"))
    return found


def _have(stage: Stage, topic: str, nodes: Sequence[int], records: int) -> bool:
    return set(_ends(stage, topic, nodes).values()) == {records}


def _ends(stage: Stage, topic: str, nodes: Sequence[int]) -> dict[int, int]:
    """How many records each replica has, from its files: a frozen broker cannot be asked."""
    return {node: _records_in(stage.cluster.folders[node] / f"{topic}-0") for node in nodes}


def _records_in(folder: Path) -> int:
    logs = folder.glob("*.log")
    return sum(batch.header.count for path in logs for batch in walk(str(path)))


def _list(nodes: Sequence[int]) -> str:
    return ",".join(map(str, nodes))


def _named(error: ClientError) -> str:
    return next((word.strip("[]().,:") for word in str(error).split() if word.strip("[]().,:").isupper()), str(error))
