"""A topic's options: what a log ends up with, and the checks across options."""

import pytest

from headrace.config import BrokerConfig, LogConfig
from headrace.config.options import ConfigError
from headrace.config.topic import check_local_retention, topic_values, validate_topic
from headrace.errors import Err, KafkaError

BROKER = BrokerConfig.load()


def test_no_overrides_share_one_object() -> None:
    assert LogConfig.from_topic({}, BROKER) is LogConfig.from_topic({}, BROKER)
    assert LogConfig.from_topic({}, BROKER) == LogConfig()


def test_overrides_over_the_brokers_defaults() -> None:
    broker = BrokerConfig.load({"log.segment.bytes": "2000000", "log.cleanup.policy": "compact"})
    log = LogConfig.from_topic({"retention.ms": "5", "min.insync.replicas": "2"}, broker)
    assert (log.segment_bytes, log.retention_ms, log.min_insync_replicas) == (2_000_000, 5, 2)
    assert (log.compact, log.delete) == (True, False)


@pytest.mark.parametrize(
    ("policy", "compact", "delete"),
    [("delete", False, True), ("compact", True, False), ("compact, delete", True, True), ("", False, False)],
)
def test_cleanup_policy(policy: str, compact: bool, delete: bool) -> None:
    log = LogConfig.from_topic({"cleanup.policy": policy}, BROKER)
    assert (log.compact, log.delete) == (compact, delete)
    assert set(log.cleanup_policy) == {item.strip() for item in policy.split(",") if item}


@pytest.mark.parametrize(
    ("overrides", "codec", "level"),
    [
        ({"compression.type": "producer"}, None, None),
        ({"compression.type": "uncompressed"}, 0, None),
        ({"compression.type": "gzip", "compression.gzip.level": "5"}, 1, 5),
        ({"compression.type": "snappy"}, 2, None),
        ({"compression.type": "lz4"}, 3, 9),
        ({"compression.type": "zstd", "compression.zstd.level": "-7"}, 4, -7),
    ],
)
def test_compression(overrides: dict[str, str], codec: int | None, level: int | None) -> None:
    log = LogConfig.from_topic(overrides, BROKER)
    assert (log.compression, log.compression_level) == (codec, level)


def test_internal_segment_bytes_goes_below_the_bound() -> None:
    assert LogConfig.from_topic({"internal.segment.bytes": "100"}, BROKER).segment_bytes == 100


def test_log_append_time() -> None:
    log = LogConfig.from_topic({"message.timestamp.type": "LogAppendTime"}, BROKER)
    assert log.log_append_time
    assert log.message_timestamp_type == "LogAppendTime"


def test_compacted_logs_roll_by_compaction_lag() -> None:
    overrides = {"max.compaction.lag.ms": "5", "segment.ms": "10"}
    assert LogConfig.from_topic(overrides, BROKER).max_segment_ms == 10
    assert LogConfig.from_topic(overrides | {"cleanup.policy": "compact"}, BROKER).max_segment_ms == 5


def test_an_override_from_a_newer_version_is_passed_over() -> None:
    assert LogConfig.from_topic({"future.option": "1"}, BROKER) == LogConfig()


def test_config_is_immutable() -> None:
    with pytest.raises(AttributeError):
        LogConfig().segment_bytes = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"segment.byte": "5"}, "Unknown topic config name: segment.byte (did you mean segment.bytes?)"),
        ({"segment.bytes": "x"}, "segment.bytes: 'x' is not an integer"),
        ({"segment.bytes": None}, "segment.bytes: a null value is not allowed for a topic"),
        (
            {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"},
            "min.compaction.lag.ms (5) is above max.compaction.lag.ms (4)",
        ),
        (
            {"remote.storage.enable": "true"},
            "remote.storage.enable: tiered storage is not enabled on this broker",
        ),
    ],
)
def test_refusals(overrides: dict[str, str | None], message: str) -> None:
    with pytest.raises(KafkaError) as caught:
        validate_topic(overrides, BROKER)
    assert (caught.value.error, caught.value.message) == (Err.INVALID_CONFIG, message)


TIERED = BrokerConfig({"remote.log.storage.system.enable": "true"}, {})


@pytest.mark.parametrize(
    ("overrides", "valid"),
    [
        ({}, True),
        ({"cleanup.policy": "compact"}, False),
        ({"cleanup.policy": ""}, True),
        ({"retention.ms": "100", "local.retention.ms": "100"}, True),
        ({"retention.ms": "100", "local.retention.ms": "101"}, False),
        ({"retention.ms": "100", "local.retention.ms": "-1"}, False),
        ({"retention.ms": "-1", "local.retention.ms": "101"}, True),
        ({"retention.bytes": "100", "local.retention.bytes": "101"}, False),
        ({"remote.log.copy.disable": "true"}, True),
        ({"remote.log.copy.disable": "true", "retention.ms": "100", "local.retention.ms": "50"}, False),
        ({"remote.log.copy.disable": "true", "retention.ms": "100", "local.retention.ms": "100"}, True),
    ],
)
def test_tiered_storage_needs_options_that_fit(overrides: dict[str, str], valid: bool) -> None:
    overrides = {"remote.storage.enable": "true"} | overrides
    if valid:
        validate_topic(overrides, TIERED)
    else:
        with pytest.raises(KafkaError):
            validate_topic(overrides, TIERED)


def test_tiered_storage_cannot_be_switched_off_silently() -> None:
    existing = {"remote.storage.enable": "true"}
    with pytest.raises(KafkaError, match=r"remote\.log\.delete\.on\.disable"):
        validate_topic({}, TIERED, existing)
    validate_topic({"remote.log.delete.on.disable": "true"}, TIERED, existing)


def test_local_retention_of_the_broker() -> None:
    with pytest.raises(ConfigError, match=r"local\.retention\.bytes"):
        check_local_retention(topic_values({"retention.bytes": "5", "local.retention.bytes": "6"}, BROKER))
