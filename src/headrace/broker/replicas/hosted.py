"""Which partitions have a replica on this node, and how requests find them."""

from collections.abc import Iterator

from headrace.broker.metadata_cache import MetadataCache
from headrace.broker.replicas.deltas import DeltaQueue
from headrace.broker.replicas.partition import Partition
from headrace.errors import Err, KafkaError


class Replicas:
    """Partitions by topic name and by topic id: both maps hold the same inner dictionaries."""

    def __init__(self, node_id: int, metadata: MetadataCache, deltas: DeltaQueue) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._deltas = deltas
        self.by_name: dict[str, dict[int, Partition]] = {}
        self.by_id: dict[bytes, dict[int, Partition]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.by_id.values()))

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self.by_id.values():
            yield from partitions.values()

    def of_topic(self, topic_id: bytes, name: str) -> dict[int, Partition]:
        """The replicas of one topic, by partition; an empty dictionary, which is kept, if there are none yet."""
        partitions = self.by_id.get(topic_id)
        if partitions is None:
            partitions = self.by_id[topic_id] = self.by_name[name] = {}
        return partitions

    def remove_topic(self, topic_id: bytes, name: str) -> list[Partition]:
        """Forget a topic; returns what there was of it."""
        partitions = self.by_id.pop(topic_id, None)
        if self.by_name.get(name) is partitions:
            self.by_name.pop(name, None)
        return list((partitions or {}).values())

    def find(self, topic: str | bytes, index: int) -> Partition:
        """The partition led here that a client means, by topic name or id; raises the error the client should see."""
        partition = self.known(topic, index)
        if partition is None:
            raise self._not_here(topic, index)
        return partition

    def known(self, topic: str | bytes, index: int) -> Partition | None:
        """The replica on this node, if there is one."""
        partitions = self.by_name.get(topic) if isinstance(topic, str) else self.by_id.get(topic)
        return partitions.get(index) if partitions is not None else None

    def leader(self, topic: str | bytes, index: int, epoch: int = -1) -> Partition:
        """Like `find`, and led here in the epoch the client knows (-1: it does not say)."""
        partition = self.find(topic, index)
        if partition.failed:
            raise KafkaError(Err.KAFKA_STORAGE_ERROR, "the log directory of this partition is offline")
        if epoch >= 0 and epoch != partition.leader_epoch:
            if epoch < partition.leader_epoch:
                raise KafkaError(Err.FENCED_LEADER_EPOCH)
            raise KafkaError(Err.UNKNOWN_LEADER_EPOCH)
        if partition.leader is None:
            raise KafkaError(Err.NOT_LEADER_OR_FOLLOWER)
        return partition

    def readable(self, topic: str | bytes, index: int, epoch: int = -1) -> Partition:
        """Like `leader`, or followed here: what is committed may be read from any replica (KIP-392)."""
        partition = self.known(topic, index)
        if (
            partition is not None
            and (partition.leader is not None or partition.copying is not None)
            and (epoch < 0 or epoch == partition.leader_epoch)
            and not partition.failed
        ):
            return partition
        return self.leader(topic, index, epoch)

    def _not_here(self, topic: str | bytes, index: int) -> KafkaError:
        image = self._metadata.image
        known = image.topic_named(topic) if isinstance(topic, str) else image.topics.get(topic)
        if known is None:
            return KafkaError(Err.UNKNOWN_TOPIC_OR_PARTITION if isinstance(topic, str) else Err.UNKNOWN_TOPIC_ID)
        if index not in known.partitions:
            return KafkaError(Err.UNKNOWN_TOPIC_OR_PARTITION)
        if self._node_id in known.partitions[index].replicas and self._deltas.is_empty:
            return KafkaError(Err.KAFKA_STORAGE_ERROR, "the log directory of this partition is offline")
        return KafkaError(Err.NOT_LEADER_OR_FOLLOWER)

    def high_watermarks(self) -> dict[tuple[str, int], int]:
        """Of what is here: the next start takes what it does not find below them for lost."""
        return {(p.topic, p.index): min(p.high_watermark, p.countable_end) for p in self if not p.failed}
