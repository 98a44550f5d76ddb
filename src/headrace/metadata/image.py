"""The cluster as it stands after some offset of the metadata log: immutable, so that readers never see half a change.

A `Delta` (delta.py) makes the next image; what did not change is shared with the last one.
"""

from collections.abc import Iterator, Mapping

import msgspec

from headrace.metadata.persistent import PersistentMap
from headrace.protocol import messages as m

NO_LEADER = -1
RECOVERED = 0
RECOVERING = 1

MIGRATING_DIRECTORY = bytes(16)
UNASSIGNED_DIRECTORY = bytes(15) + b"\x01"
LOST_DIRECTORY = bytes(15) + b"\x02"
RESERVED_DIRECTORIES_END = 100
"""Directory ids below this number are reserved for meanings like the three above."""

TOPIC_CONFIG = 2
BROKER_CONFIG = 4
CLIENT_METRICS_CONFIG = 16
GROUP_CONFIG = 32

METADATA_VERSION = "metadata.version"
METADATA_VERSION_MIN = 7
"""The level of a log that names none: the oldest that Kafka 4 reads."""

PartitionKey = tuple[bytes, int]
ConfigResource = tuple[int, str]
QuotaEntity = tuple[tuple[str, str | None], ...]
"""(type, name) pairs in order of type; a name of None is the default entity."""


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    name: str
    host: str
    port: int
    security_protocol: int


class Broker(msgspec.Struct, frozen=True):
    """One broker's registration. The epoch is the offset of the record that first registered this incarnation."""

    id: int
    epoch: int
    incarnation_id: bytes
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, tuple[int, int]]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: tuple[bytes, ...]
    cordoned_log_dirs: tuple[bytes, ...] | None = None
    is_migrating_zk_broker: bool = False

    @property
    def active(self) -> bool:
        """May lead partitions and stand in an ISR."""
        return not self.fenced and not self.in_controlled_shutdown

    def has_online_directory(self, directory: bytes) -> bool:
        """Whether a replica that is said to be in `directory` can be served."""
        if directory in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY):
            return True
        # A registration of old names no directories; a broker that has lost them all does not run.
        return directory != LOST_DIRECTORY and (not self.log_dirs or directory in self.log_dirs)


class Controller(msgspec.Struct, frozen=True):
    """One controller's registration."""

    id: int
    incarnation_id: bytes
    zk_migration_ready: bool
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, tuple[int, int]]


class Partition(msgspec.Struct, frozen=True, gc=False):
    """`leader_epoch` rises with each change of leader, `partition_epoch` with each change of anything."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[bytes, ...]
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    recovery_state: int = RECOVERED

    @property
    def reassigning(self) -> bool:
        return bool(self.removing or self.adding)

    @property
    def imbalanced(self) -> bool:
        return not self.replicas or self.leader != self.replicas[0]

    def directory_of(self, broker_id: int) -> bytes:
        return self.directories[self.replicas.index(broker_id)]


class Topic(msgspec.Struct, frozen=True):
    id: bytes
    name: str
    partitions: PersistentMap[int, Partition]


class Image(msgspec.Struct, frozen=True):
    """Everything that metadata records say, up to and including `offset`."""

    offset: int = -1
    epoch: int = -1
    timestamp_ms: int = -1
    features: Mapping[str, int] = {}
    brokers: PersistentMap[int, Broker] = PersistentMap()
    controllers: PersistentMap[int, Controller] = PersistentMap()
    topics: PersistentMap[bytes, Topic] = PersistentMap()
    topic_ids: PersistentMap[str, bytes] = PersistentMap()
    configs: PersistentMap[ConfigResource, Mapping[str, str]] = PersistentMap()
    quotas: PersistentMap[QuotaEntity, Mapping[str, float]] = PersistentMap()
    next_producer_id: int = -1
    acls: PersistentMap[bytes, m.AccessControlEntryRecord] = PersistentMap()
    scrams: PersistentMap[tuple[str, int], m.UserScramCredentialRecord] = PersistentMap()
    tokens: PersistentMap[str, m.DelegationTokenRecord] = PersistentMap()
    zk_migration_state: int | None = None

    # Derived, never written: kept so that no decision walks the whole cluster.
    broker_partitions: PersistentMap[int, PersistentMap[PartitionKey, None]] = PersistentMap()
    """Partitions by the brokers in their ISR or ELR; those without a leader under NO_LEADER."""
    reassigning: PersistentMap[PartitionKey, None] = PersistentMap()
    """Partitions that are being moved."""
    imbalanced: PersistentMap[PartitionKey, None] = PersistentMap()
    """Partitions that another than the preferred replica leads, or nobody."""
    colliding_names: PersistentMap[str, tuple[str, ...]] = PersistentMap()
    """Topic names with '.' or '_' by their name with '_' only, since metrics cannot tell these apart."""

    @property
    def metadata_version(self) -> int:
        return self.features.get(METADATA_VERSION, METADATA_VERSION_MIN)

    def topic_named(self, name: str) -> Topic | None:
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def partition(self, topic_id: bytes, partition: int) -> Partition | None:
        topic = self.topics.get(topic_id)
        return None if topic is None else topic.partitions.get(partition)

    def config(self, resource_type: int, name: str) -> Mapping[str, str]:
        """The overrides stored for one resource; empty when there are none."""
        found: Mapping[str, str] = self.configs.get((resource_type, name), {})
        return found

    def partitions_of(self, broker_id: int) -> Iterator[tuple[PartitionKey, Partition]]:
        """Partitions that have `broker_id` in ISR or ELR, or, for NO_LEADER, those without a leader."""
        for key in self.broker_partitions.get(broker_id, ()):
            topic_id, number = key
            yield key, self.topics[topic_id].partitions[number]

    def same_content(self, other: "Image") -> bool:
        """Equal but for how far in the log, and when, they were read."""
        return msgspec.structs.replace(self, offset=0, epoch=0, timestamp_ms=0) == msgspec.structs.replace(
            other, offset=0, epoch=0, timestamp_ms=0
        )


EMPTY = Image()
