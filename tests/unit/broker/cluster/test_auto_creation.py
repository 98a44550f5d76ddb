"""Topics that come to be by themselves are as the broker that a client asked says, else as the controller does."""

import asyncio
from typing import Any

import pytest

from headrace.broker.cluster.auto_creation import AutoCreation
from headrace.broker.dynamic_config import DynamicBrokerConfig
from headrace.broker.metadata_cache import MetadataCache
from headrace.config import BrokerConfig
from headrace.protocol import messages as m


class Channel:
    """A controller that takes what it is asked for, and creates nothing."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def request(self, key: object, message: Any) -> Any:
        self.asked += message.topics
        return m.CreateTopicsResponse()


@pytest.mark.parametrize(
    ("options", "partitions", "replicas"),
    [
        ({}, -1, -1),
        ({"num.partitions": "5"}, 5, -1),
        ({"num.partitions": "1"}, 1, -1),  # a default that is named is not the controller's to choose
        ({"default.replication.factor": "2"}, -1, 2),
    ],
)
def test_a_broker_says_what_its_own_options_name(options: dict[str, str], partitions: int, replicas: int) -> None:
    async def main() -> None:
        channel: Any = Channel()
        config = DynamicBrokerConfig(BrokerConfig.load(options))
        create = AutoCreation(channel, MetadataCache(1, "PLAINTEXT"), config, lambda name: None)
        await create(["t", "t"])
        (topic,) = channel.asked
        assert (topic.name, topic.num_partitions, topic.replication_factor) == ("t", partitions, replicas)

    asyncio.run(main())
