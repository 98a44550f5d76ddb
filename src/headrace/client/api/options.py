"""The options of producers, consumers and admins: keywords, and the names that Kafka's own clients have for them.

Each option is declared once as a field with its bounds and default. `config` takes Kafka's names (`linger.ms`), as read
from a properties file or copied from another client; a keyword wins over it. A name that nobody knows is refused.
"""

import difflib
import logging
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from headrace.client.errors import ClientError
from headrace.client.net.address import DEFAULT_BOOTSTRAP
from headrace.client.net.cluster import Cluster
from headrace.client.security.channel import PLAINTEXT, Security

log = logging.getLogger(__name__)


class OptionRefused(ClientError, ValueError):
    """An option that does not exist, or a value that it cannot have."""


Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Millis = Annotated[float, Meta(ge=0)]

RETRIES_MAX = (1 << 31) - 1
PARTITIONERS = ("sticky", "round_robin")
COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
RESETS = ("earliest", "latest", "none")
ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
GROUP_PROTOCOLS = ("auto", "consumer", "classic")
ASSIGNORS = ("cooperative-sticky", "range", "roundrobin")


class CommonOptions(TypedDict, total=False):
    """Keywords of every client."""

    client_id: str
    request_timeout_ms: int
    connect_timeout_ms: int
    retry_timeout_ms: int
    metadata_max_age_ms: int
    security: Security
    telemetry: Any


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


class CommonSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every client can be told."""

    bootstrap: str | list[str] = DEFAULT_BOOTSTRAP
    client_id: str = "headrace"
    request_timeout_ms: Positive = 30_000
    connect_timeout_ms: Positive = 5_000
    retry_timeout_ms: Count = 30_000
    """How long a request that may be cured by trying again is tried again (default.api.timeout.ms)."""
    metadata_max_age_ms: Positive = 300_000
    security: Any = PLAINTEXT
    telemetry: Any = None
    """A `headrace.Telemetry`: spans for what is sent, received and processed."""

    def new_cluster(self) -> Cluster:
        """Connections as these settings say, none of them open yet."""
        return Cluster(
            self.bootstrap,
            client_id=self.client_id,
            connect_timeout_s=self.connect_timeout_ms / 1000,
            request_timeout_s=self.request_timeout_ms / 1000,
            retry_timeout_s=self.retry_timeout_ms / 1000,
            security=self.security,
        )


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


_COMMON_NAMES = {
    "bootstrap.servers": "bootstrap",
    "client.id": "client_id",
    "request.timeout.ms": "request_timeout_ms",
    "socket.connection.setup.timeout.ms": "connect_timeout_ms",
    "default.api.timeout.ms": "retry_timeout_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
}
PRODUCER_NAMES = _COMMON_NAMES | {
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
CONSUMER_NAMES = _COMMON_NAMES | {
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
ADMIN_NAMES = _COMMON_NAMES

_COMMON_UNUSED = frozenset(
    {
        "auto.include.jmx.reporter", "client.dns.lookup", "connections.max.idle.ms", "enable.metrics.push",
        "metadata.cluster.check.enable", "metadata.recovery.rebootstrap.trigger.ms", "metadata.recovery.strategy",
        "metric.reporters", "metrics.num.samples", "metrics.recording.level", "metrics.sample.window.ms",
        "receive.buffer.bytes", "reconnect.backoff.max.ms", "reconnect.backoff.ms", "retry.backoff.max.ms",
        "retry.backoff.ms", "send.buffer.bytes", "socket.connection.setup.timeout.max.ms", "config.providers",
    }
)  # fmt: skip
PRODUCER_UNUSED = _COMMON_UNUSED | {
    "compression.gzip.level", "compression.lz4.level", "compression.zstd.level", "interceptor.classes",
    "key.serializer", "metadata.max.idle.ms", "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms", "partitioner.class", "partitioner.ignore.keys", "value.serializer",
    "transaction.two.phase.commit.enable",
}  # fmt: skip
CONSUMER_UNUSED = _COMMON_UNUSED | {
    "allow.auto.create.topics", "exclude.internal.topics", "interceptor.classes", "key.deserializer",
    "value.deserializer", "share.acknowledgement.mode", "share.acquire.mode",
}  # fmt: skip
ADMIN_UNUSED = _COMMON_UNUSED | {"bootstrap.controllers", "retries"}
"""Options of Kafka's Java clients that have no meaning here, or one that is told in another way: accepted, and logged,
so that a configuration can be taken as it is."""

S = TypeVar("S", bound=CommonSettings)


def read_settings(
    kind: type[S],
    names: Mapping[str, str],
    unused: frozenset[str] | set[str],
    config: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> S:
    """Settings from Kafka's names in `config` and from keywords, which win. Raises OptionRefused."""
    fields = {field.name for field in msgspec.structs.fields(kind)}
    given: dict[str, Any] = {}
    secured: dict[str, str] = {}
    for name, value in (config or {}).items():
        if name.startswith(("security.", "ssl.", "sasl.")):
            secured[name] = str(value)
        else:
            _put(given, name, value, fields, names, unused)
    keywords: dict[str, Any] = {}
    for name, value in options.items():
        if value is not None:
            _put(keywords, name, value, fields, names, unused)
    if secured and "security" not in keywords:
        from headrace.client.security.settings import read_security

        given["security"] = read_security(secured)
    return _convert(kind, given | keywords)


def _put(
    into: dict[str, Any],
    name: str,
    value: Any,
    fields: set[str],
    names: Mapping[str, str],
    unused: frozenset[str] | set[str],
) -> None:
    dotted = name.replace("_", ".")
    if name in fields:
        into[name] = value
    elif dotted in names:
        into[names[dotted]] = value
    elif dotted in unused:
        log.info("option %s has no effect here", name)
    else:
        known = [*names, *unused] if "." in name else [*fields, *(one.replace(".", "_") for one in names)]
        close = difflib.get_close_matches(name, known, n=1)
        fix = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(fields))}"
        raise OptionRefused(f"there is no option {name!r}: {fix}")


def _convert(kind: type[S], given: dict[str, Any]) -> S:
    for name in ("assignors", "bootstrap"):
        value = given.get(name)
        if isinstance(value, str) and name == "assignors":
            given[name] = [part.strip() for part in value.split(",") if part.strip()]
        elif value is not None and not isinstance(value, str):
            given[name] = list(value)
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        words, _, place = str(error).partition(" - at `$.")
        name = place.rstrip("`").split("[")[0]
        raise OptionRefused(f"option {name or '?'} is {given.get(name)!r}: {words.replace('`', '')}") from None


def choose(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """One of the allowed words, in any case. Raises OptionRefused."""
    if value.lower() not in allowed:
        close = difflib.get_close_matches(value.lower(), allowed, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise OptionRefused(f"option {name} is {value!r}{hint}: write {', '.join(allowed[:-1])} or {allowed[-1]}")
    return value.lower()
