"""The coordinator of groups: every group whose shard of `__consumer_offsets` this broker leads."""

import logging
import uuid
from functools import partial

from headrace.broker.coordinators.coordinator import Coordinator
from headrace.broker.coordinators.group_host import GroupHost
from headrace.broker.coordinators.host import State
from headrace.broker.dynamic_config import DynamicBrokerConfig
from headrace.broker.metadata_cache import MetadataCache
from headrace.broker.net.waiters import TimerWheel
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.partition import Partition
from headrace.broker.runtime import Runtime
from headrace.broker.tasks import Tasks
from headrace.coordinator.outcome import Outcome
from headrace.coordinator.shard import GroupShard
from headrace.coordinator.shard_state import ShardConfig
from headrace.errors import Err, KafkaError
from headrace.metadata.delta import Delta
from headrace.metadata.image import BROKER_CONFIG, Image
from headrace.metadata.names import OFFSETS_TOPIC
from headrace.metadata.versions import GROUP_VERSION
from headrace.records.control import Marker

logger = logging.getLogger("headrace.coordinator")


class GroupCoordinator(Coordinator[GroupShard, GroupHost]):
    """Every group this broker coordinates."""

    topic = OFFSETS_TOPIC

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        config: DynamicBrokerConfig,
        metadata: MetadataCache,
        replicas: Replicas,
        wheel: TimerWheel,
    ) -> None:
        super().__init__(runtime, tasks, config, metadata, replicas, wheel)
        self.commit_timeout_ms: int = config["offsets.commit.timeout.ms"]
        self.compression: int = config["offsets.topic.compression.codec"]
        self.shard_config = ShardConfig.from_broker(config.current)

    @property
    def serves_consumer_protocol(self) -> bool:
        """Whether requests of KIP-848 are served: by this broker's options, and by what the cluster has agreed on."""
        return self.shard_config.consumer_protocol_enabled and self.image.features.get(GROUP_VERSION, 0) > 0

    @property
    def configured_partitions(self) -> int:
        count: int = self._config["offsets.topic.num.partitions"]
        return count

    def new_id(self) -> str:
        """A random UUID as Java prints it."""
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))

    def metadata_changed(self, delta: Delta, image: Image) -> None:
        """Called in commit order, after the replicas have followed."""
        if self._closed:
            return
        if any(kind == BROKER_CONFIG or name == OFFSETS_TOPIC for kind, name in delta.configs):
            for host in self.active():
                host.shard.state.config = self.config_of(host.partition)
        self.refresh()
        for host in list(self.active()):
            host.decide(partial(host.shard.on_metadata, image))

    def new_host(self, partition: Partition) -> GroupHost:
        return GroupHost(self, partition)

    def new_shard(self, partition: Partition) -> GroupShard:
        def note(text: str) -> None:
            logger.info("%s: %s", partition, text)

        shard = GroupShard(self.config_of(partition), note=note)
        shard.on_metadata(self.image, self.wall_ms())
        return shard

    def catch_up(self, shard: GroupShard, partition: Partition) -> Outcome:
        shard.state.config = self.config_of(partition)
        return shard.on_metadata(self.image, self.wall_ms())

    def config_of(self, partition: Partition) -> ShardConfig:
        """What the shard of a partition goes by: some options change while the broker runs."""
        return ShardConfig.from_broker(self._config.current, partition.log.config.max_message_bytes)

    # ---- transactions

    def write_marker(
        self, partition: int, producer_id: int, epoch: int, marker: Marker, transaction_version: int
    ) -> tuple[Partition, int]:
        """The end of a transaction in a partition of the offsets topic: its shard has to hear of it. Raises
        KafkaError."""
        host = self.hosts.get(partition)
        if host is None or host.state is not State.ACTIVE:
            # Whoever sends markers takes this for a leader that is not ready yet, and tries again.
            raise KafkaError(Err.NOT_LEADER_OR_FOLLOWER)
        return host.partition, host.write_marker(producer_id, epoch, marker, transaction_version)
