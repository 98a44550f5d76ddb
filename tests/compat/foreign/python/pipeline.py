"""Python's producers under elections: `pipeline.py confluent|aiokafka BOOTSTRAP TOPIC NAME PARTITIONS EACH`, at their
defaults but for `enable.idempotence`, which both have off. See tests/compat/elections.py."""

import asyncio
import logging
import re
import sys
import threading
import time
from typing import Any

import aiokafka
import confluent_kafka

PAUSE_S = 0.001
BUMP = re.compile(r"epoch bump.*requests: (.*)$")


class Run:
    """Counts, and knows when to stop: at the first line on standard input."""

    def __init__(self) -> None:
        self.sent = 0
        self.acked = 0
        self.stopped = threading.Event()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        sys.stdin.readline()
        self.stopped.set()

    def told(self, number: int, error: object) -> None:
        if error is not None:
            print(f"failed {number} {error}", flush=True)
            return
        self.acked += 1
        if self.acked == 100:
            print("running", flush=True)


class Eos(logging.Handler):
    """librdkafka says here why it begins a new epoch."""

    def emit(self, record: logging.LogRecord) -> None:
        if found := BUMP.search(record.getMessage()):
            print(f"bump {found[1]}", flush=True)


def confluent(bootstrap: str, topic: str, name: str, partitions: int, each: int) -> None:
    logger = logging.getLogger("librdkafka")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(Eos())
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "enable.idempotence": True, "debug": "eos"}
    run = Run()
    producer = confluent_kafka.Producer(settings, logger=logger)
    while not run.stopped.is_set():
        if each and run.sent and run.sent % each == 0:
            producer.flush()
            producer = confluent_kafka.Producer(settings, logger=logger)
        number = run.sent
        value = f"{name}-{number}".encode()
        producer.produce(
            topic,
            value,
            partition=number % partitions,
            on_delivery=lambda error, _, number=number: run.told(number, error),
        )
        run.sent += 1
        producer.poll(0)
        time.sleep(PAUSE_S)
    producer.flush()
    print("sent", run.sent)


async def aio(bootstrap: str, topic: str, name: str, partitions: int, each: int) -> None:
    run = Run()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it names every refusal

    async def opened() -> Any:
        found = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        await found.start()
        return found

    producer = await opened()
    while not run.stopped.is_set():
        if each and run.sent and run.sent % each == 0:
            await producer.stop()
            producer = await opened()
        number = run.sent
        future = await producer.send(topic, f"{name}-{number}".encode(), partition=number % partitions)
        future.add_done_callback(lambda done, number=number: run.told(number, done.exception()))
        run.sent += 1
        await asyncio.sleep(PAUSE_S)
    await producer.stop()
    print("sent", run.sent)


if __name__ == "__main__":
    kind, bootstrap, topic, name, partitions, each = sys.argv[1:]
    if kind == "confluent":
        confluent(bootstrap, topic, name, int(partitions), int(each))
    else:
        asyncio.run(aio(bootstrap, topic, name, int(partitions), int(each)))
