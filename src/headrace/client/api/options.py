"""The options of producers and consumers, and the names that Kafka's own clients have for them."""

from collections.abc import Callable
from typing import Any

from headrace.client.options import (
    COMMON_NAMES,
    COMMON_UNUSED,
    CommonOptions,
    CommonSettings,
    Count,
    Millis,
    OptionRefused as OptionRefused,
    Positive,
)

RETRIES_MAX = (1 << 31) - 1
PARTITIONERS = ("sticky", "round_robin")
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
RESETS = ("earliest", "latest", "none")
ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
GROUP_PROTOCOLS = ("auto", "consumer", "classic")
ASSIGNORS = ("cooperative-sticky", "range", "roundrobin")


class ProducerOptions(CommonOptions, total=False):
    """Keywords of `Producer`; `ProducerSettings` has their defaults and what they mean."""

    acks: int | str
    idempotence: bool
    retries: int
    linger_ms: float
    batch_bytes: int
    buffer_bytes: int
    request_bytes: int
    max_in_flight: int
    compression: str
    compression_level: int
    delivery_timeout_ms: int
    max_block_ms: int
    partitioner: str | Callable[[str, bytes | None, int], int]
    key_serializer: Any
    value_serializer: Any
    transactional_id: str
    transaction_timeout_ms: int


class ConsumerOptions(CommonOptions, total=False):
    """Keywords of `Consumer`; `ConsumerSettings` has their defaults and what they mean."""

    group: str
    pattern: str
    auto_offset_reset: str
    auto_commit: bool
    auto_commit_interval_ms: int
    isolation_level: str
    group_protocol: str
    assignors: list[str]
    remote_assignor: str
    instance_id: str
    rack: str
    max_poll_records: int
    max_poll_interval_ms: int
    session_timeout_ms: int
    heartbeat_interval_ms: int
    fetch_bytes: int
    partition_fetch_bytes: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    check_crcs: bool
    key_deserializer: Any
    value_deserializer: Any
    on_assigned: Callable[..., Any]
    on_revoked: Callable[..., Any]
    on_lost: Callable[..., Any]


class ProducerSettings(CommonSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a producer can be told."""

    acks: int | str = "all"
    """`"all"`: every in-sync replica has the record. 1: the leader has it. 0: nobody answers, records may be lost."""
    idempotence: bool | None = None
    """Whether retries can neither double nor reorder records. Unset: yes, unless acks, retries or max_in_flight rule it
    out."""
    retries: Count = RETRIES_MAX
    linger_ms: Millis = 0
    """How long a batch waits for more records. 0: what is sent in one turn of the event loop goes together, and while
    requests are under way the next batch grows."""
    batch_bytes: Positive = 256 << 10
    buffer_bytes: Positive = 32 << 20
    """How much may wait to be acknowledged; `send_soon` waits beyond that."""
    request_bytes: Positive = 4 << 20
    max_in_flight: Positive = 5
    compression: str = "none"
    compression_level: int | None = None
    delivery_timeout_ms: Positive = 120_000
    max_block_ms: Count = 60_000
    """How long `send_soon` waits for room in the buffer, or for a topic's partitions to be known."""
    partitioner: Any = "sticky"
    key_serializer: Any = None
    value_serializer: Any = None
    transactional_id: str | None = None
    transaction_timeout_ms: Positive = 60_000


class ConsumerSettings(CommonSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a consumer can be told."""

    group: str | None = None
    pattern: str | None = None
    """A regular expression instead of topics."""
    auto_offset_reset: str = "latest"
    """Where to begin without a committed offset: earliest, latest, none (an error), or `by_duration:PT1H`."""
    auto_commit: bool = True
    auto_commit_interval_ms: Positive = 5_000
    isolation_level: str = "read_uncommitted"
    group_protocol: str = "auto"
    """consumer (KIP-848), classic, or auto: consumer where the broker speaks it."""
    assignors: tuple[str, ...] = ("cooperative-sticky", "range")
    """For the classic protocol, the preferred one first."""
    remote_assignor: str | None = None
    """For the consumer protocol: uniform or range; unset, the broker's default."""
    instance_id: str | None = None
    """Makes a static member (KIP-345): one that comes back within the session timeout keeps its partitions."""
    rack: str | None = None
    """Where this client is: records are fetched from a replica in the same rack if there is one (KIP-392)."""
    max_poll_records: Positive = 500
    max_poll_interval_ms: Positive = 300_000
    session_timeout_ms: Positive = 45_000
    heartbeat_interval_ms: Positive = 3_000
    fetch_bytes: Positive = 50 << 20
    partition_fetch_bytes: Positive = 1 << 20
    fetch_min_bytes: Positive = 1
    fetch_max_wait_ms: Count = 500
    check_crcs: bool = True
    key_deserializer: Any = None
    value_deserializer: Any = None
    on_assigned: Any = None
    on_revoked: Any = None
    on_lost: Any = None


PRODUCER_NAMES = COMMON_NAMES | {
    "acks": "acks",
    "enable.idempotence": "idempotence",
    "retries": "retries",
    "linger.ms": "linger_ms",
    "batch.size": "batch_bytes",
    "buffer.memory": "buffer_bytes",
    "max.request.size": "request_bytes",
    "max.in.flight.requests.per.connection": "max_in_flight",
    "compression.type": "compression",
    "delivery.timeout.ms": "delivery_timeout_ms",
    "max.block.ms": "max_block_ms",
    "transactional.id": "transactional_id",
    "transaction.timeout.ms": "transaction_timeout_ms",
}
CONSUMER_NAMES = COMMON_NAMES | {
    "group.id": "group",
    "auto.offset.reset": "auto_offset_reset",
    "enable.auto.commit": "auto_commit",
    "auto.commit.interval.ms": "auto_commit_interval_ms",
    "isolation.level": "isolation_level",
    "group.protocol": "group_protocol",
    "partition.assignment.strategy": "assignors",
    "group.remote.assignor": "remote_assignor",
    "group.instance.id": "instance_id",
    "client.rack": "rack",
    "max.poll.records": "max_poll_records",
    "max.poll.interval.ms": "max_poll_interval_ms",
    "session.timeout.ms": "session_timeout_ms",
    "heartbeat.interval.ms": "heartbeat_interval_ms",
    "fetch.max.bytes": "fetch_bytes",
    "max.partition.fetch.bytes": "partition_fetch_bytes",
    "fetch.min.bytes": "fetch_min_bytes",
    "fetch.max.wait.ms": "fetch_max_wait_ms",
    "check.crcs": "check_crcs",
}
PRODUCER_UNUSED = COMMON_UNUSED | {
    "compression.gzip.level", "compression.lz4.level", "compression.zstd.level", "interceptor.classes",
    "key.serializer", "metadata.max.idle.ms", "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms", "partitioner.class", "partitioner.ignore.keys", "value.serializer",
    "transaction.two.phase.commit.enable",
}  # fmt: skip
CONSUMER_UNUSED = COMMON_UNUSED | {
    "allow.auto.create.topics", "exclude.internal.topics", "interceptor.classes", "key.deserializer",
    "value.deserializer", "share.acknowledgement.mode", "share.acquire.mode",
}  # fmt: skip
