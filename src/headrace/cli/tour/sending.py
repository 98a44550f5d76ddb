"""The pages on producers: which partition a record goes to, and what comes of sending it again."""

import asyncio

from headrace.cli.tour.stage import Stage
from headrace.client.api.consumer import Consumer
from headrace.client.api.producer import Producer
from headrace.client.errors import ClientError
from headrace.client.produce.deliveries import Delivery
from headrace.pictures.sending import Attempt, Keyed, again_picture, records_picture

CITIES = "cities"
PARTITIONS = 4
SHOWN = r"%t-%p offset %o: %k %s\n"
RETRY_MS = 1_000
"""A request without an answer is sent again after so long."""
FROZEN_S = 2.5
"""Longer than the former, shorter than a follower may be behind."""
PATIENCE_MS = 60_000


def records(stage: Stage) -> None:
    print(
        "The producer chooses the partition: by key, explicitly, or in turn. A record gets the next offset there, so\n"
        "topic, partition and offset name it. Order holds within a partition, not across the topic.\n"
    )
    stage.show("topic", "create", CITIES, "-p", str(PARTITIONS), "-r", "2")
    stage.wait_in_sync(CITIES)
    stage.show("produce", CITIES, "-k", "Oslo", "-v", "first", "-v", "second")
    stage.show("produce", CITIES, "-k", "Lima", "-v", "first")
    stage.show("produce", CITIES, "-k", "Kyiv", "-v", "first")
    stage.show("produce", CITIES, "-k", "Oslo", "-v", "third")
    stage.show("produce", CITIES, "-p", "0", "-v", "chosen")
    stage.show("consume", CITIES, "-f", SHOWN)
    chosen, found = asyncio.run(_in_turn(stage.bootstrap))
    print(f'Producer(partitioner="round_robin") sent eight more, to the partitions {", ".join(map(str, chosen))}.\n')
    stage.draw("records", records_picture(CITIES, PARTITIONS, found))


async def _in_turn(bootstrap: str) -> tuple[list[int], list[Keyed]]:
    """To which partitions records went in turn, and everything there is then."""
    async with Producer(bootstrap, partitioner="round_robin") as producer:
        chosen = [(await producer.send(CITIES, f"{n}")).partition for n in range(2 * PARTITIONS)]
    found: list[Keyed] = []
    async with Consumer(CITIES, bootstrap=bootstrap, auto_offset_reset="earliest") as consumer:
        while len(found) < 6 + len(chosen):
            for record in await consumer.poll():
                key = record.key.decode() if record.key else None
                found.append(Keyed(record.partition, record.offset, key, record.value.decode()))
    return chosen, sorted(found)


def again(stage: Stage) -> None:
    print(
        "A record that is not sent again may be lost; one that is may be there twice. With idempotence, the default\n"
        "today, the leader recognises what it has. Here the follower first freezes, so that nothing is acknowledged\n"
        "for a while. Then it is killed, and the leader refuses: two in-sync replicas are asked for, one is left.\n"
    )
    follower = 4 if stage.controller() != 4 else 3
    stage.show("topic", "create", "again", "--assignment", f"1:{follower}", "--set", "min.insync.replicas=2")
    stage.wait_in_sync("again")
    attempts = asyncio.run(_send_again(stage, follower))
    width = max(len(attempt.options) for attempt in attempts)
    for attempt in attempts:
        times = {0: "not there", 1: "there once"}.get(attempt.times, f"there {attempt.times} times")
        print(f"{attempt.options:<{width}}  {attempt.told:<12}  {times}")
    print()
    stage.draw("again", again_picture(attempts))


async def _send_again(stage: Stage, follower: int) -> list[Attempt]:
    address, broker = stage.brokers[1].address, stage.brokers[follower]
    doubling = Producer(address, idempotence=False, request_timeout_ms=RETRY_MS, delivery_timeout_ms=PATIENCE_MS)
    knowing = Producer(address, request_timeout_ms=RETRY_MS, delivery_timeout_ms=PATIENCE_MS)
    once = Producer(address, idempotence=False, retries=0)
    async with doubling, knowing, once:
        print(f"$ kill -STOP broker {follower}")
        broker.freeze()
        try:
            sent = [await producer.send_soon("again", value) for producer, value in ((doubling, "b"), (knowing, "c"))]
            await asyncio.sleep(FROZEN_S)
        finally:
            broker.thaw()
        told = [await _told(delivery) for delivery in sent]
        print(f"$ kill -9 broker {follower}\n")
        broker.kill9()
        async with stage.patient_admin(address) as admin:

            async def is_alone() -> bool:
                return list((await admin.describe_topic("again")).partitions[0].isr) == [1]

            await stage.wait_here("one in sync", is_alone)
        told.insert(0, await _told(await once.send_soon("again", "a")))
        last = await knowing.send_soon("again", "d")
        broker.start()  # in this thread: a broker ends with the thread that started it
        told.append(await _told(last))
    values = await _values(address, "d")
    options = (
        "not sent again: idempotence=False, retries=0",
        "sent again: idempotence=False",
        "sent again: the default",
        "sent again: the default, refused at first",
    )
    order = ("a", "b", "c", "d")
    return [Attempt(*row) for row in zip(options, told, [values.count(value) for value in order])]


async def _told(delivery: Delivery) -> str:
    try:
        await delivery
    except ClientError:
        return "failed"
    return "acknowledged"


async def _values(address: str, last: str) -> list[str]:
    found: list[str] = []
    async with Consumer("again", bootstrap=address, auto_offset_reset="earliest") as consumer:
        while last not in found:
            found += [record.value.decode() for record in await consumer.poll()]
    return found
