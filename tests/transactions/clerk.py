"""A process that carries out orders: reads them in a group, and writes both sides of each and the group's offsets in
one transaction. On any error it ends, and is started again.

    python -m tests.transactions.clerk SERVERS NAME GROUP ORDERS
"""

import sys
from typing import NoReturn
from zlib import crc32

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from tests.librdkafka import STEADY

ACCOUNTS, SAVINGS = "accounts", "savings"
PARTITIONS = 3
PATIENCE_S = 30.0
AT_ONCE = 20


def main(bootstrap: str, name: str, group: str, orders: str) -> NoReturn:
    common = {**STEADY, "bootstrap.servers": bootstrap, "socket.timeout.ms": 5_000, "log_level": 2}
    producer = Producer({**common, "transactional.id": name, "transaction.timeout.ms": 10_000})
    consumer = Consumer(
        {
            **common,
            "group.id": group,
            "session.timeout.ms": 6_000,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    producer.init_transactions(PATIENCE_S)
    consumer.subscribe([orders])
    while True:
        messages = [one for one in consumer.consume(AT_ONCE, 0.5) if one.error() is None]
        if messages:
            carry_out(producer, consumer, messages)


def carry_out(producer: Producer, consumer: Consumer, messages: list[Message]) -> None:
    next_offsets: dict[tuple[str, int], int] = {}
    producer.begin_transaction()
    for message in messages:
        id, amount = message.key(), int(message.value())
        side = crc32(id) % PARTITIONS
        producer.produce(ACCOUNTS, key=id, value=str(-amount), partition=side)
        producer.produce(SAVINGS, key=id, value=str(amount), partition=(side + 1) % PARTITIONS)
        next_offsets[message.topic(), message.partition()] = message.offset() + 1
    offsets = [TopicPartition(topic, index, offset) for (topic, index), offset in next_offsets.items()]
    producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE_S)
    producer.commit_transaction(PATIENCE_S)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except KafkaException as error:
        sys.exit(str(error))
