"""A topic's options: what may be set, what a log ends up with, and the checks across options."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import Err, KafkaError

from .options import ConfigError, Value
from .table import topic_options

if TYPE_CHECKING:
    from .broker import BrokerConfig

MAX_LONG = (1 << 63) - 1

# Codec numbers as in a batch's attributes; `producer` is no codec but leaves the batch as it is.
CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}


class LogConfig(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What one log is run with. The defaults are Kafka's, so that `LogConfig()` is a topic with no overrides."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    flush_messages: int = MAX_LONG
    flush_ms: int = MAX_LONG
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    max_message_bytes: int = 1_048_588
    index_interval_bytes: int = 4096
    file_delete_delay_ms: int = 60_000
    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = MAX_LONG
    min_cleanable_dirty_ratio: float = 0.5
    compact: bool = False
    delete: bool = True
    unclean_leader_election_enable: bool = False
    min_insync_replicas: int = 1
    compression_type: str = "producer"
    # None: keep the producer's codec. Otherwise the codec number every batch is stored in, and its level.
    compression: int | None = None
    compression_level: int | None = None
    preallocate: bool = False
    message_timestamp_type: str = "CreateTime"
    log_append_time: bool = False
    message_timestamp_before_max_ms: int = MAX_LONG
    message_timestamp_after_max_ms: int = 3_600_000
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    follower_replication_throttled_replicas: tuple[str, ...] = ()
    remote_storage_enable: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    local_retention_ms: int = -2
    local_retention_bytes: int = -2

    @property
    def cleanup_policy(self) -> tuple[str, ...]:
        return ("compact",) * self.compact + ("delete",) * self.delete

    @property
    def max_segment_ms(self) -> int:
        """A compacted log also rolls by max.compaction.lag.ms, since the active segment is never compacted."""
        if self.compact and self.max_compaction_lag_ms > 0:
            return min(self.max_compaction_lag_ms, self.segment_ms)
        return self.segment_ms

    @staticmethod
    def from_topic(overrides: Mapping[str, str], broker: "BrokerConfig") -> "LogConfig":
        """The log's options: the topic's overrides over the broker's defaults."""
        if not overrides:
            return broker.log_defaults
        return log_config(topic_values(overrides, broker))


def topic_values(overrides: Mapping[str, str], broker: "BrokerConfig") -> dict[str, Value]:
    """Every topic option's value: override, else the broker's, else the default. Raises ConfigError."""
    values = dict(broker.topic_defaults)
    options = topic_options()
    for name, text in overrides.items():
        option = options.get(name)
        # A name this version does not know may come from a newer node's metadata: it is not ours to refuse here.
        if option is not None:
            values[name] = option.parse(text)
    return values


def log_config(values: Mapping[str, Any]) -> LogConfig:
    """Typed values by option name -> LogConfig."""
    policy = values["cleanup.policy"]
    type_ = values["compression.type"]
    timestamp_type = values["message.timestamp.type"]
    fields: dict[str, Any] = {attribute: values[name] for attribute, name in _PLAIN_FIELDS.items()}
    if values["internal.segment.bytes"] is not None:
        fields["segment_bytes"] = values["internal.segment.bytes"]
    return LogConfig(
        **fields,
        compact="compact" in policy,
        delete="delete" in policy,
        compression=CODECS.get(type_),
        compression_level=values.get(f"compression.{type_}.level"),
        log_append_time=timestamp_type == "LogAppendTime",
        leader_replication_throttled_replicas=tuple(values["leader.replication.throttled.replicas"]),
        follower_replication_throttled_replicas=tuple(values["follower.replication.throttled.replicas"]),
    )


_DERIVED = {
    "compact",
    "delete",
    "compression",
    "compression_level",
    "log_append_time",
    "leader_replication_throttled_replicas",
    "follower_replication_throttled_replicas",
}
_PLAIN_FIELDS = {field: field.replace("_", ".") for field in LogConfig.__struct_fields__ if field not in _DERIVED}


def validate_topic(
    overrides: Mapping[str, str | None],
    broker: "BrokerConfig",
    existing: Mapping[str, str] | None = None,
) -> None:
    """Refuse, with INVALID_CONFIG, overrides that Kafka would refuse when a topic is created or altered."""
    options = topic_options()
    try:
        for name, text in overrides.items():
            option = options.get(name)
            if option is None:
                raise ConfigError(f"Unknown topic config name: {name}{suggestion(name, options)}")
            if text is None:
                raise ConfigError(f"{name}: a null value is not allowed for a topic")
            option.parse(text)
        values = topic_values({name: text for name, text in overrides.items() if text is not None}, broker)
        _check_together(values, broker, existing or {})
    except ConfigError as error:
        raise KafkaError(Err.INVALID_CONFIG, str(error)) from None


def _check_together(values: Mapping[str, Any], broker: "BrokerConfig", existing: Mapping[str, str]) -> None:
    check_compaction_lags(values)
    if values["remote.storage.enable"]:
        if not broker["remote.log.storage.system.enable"]:
            raise ConfigError("remote.storage.enable: tiered storage is not enabled on this broker")
        _check_remote(values)
    elif existing.get("remote.storage.enable", "").lower() == "true" and not values["remote.log.delete.on.disable"]:
        raise ConfigError(
            "remote.storage.enable: cannot be switched off while remote data is kept; set "
            "remote.log.delete.on.disable=true to delete it, or remote.log.copy.disable=true to only read it"
        )


def check_compaction_lags(values: Mapping[str, Any]) -> None:
    least, most = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    if least > most:
        raise ConfigError(f"min.compaction.lag.ms ({least}) is above max.compaction.lag.ms ({most})")


def check_local_retention(values: Mapping[str, Any]) -> None:
    """With tiered storage, what is kept locally is part of what is kept at all. -2 means: the same."""
    for unit in ("bytes", "ms"):
        total, local = values[f"retention.{unit}"], values[f"local.retention.{unit}"]
        if total == -1 or local == -2:
            continue
        if local == -1:
            raise ConfigError(f"local.retention.{unit}: -1 (no limit) does not go with retention.{unit} {total}")
        if local > total:
            raise ConfigError(f"local.retention.{unit}: {local} is above retention.{unit}, {total}")


def _check_remote(values: Mapping[str, Any]) -> None:
    if values["cleanup.policy"] not in ([], ["delete"]):
        raise ConfigError("remote.storage.enable: needs cleanup.policy delete or none, not compact")
    check_local_retention(values)
    if values["remote.log.copy.disable"]:
        for unit in ("bytes", "ms"):
            if values[f"local.retention.{unit}"] not in (-2, values[f"retention.{unit}"]):
                raise ConfigError(
                    f"local.retention.{unit}: must equal retention.{unit} while remote.log.copy.disable is true"
                )


def suggestion(name: str, options: Iterable[str]) -> str:
    """` (did you mean ...?)` for a name close to a known one."""
    from difflib import get_close_matches

    close = get_close_matches(name, options, n=1, cutoff=0.75)
    return f" (did you mean {close[0]}?)" if close else ""
