"""Pairs of options that conflict: one makes the other useless. Found when a broker starts.

`check` refuses what Kafka refuses at its start, and what would start but could never work; `warnings` names what works
only in part. Whatever else Kafka accepts, so does Headrace: a server.properties of Kafka's is used as it is.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from .options import ConfigError
from .table import broker_options, topic_options

if TYPE_CHECKING:
    from .broker import BrokerConfig

KAFKA_PAIRS = (
    ("broker.heartbeat.interval.ms", "broker.session.timeout.ms"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
)
"""The second must be above the first, and Headrace's default of it is lower than Kafka's."""

INTERNAL_TOPICS = {
    "offsets.topic": "__consumer_offsets",
    "transaction.state.log": "__transaction_state",
    "share.coordinator.state.topic": "__share_group_state",
}
"""Options by their prefix, and the topic that is created with them on first use."""

CODEC_MAX = 4  # zstd
KAFKA_MARGIN = 12
"""By so many bytes Kafka's default of message.max.bytes is above the smallest segment: that is nobody's slip."""


def kafka_defaults(raw: Mapping[str, str], values: "BrokerConfig") -> Iterator[str]:
    """Options that take Kafka's default in place of Headrace's.

    Who sets only one of a pair has counted on Kafka's default of the other: with Headrace's, which is shorter, a file
    that works with Kafka would be refused here.
    """
    for lower, upper in KAFKA_PAIRS:
        if lower in raw and upper not in raw and values[lower] >= values[upper]:
            yield upper


def check(config: "BrokerConfig") -> None:
    """Raises ConfigError that names both options and what to do."""
    _check_internal_topics(config)
    _check_sessions(config)
    _check_requests(config)


def _check_internal_topics(config: "BrokerConfig") -> None:
    """A topic that could never be created: its clients would wait for it for ever, with no word at the start."""
    segment_bytes = topic_options()["segment.bytes"]
    for prefix, topic in INTERNAL_TOPICS.items():
        name = f"{prefix}.segment.bytes"
        try:
            segment_bytes.parse(str(config[name]))
        except ConfigError as error:
            raise ConfigError(
                f"{name}: {topic} could not be created with {error}; set {name} to at least that"
            ) from None
        name = f"{prefix}.compression.codec"
        if name in broker_options() and not 0 <= config[name] <= CODEC_MAX:
            raise ConfigError(
                f"{name}: {config[name]} is no codec; set 0 (none), 1 (gzip), 2 (snappy), 3 (lz4) or 4 (zstd)"
            )


def _check_sessions(config: "BrokerConfig") -> None:
    lower, upper = "broker.heartbeat.interval.ms", "broker.session.timeout.ms"
    if config[lower] >= config[upper]:
        raise ConfigError(
            f"{lower}: {config[lower]} is not below {upper}, {config[upper]}, so that this broker would be taken for "
            f"dead between two heartbeats; set {upper} to several times {lower}"
        )
    lower, upper = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
    if config[lower] > config[upper]:
        raise ConfigError(
            f"{lower}: {config[lower]} is above {upper}, {config[upper]}, so that no session timeout would be allowed "
            f"in groups of the classic protocol; lower {lower} or raise {upper}"
        )
    if "classic" not in config["group.coordinator.rebalance.protocols"]:
        raise ConfigError(
            "group.coordinator.rebalance.protocols: classic is missing and cannot be switched off; add it"
        )


def _check_requests(config: "BrokerConfig") -> None:
    queued, request = config["queued.max.request.bytes"], config["socket.request.max.bytes"]
    if 0 < queued < request:
        raise ConfigError(
            f"queued.max.request.bytes: {queued} is below socket.request.max.bytes, {request}, so that a request of "
            "that size could never be read; raise the first or lower the second"
        )
    if config["max.connections.per.ip"] == 0 and not config.max_connections_per_ip_overrides:
        raise ConfigError(
            "max.connections.per.ip: 0 lets nobody connect; name who may in max.connections.per.ip.overrides"
        )
    delay, idle = config["connection.failed.authentication.delay.ms"], config["connections.max.idle.ms"]
    if 0 <= idle <= delay:
        raise ConfigError(
            f"connections.max.idle.ms: {idle} is not above connection.failed.authentication.delay.ms, {delay}; "
            "raise the first or lower the second"
        )


def warnings(config: "BrokerConfig") -> list[str]:
    """One line for each pair that works only in part, for the log of the start."""
    found = []
    message = config["message.max.bytes"]
    for name, effect in (
        ("socket.request.max.bytes", "close the connection"),
        ("log.segment.bytes", "are refused with RECORD_LIST_TOO_LARGE"),
    ):
        if message > config[name] + KAFKA_MARGIN:
            found.append(f"message.max.bytes, {message}, is above {name}, {config[name]}: batches in between {effect}")
    least, most = config["replica.fetch.min.bytes"], config["replica.fetch.response.max.bytes"]
    if least > most:
        found.append(
            f"replica.fetch.min.bytes, {least}, is above replica.fetch.response.max.bytes, {most}: "
            "followers wait replica.fetch.wait.max.ms for each answer"
        )
    return found
