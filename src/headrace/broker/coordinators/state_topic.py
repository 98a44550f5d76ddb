"""The topics that coordinators keep their state in: created on first use, in the shape that the options give them."""

import logging

from headrace.broker.cluster.controller_channel import ControllerChannel
from headrace.broker.dynamic_config import DynamicBrokerConfig
from headrace.broker.metadata_cache import MetadataCache
from headrace.config import BrokerConfig
from headrace.errors import Err, KafkaError
from headrace.metadata.image import Image
from headrace.metadata.names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

logger = logging.getLogger("headrace.coordinator")

SEEN_TIMEOUT_MS = 2_000
"""How long to wait for this broker to learn of the topic that the controller has created."""


def offsets_topic(config: BrokerConfig, image: Image) -> m.CreateTopicsRequest.CreatableTopic:
    """`__consumer_offsets` as it is to be created."""
    return _topic(
        OFFSETS_TOPIC,
        config["offsets.topic.num.partitions"],
        _factor(config, image, "offsets.topic.replication.factor"),
        {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": config["offsets.topic.segment.bytes"],
        },
    )


def transactions_topic(config: BrokerConfig, image: Image) -> m.CreateTopicsRequest.CreatableTopic:
    """`__transaction_state` as it is to be created."""
    factor = _factor(config, image, "transaction.state.log.replication.factor")
    in_sync: int = config["transaction.state.log.min.isr"]
    if "transaction.state.log.min.isr" not in config.raw:
        in_sync = min(in_sync, factor)
    return _topic(
        TRANSACTIONS_TOPIC,
        # Each shard is a file that is synced by itself. Over Kafka's fifty, transactions that begin or end together
        # would share no sync, and syncs would be half of what they cost a broker.
        _at_most_alive(config, image, "transaction.state.log.num.partitions"),
        factor,
        {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": config["transaction.state.log.segment.bytes"],
            "min.insync.replicas": in_sync,
            "unclean.leader.election.enable": "false",
        },
    )


def _factor(config: BrokerConfig, image: Image, option: str) -> int:
    # Kafka's default of three would leave a cluster of one without coordinators until it is configured.
    return _at_most_alive(config, image, option)


def _at_most_alive(config: BrokerConfig, image: Image, option: str) -> int:
    """The option as it is set; or else Kafka's default, but not more than there are brokers."""
    value: int = config[option]
    if option in config.raw:
        return value
    alive = sum(1 for node in image.brokers.values() if not node.fenced)
    return max(1, min(value, alive))


def _topic(
    name: str, partitions: int, factor: int, settings: dict[str, object]
) -> m.CreateTopicsRequest.CreatableTopic:
    kind = m.CreateTopicsRequest
    return kind.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        configs=[kind.CreatableTopicConfig(name=option, value=str(value)) for option, value in settings.items()],
    )


STATE_TOPICS = {OFFSETS_TOPIC: offsets_topic, TRANSACTIONS_TOPIC: transactions_topic}


class StateTopics:
    """The topics of this broker's coordinators."""

    def __init__(self, config: DynamicBrokerConfig, metadata: MetadataCache, channel: ControllerChannel) -> None:
        self._config = config
        self._metadata = metadata
        self._channel = channel

    def creatable(self, name: str) -> m.CreateTopicsRequest.CreatableTopic | None:
        """The topic as it is to be created; None: it is not one of them."""
        make = STATE_TOPICS.get(name)
        return None if make is None else make(self._config.current, self._metadata.image)

    async def create(self, name: str) -> bool:
        """Create the topic unless it is there. False: it could not be, and the log says why."""
        wanted = m.CreateTopicsRequest(topics=[STATE_TOPICS[name](self._config.current, self._metadata.image)])
        try:
            response: m.CreateTopicsResponse = await self._channel.request(ApiKey.CREATE_TOPICS, wanted)
        except KafkaError as error:
            logger.warning("cannot create %s: %s", name, error)
            return False
        result = response.topics[0]
        if result.error_code not in (Err.NONE, Err.TOPIC_ALREADY_EXISTS):
            logger.warning("cannot create %s: %s", name, result.error_message)
            return False
        await self._metadata.until(lambda image: name in image.topic_ids, SEEN_TIMEOUT_MS)
        return True
