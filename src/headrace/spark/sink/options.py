"""What a write goes by: the sink's side of the option table, with the checks that only a writer needs.

All is checked on the driver before any task runs, and every refusal names the option and the fix.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.client.columnar.encode import BATCH_BYTES_MAX
from headrace.client.produce.limits import BUFFER_BYTES_MAX, IN_FLIGHT_MAX, REQUEST_BYTES_MAX
from headrace.client.security.channel import Security
from headrace.errors import KafkaError
from headrace.metadata.names import check_topic_name
from headrace.records.compression import LEVELS, Codec
from headrace.spark.options import SECURITY, SINK, OptionError, check_bad_rows, read_options

BATCH_BYTES_MIN = 1024
DELIVERY_TIMEOUT_MS = 120_000
REQUEST_TIMEOUT_MS = 30_000
TRANSACTION_TIMEOUT_MS = 900_000
"""As long as brokers allow by default: the driver has so long to commit what a task has written."""
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
OVERWRITE = "a topic can only be appended to: use .mode('append')"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The checked options of one write."""

    bootstrap: str
    client_id: str
    security: Security
    topic: str | None
    timestamp_column: str | None
    dedup_headers: bool
    codec: Codec
    level: int | None
    batch_bytes: int
    request_bytes: int
    buffer_bytes: int
    in_flight_max: int
    delivery_timeout_ms: int
    request_timeout_ms: int
    value_format: str | None
    dead_letter_topic: str | None
    exactly_once: bool
    write_id: str | None
    transaction_timeout_ms: int
    values: Mapping[str, Any] = field(repr=False)
    """All of the table's options, for what formats need."""

    @classmethod
    def read(cls, given: Mapping[str, str]) -> "SinkOptions":
        values = read_options(given, SINK)
        _check_promises(values)
        check_bad_rows(values)
        codec = Codec[values.get("kafka.compression.type", "none").upper()]
        return cls(
            bootstrap=values["kafka.bootstrap.servers"],
            client_id=values.get("kafka.client.id", "headrace-spark-sink"),
            security=values[SECURITY],
            topic=_topic(values, "topic"),
            timestamp_column=values["timestampColumn"],
            dedup_headers=values["dedupHeaders"],
            codec=codec,
            level=_level(values, codec),
            batch_bytes=max(BATCH_BYTES_MIN, values.get("kafka.batch.size", BATCH_BYTES_MAX)),
            request_bytes=values.get("kafka.max.request.size", REQUEST_BYTES_MAX),
            buffer_bytes=values.get("kafka.buffer.memory", BUFFER_BYTES_MAX),
            in_flight_max=values.get("kafka.max.in.flight.requests.per.connection", IN_FLIGHT_MAX),
            delivery_timeout_ms=values.get("kafka.delivery.timeout.ms", DELIVERY_TIMEOUT_MS),
            request_timeout_ms=values.get("kafka.request.timeout.ms", REQUEST_TIMEOUT_MS),
            value_format=values["valueFormat"],
            dead_letter_topic=_topic(values, "deadLetterTopic"),
            exactly_once=values["delivery"] == EXACTLY_ONCE,
            write_id=values["writeId"],
            transaction_timeout_ms=values.get("kafka.transaction.timeout.ms", TRANSACTION_TIMEOUT_MS),
            values=values,
        )


def _check_promises(values: Mapping[str, Any]) -> None:
    """What would break the promise that nothing acknowledged is lost, doubled by a retry, or out of order."""
    acks = values.get("kafka.acks", "all")
    if acks not in ("all", "-1"):
        raise OptionError(
            f"option 'kafka.acks' is {acks!r}",
            "the sink waits for all in-sync replicas; set all or leave it out",
            option="kafka.acks",
        )
    if values.get("kafka.enable.idempotence") is False:
        raise OptionError(
            "option 'kafka.enable.idempotence' is 'false'",
            "retries would double records; set true or leave it out",
            option="kafka.enable.idempotence",
        )
    if values.get("kafka.partitioner.ignore.keys"):
        raise OptionError(
            "option 'kafka.partitioner.ignore.keys' is 'true'",
            "keys decide the partition here; leave the option out and set the column partition",
            option="kafka.partitioner.ignore.keys",
        )
    if values["writeId"] is not None and values["delivery"] != EXACTLY_ONCE:
        raise OptionError(
            "option 'writeId' is set, but delivery is at-least-once, which knows no write again",
            "set delivery to exactly-once, or leave writeId out",
            option="writeId",
        )
    in_flight = values.get("kafka.max.in.flight.requests.per.connection", IN_FLIGHT_MAX)
    if in_flight > IN_FLIGHT_MAX:
        raise OptionError(
            f"option 'kafka.max.in.flight.requests.per.connection' is '{in_flight}'",
            f"brokers remember a producer's last"
            f" {IN_FLIGHT_MAX} batches, so more could double or reorder; set 1 to {IN_FLIGHT_MAX}",
            option="kafka.max.in.flight.requests.per.connection",
        )


def _topic(values: Mapping[str, Any], option: str) -> str | None:
    name: str | None = values[option]
    if name is not None:
        try:
            check_topic_name(name)
        except KafkaError as error:
            raise OptionError(f"option {option!r}", f"{error.message}; choose another name", option=option) from None
    return name


def _level(values: Mapping[str, Any], codec: Codec) -> int | None:
    name = f"kafka.compression.{codec.name.lower()}.level"
    level: int | None = values.get(name)
    if level is not None and codec in LEVELS:
        low, high, _ = LEVELS[codec]
        if not low <= level <= high and level != LEVELS[codec][2]:
            raise OptionError(f"option {name!r} is '{level}'", f"it must be from {low} to {high}", option=name)
    return level if codec in LEVELS else None
