"""The topic that coordinators keep their state in: created on first use, in the shape that the configuration gives it."""

import logging
from typing import TYPE_CHECKING

from headrace.errors import Err, KafkaError
from headrace.metadata.names import OFFSETS_TOPIC
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

if TYPE_CHECKING:
    from headrace.broker.server import Broker

logger = logging.getLogger("headrace.coordinator")

SEEN_TIMEOUT_MS = 2_000
"""How long to wait for this broker to learn of the topic that the controller has created."""


def offsets_topic(broker: "Broker") -> m.CreateTopicsRequest.CreatableTopic:
    """`__consumer_offsets` as it is to be created."""
    kind, config = m.CreateTopicsRequest, broker.config
    factor: int = config["offsets.topic.replication.factor"]
    if "offsets.topic.replication.factor" not in config.raw:
        # Kafka's default of three would leave a cluster of one without groups until it is configured.
        alive = sum(1 for node in broker.image.brokers.values() if not node.fenced)
        factor = max(1, min(factor, alive))
    settings = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(config["offsets.topic.segment.bytes"]),
    }
    return kind.CreatableTopic(
        name=OFFSETS_TOPIC,
        num_partitions=config["offsets.topic.num.partitions"],
        replication_factor=factor,
        configs=[kind.CreatableTopicConfig(name=name, value=value) for name, value in settings.items()],
    )


async def create_offsets_topic(broker: "Broker") -> bool:
    """Create the topic unless it is there. False: it could not be, and the log says why."""
    wanted = m.CreateTopicsRequest(topics=[offsets_topic(broker)])
    try:
        response: m.CreateTopicsResponse = await broker.channel.request(ApiKey.CREATE_TOPICS, wanted)
    except KafkaError as error:
        logger.warning("cannot create %s: %s", OFFSETS_TOPIC, error)
        return False
    result = response.topics[0]
    if result.error_code not in (Err.NONE, Err.TOPIC_ALREADY_EXISTS):
        logger.warning("cannot create %s: %s", OFFSETS_TOPIC, result.error_message)
        return False
    await broker.node.until(lambda image: OFFSETS_TOPIC in image.topic_ids, SEEN_TIMEOUT_MS)
    return True
