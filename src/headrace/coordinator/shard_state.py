"""What the parts of one shard share: configuration, the view of the cluster, groups by id, and values with a past.

Reads for clients see only what is below the high watermark, decisions see everything written: `Timeline` keeps both.
"""

from collections import deque
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from headrace.coordinator.outcome import Record
from headrace.metadata.image import EMPTY, Image

K = TypeVar("K")
V = TypeVar("V")

NO_OFFSET = -1


class GroupType(StrEnum):
    """Names as ListGroups shows them."""

    CLASSIC = "classic"
    CONSUMER = "consumer"


class ShardConfig(msgspec.Struct, frozen=True):
    """Options of the coordinator; the names are Kafka's with underscores, times in ms."""

    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2**31 - 1
    new_member_join_timeout_ms: int = 5 * 60 * 1000
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_max_size: int = 2**31 - 1
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    consumer_migration_policy: str = "bidirectional"
    consumer_regex_refresh_interval_ms: int = 600_000
    consumer_assignment_interval_ms: int = 1_000
    consumer_protocol_enabled: bool = True
    batch_bytes_max: int = 1_048_588
    """The largest batch `__consumer_offsets` takes."""

    @classmethod
    def from_broker(cls, config: Any, batch_bytes_max: int = 1_048_588) -> "ShardConfig":
        """From a BrokerConfig (anything that gives typed values by option name)."""
        return cls(
            offset_metadata_max_bytes=config["offset.metadata.max.bytes"],
            offsets_retention_ms=config["offsets.retention.minutes"] * 60_000,
            group_min_session_timeout_ms=config["group.min.session.timeout.ms"],
            group_max_session_timeout_ms=config["group.max.session.timeout.ms"],
            group_initial_rebalance_delay_ms=config["group.initial.rebalance.delay.ms"],
            group_max_size=config["group.max.size"],
            consumer_session_timeout_ms=config["group.consumer.session.timeout.ms"],
            consumer_heartbeat_interval_ms=config["group.consumer.heartbeat.interval.ms"],
            consumer_max_size=config["group.consumer.max.size"],
            consumer_assignors=tuple(config["group.consumer.assignors"]),
            consumer_migration_policy=config["group.consumer.migration.policy"].lower(),
            consumer_regex_refresh_interval_ms=config["group.consumer.regex.refresh.interval.ms"],
            consumer_assignment_interval_ms=config["group.consumer.assignment.interval.ms"],
            consumer_protocol_enabled="consumer" in config["group.coordinator.rebalance.protocols"],
            batch_bytes_max=batch_bytes_max,
        )


class Timeline(Generic[K, V]):
    """A dict whose changes above the high watermark can still be looked behind.

    `live` is the newest state, for decisions; never write to it directly. Offsets of changes must not fall.
    Changes below `committed_end` keep no past, so a load costs no more than a dict.
    """

    __slots__ = ("_order", "_past", "committed_end", "live")

    def __init__(self, committed_end: int = 0) -> None:
        self.live: dict[K, V] = {}
        self.committed_end = committed_end
        self._past: dict[K, V | None] = {}
        """What was there at the high watermark, for each key that may have changed since."""
        self._order: deque[tuple[int, K, V | None]] = deque()
        """Changes above the high watermark: which will be the value there once it has passed them."""

    def put(self, key: K, value: V, offset: int) -> None:
        if offset >= self.committed_end:
            self._remember(key, value, offset)
        self.live[key] = value

    def remove(self, key: K, offset: int) -> V | None:
        if offset >= self.committed_end and key in self.live:
            self._remember(key, None, offset)
        return self.live.pop(key, None)

    def get(self, key: K) -> V | None:
        return self.live.get(key)

    def committed(self, key: K) -> V | None:
        """The value as of the high watermark."""
        return self._past[key] if key in self._past else self.live.get(key)

    def committed_items(self) -> Iterator[tuple[K, V]]:
        if not self._past:
            yield from self.live.items()
            return
        for key, value in self.live.items():
            if key not in self._past:
                yield key, value
        for key, before in self._past.items():
            if before is not None:
                yield key, before

    def advance(self, committed_end: int) -> None:
        """Everything below `committed_end` is committed."""
        self.committed_end = max(self.committed_end, committed_end)
        order, past = self._order, self._past
        while order and order[0][0] < committed_end:
            _, key, value = order.popleft()
            if self.live.get(key) is value:
                past.pop(key, None)  # there as here, until the next change in line
            else:
                past[key] = value

    def _remember(self, key: K, value: V | None, offset: int) -> None:
        self._past.setdefault(key, self.live.get(key))
        self._order.append((offset, key, value))


class PartitionCheck(Protocol):
    """Raises KafkaError when a member may not commit this partition with the epoch it gave."""

    def __call__(self, topic: str, topic_id: bytes, partition: int) -> None: ...


class Group(Protocol):
    """What offsets, deletion and listing need to know of a group of either type. Errors are raised as KafkaError."""

    group_id: str
    type: GroupType

    @property
    def protocol_type(self) -> str | None: ...

    def state_name(self, committed: bool) -> str:
        """As ListGroups shows it ("Stable"); `committed`: as of the high watermark."""
        ...

    def is_empty(self) -> bool:
        """No members: what OffsetDelete, expiry and deletion ask."""
        ...

    def validate_offset_commit(
        self, member_id: str, instance_id: str | None, generation: int, transactional: bool, version: int
    ) -> PartitionCheck | None:
        """None: every partition may be committed."""
        ...

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int, committed: bool) -> None: ...

    def validate_offset_delete(self) -> None: ...

    def validate_delete(self) -> None: ...

    def subscribed_to(self, topic: str) -> bool:
        """Offsets of such a topic are neither deleted nor expired."""
        ...

    def expiry_base_ms(self, commit_timestamp_ms: int) -> int | None:
        """The time from which `offsets.retention.minutes` run for one offset; None: it stays."""
        ...

    def tombstones(self) -> list[Record]:
        """Records that delete the group, without its offsets."""
        ...


class ShardState:
    """Shared by the classic groups, the consumer groups and the offsets of one shard."""

    __slots__ = ("config", "groups", "image", "note", "written_end")

    def __init__(self, config: ShardConfig, note: Callable[[str], None] | None = None) -> None:
        self.config = config
        self.groups: Timeline[str, Group] = Timeline()
        self.image: Image = EMPTY
        self.written_end = 0
        """One past the last offset applied. A group made without a record is put at this offset."""
        self.note: Callable[[str], None] = note or (lambda text: None)
        """For the log: what a person running the broker may want to know of."""
