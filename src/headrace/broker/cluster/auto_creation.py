"""Topics that come to be because a client asked about them."""

from collections.abc import Callable

from headrace.broker.cluster.controller_channel import ControllerChannel
from headrace.broker.dynamic_config import DynamicBrokerConfig
from headrace.broker.metadata_cache import MetadataCache
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

CONTROLLERS_DEFAULT = -1
SEEN_TIMEOUT_MS = 2_000
"""How long a client is kept waiting for this broker to learn of a topic that the controller has created."""


class AutoCreation:
    """Asks the controller for topics, and waits until this node knows them."""

    def __init__(
        self,
        channel: ControllerChannel,
        metadata: MetadataCache,
        config: DynamicBrokerConfig,
        state_topic: Callable[[str], m.CreateTopicsRequest.CreatableTopic | None],
    ) -> None:
        self._channel = channel
        self._metadata = metadata
        self._config = config
        self._state_topic = state_topic

    async def __call__(self, names: list[str]) -> dict[str, int]:
        """Create topics that a client asked about. Returns errors by name, of those that could not be."""
        wanted = m.CreateTopicsRequest(
            topics=[self._state_topic(name) or self._topic(name) for name in dict.fromkeys(names)]
        )
        try:
            response: m.CreateTopicsResponse = await self._channel.request(ApiKey.CREATE_TOPICS, wanted)
        except KafkaError as error:
            return dict.fromkeys(names, error.error)
        refused = {
            topic.name: topic.error_code
            for topic in response.topics
            if topic.error_code not in (Err.NONE, Err.TOPIC_ALREADY_EXISTS)
        }
        created = [topic.name for topic in response.topics if topic.name not in refused]
        await self._metadata.until(lambda image: all(name in image.topic_ids for name in created), SEEN_TIMEOUT_MS)
        return refused

    def _topic(self, name: str) -> m.CreateTopicsRequest.CreatableTopic:
        """As this broker's own options say, where they say anything: the controller's may be others."""

        def own(option: str) -> int:
            value: int = self._config[option] if option in self._config.current.raw else CONTROLLERS_DEFAULT
            return value

        return m.CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=own("num.partitions"), replication_factor=own("default.replication.factor")
        )
