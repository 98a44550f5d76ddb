"""The coordinator of transactions: every transactional id whose shard of `__transaction_state` this broker leads."""

import logging
from collections.abc import Iterable
from functools import partial

from headrace.broker.cluster.producer_ids import ProducerIds
from headrace.broker.coordinators.coordinator import Coordinator
from headrace.broker.coordinators.host import ShardHost, State
from headrace.broker.dynamic_config import DynamicBrokerConfig
from headrace.broker.metadata_cache import MetadataCache
from headrace.broker.net.waiters import TimerWheel
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.partition import Partition
from headrace.broker.runtime import Runtime
from headrace.broker.tasks import Tasks
from headrace.broker.transactions.markers import MarkerSender
from headrace.coordinator.outcome import Outcome
from headrace.coordinator.transactions.left_open import standings
from headrace.coordinator.transactions.shard import Markers, TransactionConfig, TransactionShard
from headrace.coordinator.transactions.transaction import TopicPartition
from headrace.metadata.delta import Delta
from headrace.metadata.image import NO_LEADER, Image
from headrace.metadata.names import TRANSACTIONS_TOPIC
from headrace.metadata.versions import TRANSACTION_VERSION
from headrace.protocol.private_fields.left_open import Known, Place

logger = logging.getLogger("headrace.transactions")

COMMIT_TIMEOUT_MS = 5_000
NO_COMPRESSION = 0

TransactionHost = ShardHost[TransactionShard]


class TransactionCoordinator(Coordinator[TransactionShard, TransactionHost]):
    """Every transactional id this broker coordinates."""

    topic = TRANSACTIONS_TOPIC
    commit_timeout_ms = COMMIT_TIMEOUT_MS
    compression = NO_COMPRESSION

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        config: DynamicBrokerConfig,
        metadata: MetadataCache,
        replicas: Replicas,
        wheel: TimerWheel,
        producer_ids: ProducerIds,
        markers: MarkerSender,
    ) -> None:
        super().__init__(runtime, tasks, config, metadata, replicas, wheel)
        self.producer_ids = producer_ids
        self._markers = markers
        self.shard_config = TransactionConfig(
            transaction_max_timeout_ms=config["transaction.max.timeout.ms"],
            transactional_id_expiration_ms=config["transactional.id.expiration.ms"],
            two_phase_commit_enable=config["transaction.two.phase.commit.enable"],
        )

    @property
    def configured_partitions(self) -> int:
        count: int = self._config["transaction.state.log.num.partitions"]
        return count

    @property
    def is_loading(self) -> bool:
        return any(host.state is State.LOADING for host in self.hosts.values())

    def new_host(self, partition: Partition) -> TransactionHost:
        return ShardHost(self, partition)

    def new_shard(self, partition: Partition) -> TransactionShard:
        def note(text: str) -> None:
            logger.info("%s: %s", partition, text)

        shard = TransactionShard(self.shard_config, self.producer_ids.take_now, note=note)
        shard.transaction_version = self._version(self.image)
        return shard

    def catch_up(self, shard: TransactionShard, partition: Partition) -> Outcome:
        shard.transaction_version = self._version(self.image)
        return Outcome()

    @staticmethod
    def _version(image: Image) -> int:
        return image.features.get(TRANSACTION_VERSION, 0)

    def leader_of(self, transactional_id: str) -> int:
        """The broker that coordinates an id, or -1."""
        topic = self.image.topic_named(self.topic)
        partition = None if topic is None else topic.partitions.get(self.partition_of(transactional_id))
        return NO_LEADER if partition is None else partition.leader

    def shards(self) -> dict[int, tuple[int, int]]:
        """Who leads each shard, and in which epoch."""
        topic = self.image.topic_named(self.topic)
        partitions = {} if topic is None else topic.partitions
        return {index: (known.leader, known.leader_epoch) for index, known in partitions.items()}

    def known_of(self, places: list[Place]) -> Known:
        """What the shards served here know of transactions that are open in partitions."""
        active = list(self.active())
        epochs = {host.partition.index: host.partition.leader_epoch for host in active}
        return Known(epochs, standings((one for host in active for one in host.shard.list()), places))

    def metadata_changed(self, delta: Delta, image: Image) -> None:
        """Called in commit order, after the replicas have followed."""
        if self._closed:
            return
        self.refresh()
        version = self._version(image)
        for host in self.active():
            host.shard.transaction_version = version

    # ---- markers

    def advanced(self, host: TransactionHost) -> None:
        # Not from within a change of the shard: a partition that is gone is reported at once, and changes it again.
        self.loop.call_soon(self._send_markers, host)

    def _send_markers(self, host: TransactionHost) -> None:
        if host.state is State.ACTIVE:
            for markers in host.shard.markers_due():
                self._markers.send(_Decision(host), markers)


class _Decision:
    """A shard's decisions, as those see them who carry them out."""

    __slots__ = ("_host", "_leader_epoch")

    def __init__(self, host: TransactionHost) -> None:
        self._host = host
        self._leader_epoch = host.partition.leader_epoch

    @property
    def coordinator_epoch(self) -> int:
        return self._leader_epoch

    @property
    def is_served(self) -> bool:
        return self._host.state is State.ACTIVE

    def marked(self, markers: Markers, partitions: Iterable[TopicPartition]) -> None:
        self._host.decide(
            partial(
                self._host.shard.marker_written,
                markers.transactional_id,
                markers.producer_id,
                markers.producer_epoch,
                list(partitions),
            )
        )
