"""Requests about transactions to other brokers of the cluster, and who leads what."""

from typing import Any

from headrace.broker.cluster.peers import Peers
from headrace.broker.metadata_cache import MetadataCache
from headrace.client.errors import ClientError
from headrace.errors import Err, KafkaError
from headrace.metadata.image import NO_LEADER
from headrace.protocol.api import ApiKey

LANE = "transactions"
"""Markers wait until they are committed: nothing else may stand behind them."""
TIMEOUT_S = 30.0


class Brokers:
    """Asks a broker by its id."""

    def __init__(self, metadata: MetadataCache, peers: Peers) -> None:
        self._metadata = metadata
        self._peers = peers

    async def ask(self, key: ApiKey, broker_id: int, body: Any) -> Any:
        """The answer's message. Raises NETWORK_EXCEPTION when there is none."""
        address = self._metadata.address(broker_id)
        if address is None:
            raise KafkaError(Err.NETWORK_EXCEPTION, f"broker {broker_id} is not known")
        try:
            return await self._peers.request(address, key, body, timeout_s=TIMEOUT_S, lane=f"{LANE} {key.name}")
        except ClientError as error:
            raise KafkaError(Err.NETWORK_EXCEPTION, str(error)) from error

    def leader_of(self, topic: str, partition: int) -> int | None:
        """-1: nobody, at the moment. None: there is no such partition any more."""
        found = self._metadata.image.topic_named(topic)
        known = None if found is None else found.partitions.get(partition)
        if known is None:
            return None
        return NO_LEADER if known.leader < 0 else known.leader

    def leader_epoch_of(self, topic: str, partition: int) -> int:
        """-1: there is no such partition any more."""
        found = self._metadata.image.topic_named(topic)
        known = None if found is None else found.partitions.get(partition)
        return -1 if known is None else known.leader_epoch
