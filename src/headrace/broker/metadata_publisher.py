"""Lets committed metadata take effect: all parts of this node hear of it, in one order, after the image has changed."""

from headrace.broker.cluster.lost_brokers import LostBrokers
from headrace.broker.coordinators.runtime import GroupCoordinator
from headrace.broker.coordinators.transactions import TransactionCoordinator
from headrace.broker.dynamic_config import DynamicBrokerConfig
from headrace.broker.metadata_cache import MetadataCache
from headrace.broker.replicas.replica_manager import ReplicaManager
from headrace.metadata.delta import Delta
from headrace.metadata.image import BROKER_CONFIG, Image
from headrace.quorum import Quorum


class MetadataPublisher:
    """Told by the quorum of every commit; passes it on once this node has caught up."""

    def __init__(
        self,
        quorum: Quorum,
        metadata: MetadataCache,
        config: DynamicBrokerConfig,
        lost_brokers: LostBrokers,
        manager: ReplicaManager,
        groups: GroupCoordinator,
        transactions: TransactionCoordinator,
    ) -> None:
        self._metadata = metadata
        self._config = config
        self._lost_brokers = lost_brokers
        self._manager = manager
        self._groups = groups
        self._transactions = transactions
        self._is_broker = config.current.is_broker
        self._following = False
        quorum.listen(self._committed)

    def follow(self) -> None:
        """From here on metadata takes effect. Not earlier: old metadata would disown folders of newer topics.

        Nothing is led before this broker has registered.
        """
        self._following = True
        image = self._metadata.image
        if self._config.load(image):
            self._manager.reconfigure_all(image)
        if self._is_broker:
            self._manager.load(image)

    def _committed(self, delta: Delta, image: Image) -> None:
        self._metadata.image = image
        if self._following:
            self.publish(delta, image)
        self._metadata.tell_waiting()

    def publish(self, delta: Delta, image: Image) -> None:
        """Called in commit order, after the image has changed."""
        if delta.brokers:
            self._lost_brokers.metadata_changed(delta, delta.image)
        if any(kind == BROKER_CONFIG for kind, _ in delta.configs):
            self._config.follow(image)
            self._manager.reconfigure_all(image)
        if self._is_broker:
            self._manager.apply(delta, image, self._coordinators_follow)

    def _coordinators_follow(self, delta: Delta, image: Image) -> None:
        self._groups.metadata_changed(delta, image)
        self._transactions.metadata_changed(delta, image)
