"""Topics that come to be because a client asked about them."""

from typing import TYPE_CHECKING

from headrace.broker.coordinator_topic import offsets_topic
from headrace.errors import Err, KafkaError
from headrace.metadata.names import OFFSETS_TOPIC
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

if TYPE_CHECKING:
    from headrace.broker.server import Broker

SEEN_TIMEOUT_MS = 2_000
"""How long a client is kept waiting for this broker to learn of a topic that the controller has created."""


async def auto_create(broker: "Broker", names: list[str]) -> dict[str, int]:
    """Create topics that a client asked about. Returns errors by name, of those that could not be."""
    wanted = m.CreateTopicsRequest(
        topics=[
            offsets_topic(broker)
            if name == OFFSETS_TOPIC
            else m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
            for name in dict.fromkeys(names)
        ]
    )
    try:
        response: m.CreateTopicsResponse = await broker.channel.request(ApiKey.CREATE_TOPICS, wanted)
    except KafkaError as error:
        return dict.fromkeys(names, error.error)
    refused = {
        topic.name: topic.error_code
        for topic in response.topics
        if topic.error_code not in (Err.NONE, Err.TOPIC_ALREADY_EXISTS)
    }
    created = [topic.name for topic in response.topics if topic.name not in refused]
    await broker.node.until(lambda image: all(name in image.topic_ids for name in created), SEEN_TIMEOUT_MS)
    return refused
