"""Which log dirs are full, as their brokers' heartbeats say: other replicas lead what is there, where one is in sync.

Kept in memory only, and by the active controller only: heartbeats come several times in a session, so a new controller
knows all of it soon. A full replica has every record that it ever had, and is the right leader where no other one is in
sync.
"""

from headrace.metadata.image import RESERVED_DIRECTORIES_END, Broker, Image, Partition
from headrace.metadata.names import INTERNAL
from headrace.protocol.private_fields.disk_space import NO_RECORDS, NOTHING, FullDirectories


class DiskSpace:
    """Of all brokers. Nothing is known of most of them: those have room."""

    __slots__ = ("_full",)

    def __init__(self) -> None:
        self._full: dict[int, tuple[int, FullDirectories]] = {}
        """(broker epoch, what is full), by broker id."""

    def __bool__(self) -> bool:
        """Whether anything is full anywhere."""
        return bool(self._full)

    def note(self, broker: Broker, full: FullDirectories) -> None:
        """What the last heartbeat of a registered broker said."""
        if full.levels:
            self._full[broker.id] = broker.epoch, full
        else:
            self._full.pop(broker.id, None)

    def forget(self) -> None:
        """Another controller was active: what was heard before may be long over."""
        self._full.clear()

    def is_full(self, broker_id: int) -> bool:
        """Whether a broker has told of a full directory."""
        return broker_id in self._full

    def has_space(self, image: Image, topic: str, broker_id: int, directory: bytes) -> bool:
        """Whether a replica of `topic` in a broker's directory can take records."""
        told = self._full.get(broker_id)
        if told is None:
            return True
        epoch, full = told
        broker: Broker | None = image.brokers.get(broker_id)
        if broker is None or broker.epoch != epoch:
            return True  # of an earlier run
        if int.from_bytes(directory, "big") < RESERVED_DIRECTORIES_END:
            level = full.everywhere
        else:
            level = full.levels.get(directory, 0)
        # Offsets of groups, which brokers write themselves, go on from the reserve.
        return level < (NOTHING if topic in INTERNAL else NO_RECORDS)

    def has_space_for(self, image: Image, topic: str, partition: Partition, broker_id: int) -> bool:
        """As `has_space`, of a replica that is there or is being added."""
        directory = partition.directory_of(broker_id) if broker_id in partition.replicas else bytes(16)
        return self.has_space(image, topic, broker_id, directory)
