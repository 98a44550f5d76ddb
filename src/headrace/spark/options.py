"""The options of format("headrace"), reads and writes: one table, names and defaults as in Spark's Kafka connector,
read case-insensitively as Spark's are.

Whatever is wrong is said before Spark starts any work: which option, what it holds, what it should hold.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headrace.client.errors import ClientError, SettingRefused
from headrace.client.net.address import parse_bootstrap
from headrace.client.security.channel import Security
from headrace.client.security.settings import KNOWN as SECURITY_SETTINGS, is_security, read_security
from headrace.spark.plain_errors import UserError

SOURCE, SINK = "source", "sink"
BOTH = frozenset({SOURCE, SINK})
READS = frozenset({SOURCE})
WRITES = frozenset({SINK})

KAFKA = "kafka."
SECURITY = "security"
"""Under this name all settings of security stand in what was read, as one checked `Security` that shows no secret."""
_UNITS_MS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_TIME = re.compile(r"(\d+)\s*([a-z]*)")


class OptionError(UserError, ValueError):
    """An option that cannot be used; the message names it and says how to mend it."""


class Option(NamedTuple):
    name: str
    parse: Callable[[str], Any]
    default: Any
    doc: str
    sides: frozenset[str] = READS


# -- kinds of values; each raises ValueError with what the value should have been


def text(value: str) -> str:
    if not value.strip():
        raise ValueError("it must not be empty")
    return value.strip()


def anything(value: str) -> str:
    return value


def boolean(value: str) -> bool:
    known = {"true": True, "false": False}
    found = known.get(value.strip().lower())
    if found is None:
        raise ValueError("it must be true or false")
    return found


def whole(value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise ValueError("it must be a whole number") from None


def positive(value: str) -> int:
    number = whole(value)
    if number <= 0:
        raise ValueError("it must be above 0")
    return number


def not_negative(value: str) -> int:
    number = whole(value)
    if number < 0:
        raise ValueError("it must not be negative")
    return number


def duration_ms(value: str) -> int:
    """Spark's way to write times: 500ms, 30s, 15m, 1h; a bare number is milliseconds."""
    found = _TIME.fullmatch(value.strip().lower())
    if found is None or (found[2] or "ms") not in _UNITS_MS:
        raise ValueError("it must be a time such as 500ms, 30s, 15m or 1h")
    return int(int(found[1]) * _UNITS_MS[found[2] or "ms"])


def names(value: str) -> tuple[str, ...]:
    found = tuple(name.strip() for name in value.split(",") if name.strip())
    if not found:
        raise ValueError("it must name at least one, separated by commas")
    return tuple(dict.fromkeys(found))


def one_of(*allowed: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value.strip().lower() not in allowed:
            raise ValueError(f"it must be one of {', '.join(allowed)}")
        return value.strip().lower()

    return parse


def regex(value: str) -> str:
    try:
        re.compile(text(value))
    except re.error as error:
        raise ValueError(f"it must be a regular expression ({error})") from None
    return value.strip()


def bootstrap(value: str) -> str:
    try:
        parse_bootstrap(value)
    except ClientError as error:
        raise ValueError(str(error)) from None
    return value


# -- the table

OPTIONS: tuple[Option, ...] = (
    Option("subscribe", names, None, "Topics to read, separated by commas."),
    Option("subscribePattern", regex, None, "A regular expression that whole topic names must match."),
    Option("assign", text, None, 'Partitions to read: {"orders": [0, 1]}.'),
    Option("startingOffsets", text, None,
           'earliest, latest, group:<id> (where that group has committed) or {"orders": {"0": 23, "1": -2}}; '
           "-2 is earliest, -1 latest. Default: earliest for batch queries, latest for streams."),
    Option("startingOffsetsByTimestamp", text, None, 'Times in ms by partition: {"orders": {"0": 1700000000000}}.'),
    Option("startingTimestamp", not_negative, None, "A time in ms to start every partition at."),
    Option("startingOffsetsByTimestampStrategy", one_of("error", "latest"), "error",
           "What to do where no record is that young."),
    Option("endingOffsets", text, None, 'Batch queries: latest, or {"orders": {"0": 50, "1": -1}}.'),
    Option("endingOffsetsByTimestamp", text, None, "Batch queries: times in ms by partition."),
    Option("endingTimestamp", not_negative, None, "Batch queries: a time in ms to end every partition at."),
    Option("failOnDataLoss", boolean, True, "Fail when wanted offsets are gone; otherwise warn and go on."),
    Option("minPartitions", positive, None, "At least about so many tasks: large partitions are split."),
    Option("maxRecordsPerPartition", positive, None, "At most so many offsets in one task."),
    Option("maxOffsetsPerTrigger", positive, None, "Streams: at most so many offsets in one batch."),
    Option("minOffsetsPerTrigger", positive, None, "Streams: wait until there are so many."),
    Option("maxTriggerDelay", duration_ms, 900_000, "Streams: how long minOffsetsPerTrigger may wait. Default 15m."),
    Option("includeHeaders", boolean, False, "Add the column headers.", BOTH),
    Option("groupIdPrefix", text, "spark-kafka-source", "Begins the name of the group that progress is committed to."),
    Option("kafkaConsumer.pollTimeoutMs", positive, 120_000, "How long a task tries to read before it fails."),
    Option("fetchOffset.numRetries", not_negative, 3, "How often the driver asks again for offsets."),
    Option("fetchOffset.retryIntervalMs", not_negative, 1000, "How long it waits in between."),
    # What the Kafka connector does not have.
    Option("columns", names, None, "Only these columns; Spark cannot leave others out by itself."),
    Option("pushFilters", boolean, False,
           "Batch queries: let filters on partition, offset and timestamp narrow what is fetched. Needs "
           "spark.sql.python.filterPushdown.enabled=true, and a DataFrame of its own for each query: Spark keeps what "
           "the first query's filters left and reads only that for all later uses of the same DataFrame."),
    Option("commitProgress", boolean, True, "Streams: commit what is done to a consumer group, for lag tools."),
    Option("valueFormat", one_of("json", "avro", "protobuf"), None, "Typed values in place of bytes.", BOTH),
    Option("valueSchema", text, None, "The schema itself: Avro's JSON, a .proto file's text, or Spark's DDL for json.",
        BOTH),
    Option("valueSchemaFile", text, None, "A file that holds the schema.", BOTH),
    Option("valueSchemaRegistry", text, None,
           "URL of a schema registry; values then carry Confluent's five-byte prefix.", BOTH),
    Option("valueSchemaSubject", text, None, "The registry's subject. Default: <topic>-value.", BOTH),
    Option("valueMessage", text, None, "The protobuf message's name, where the schema has several.", BOTH),
    Option("badRows", one_of("fail", "deadletter"), "fail",
           "fail, or deadLetter: put what cannot be decoded or encoded into deadLetterTopic.", BOTH),
    Option("deadLetterTopic", text, None, "Where bad rows go, with the reason in headers.", BOTH),
    Option("errorColumn", text, None,
           "With badRows=deadLetter: a column of this name has the reason, and bad rows stay, with a null value."),
    Option("topic", text, None, "Where rows go; wins over a column topic.", WRITES),
    Option("timestampColumn", text, None, "The column with each record's time. Default: the time of writing.", WRITES),
    Option("delivery", one_of("at-least-once", "exactly-once"), "at-least-once",
           "exactly-once: rows are written in transactions, which readers of committed records see once and whole, "
           "batch by batch.", WRITES),
    Option("writeId", text, None,
           "With exactly-once, outside of writeStream: the name by which a batch write is known when it is run again.",
           WRITES),
    Option("dedupHeaders", boolean, False,
           "Mark each record with query, batch, partition and row, equal when Spark writes it again.", WRITES),
    Option("checkpointLocation", text, None, "Spark's own, for streams.", WRITES),
    Option("queryName", text, None, "Spark's own, for streams.", WRITES),
)  # fmt: skip

BY_KEY: dict[str, Option] = {option.name.lower(): option for option in OPTIONS}


# -- kafka.* pass-through


class KafkaSetting(NamedTuple):
    parse: Callable[[str], Any]
    sides: frozenset[str] = BOTH


HONOURED: dict[str, KafkaSetting] = {
    "bootstrap.servers": KafkaSetting(bootstrap),
    "client.id": KafkaSetting(text),
    "group.id": KafkaSetting(text, READS),
    "isolation.level": KafkaSetting(one_of("read_uncommitted", "read_committed"), READS),
    "max.partition.fetch.bytes": KafkaSetting(positive, READS),
    "fetch.max.bytes": KafkaSetting(positive, READS),
    "check.crcs": KafkaSetting(boolean, READS),
    "request.timeout.ms": KafkaSetting(positive),
    "socket.connection.setup.timeout.ms": KafkaSetting(positive),
    "acks": KafkaSetting(one_of("all", "-1", "1", "0"), WRITES),
    "compression.type": KafkaSetting(one_of("none", "gzip", "snappy", "lz4", "zstd"), WRITES),
    "batch.size": KafkaSetting(positive, WRITES),
    "max.request.size": KafkaSetting(positive, WRITES),
    "delivery.timeout.ms": KafkaSetting(positive, WRITES),
    "enable.idempotence": KafkaSetting(boolean, WRITES),
    "linger.ms": KafkaSetting(not_negative, WRITES),
    "buffer.memory": KafkaSetting(positive, WRITES),
    "retries": KafkaSetting(not_negative, WRITES),
    "max.in.flight.requests.per.connection": KafkaSetting(positive, WRITES),
    "partitioner.ignore.keys": KafkaSetting(boolean, WRITES),
    "transaction.timeout.ms": KafkaSetting(positive, WRITES),
    "compression.gzip.level": KafkaSetting(whole, WRITES),
    "compression.lz4.level": KafkaSetting(whole, WRITES),
    "compression.zstd.level": KafkaSetting(whole, WRITES),
}
"""Settings of Kafka's clients that mean the same here, besides those of security, which `client.security` reads."""

HARMLESS = frozenset(
    {
        "auto.commit.interval.ms", "client.dns.lookup", "client.rack", "connections.max.idle.ms",
        "default.api.timeout.ms", "enable.metrics.push", "exclude.internal.topics", "fetch.max.wait.ms",
        "fetch.min.bytes", "group.instance.id", "group.protocol", "heartbeat.interval.ms",
        "max.poll.interval.ms", "max.poll.records", "metadata.max.age.ms",
        "metadata.recovery.strategy", "metric.reporters", "metrics.num.samples", "metrics.recording.level",
        "metrics.sample.window.ms", "partition.assignment.strategy", "receive.buffer.bytes",
        "reconnect.backoff.max.ms", "reconnect.backoff.ms", "retry.backoff.max.ms", "retry.backoff.ms",
        "send.buffer.bytes", "session.timeout.ms", "socket.connection.setup.timeout.max.ms",
        "allow.auto.create.topics", "partitioner.adaptive.partitioning.enable", "partitioner.availability.timeout.ms",
        "max.block.ms", "metadata.max.idle.ms",
    }
)  # fmt: skip
"""Settings whose meaning is in how Kafka's own clients work: taken, since jobs that come from there have them."""

REFUSED: dict[str, str] = {
    "auto.offset.reset": "set startingOffsets to earliest or latest instead: Spark keeps the offsets of a query itself",
    "key.deserializer": "keys are bytes; CAST(key AS STRING) and its like turn them into values",
    "value.deserializer": "values are bytes; CAST(value AS STRING) or the option valueFormat turn them into values",
    "key.serializer": "keys are bytes; turn them into bytes or strings with DataFrame functions",
    "value.serializer": "values are bytes; turn them into bytes or strings with DataFrame functions",
    "transactional.id": "the option delivery=exactly-once writes in transactions, and chooses their ids itself",
    "enable.auto.commit": "Spark's checkpoints say what is done; the option commitProgress publishes it to a group",
    "interceptor.classes": "there is no JVM here to run them",
}


def read_options(given: Mapping[str, str], side: str) -> dict[str, Any]:
    """Typed values of all options of one side, defaults included; `kafka.*` ones that were given under their names."""
    values: dict[str, Any] = {option.name: option.default for option in OPTIONS if side in option.sides}
    values[SECURITY] = kafka_security(given)
    for key, value in given.items():
        name = key.lower()
        if name.startswith(KAFKA):
            _read_kafka(name, value, side, values)
            continue
        option = BY_KEY.get(name)
        if option is None or side not in option.sides:
            raise _unknown(key, option, side)
        values[option.name] = parsed(option.name, option.parse, value)
    if "kafka.bootstrap.servers" not in values:
        raise OptionError(
            "option 'kafka.bootstrap.servers' is missing",
            "set it to host:port of a broker, such as 127.0.0.1:9092",
            option="kafka.bootstrap.servers",
        )
    return values


def check_bad_rows(values: Mapping[str, Any]) -> None:
    """The options about bad rows against each other, and schemas without a format."""
    if values["badRows"] == "deadletter" and values["deadLetterTopic"] is None:
        raise OptionError(
            "option 'deadLetterTopic' is missing",
            "badRows=deadLetter needs the topic to put them into",
            option="deadLetterTopic",
        )
    if values["deadLetterTopic"] is not None and values["badRows"] != "deadletter":
        raise OptionError(
            "option 'badRows' is 'fail', so deadLetterTopic would stay empty",
            "set badRows to deadLetter",
            option="badRows",
        )
    if values.get("errorColumn") is not None and values["badRows"] != "deadletter":
        raise OptionError(
            "option 'errorColumn' is set, but badRows is 'fail'",
            "set badRows to deadLetter and deadLetterTopic, or leave it out",
            option="errorColumn",
        )
    if values["valueFormat"] is not None:
        return
    if values["badRows"] == "deadletter":
        raise OptionError(
            "option 'badRows' is 'deadLetter', but without valueFormat no row can be bad",
            "set valueFormat",
            option="badRows",
        )
    for name in ("valueSchema", "valueSchemaFile", "valueSchemaRegistry", "valueSchemaSubject", "valueMessage"):
        if values[name] is not None:
            raise OptionError(
                f"option {name!r} is set, but valueFormat is not", "set it to json, avro or protobuf", option=name
            )


def parsed(name: str, parse: Callable[[str], Any], value: str) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise OptionError(f"option {name!r} is {value!r}", f"{error}", option=name) from None


def kafka_security(given: Mapping[str, str]) -> Security:
    """How to connect, by the options `kafka.security.*`, `kafka.ssl.*` and `kafka.sasl.*`."""
    settings = {key.lower().removeprefix(KAFKA): value for key, value in given.items() if key.lower().startswith(KAFKA)}
    # Spark blots out options that speak of passwords, as sasl.jaas.config does; of keys it knows nothing.
    if "PRIVATE KEY" in (key := settings.get("ssl.keystore.key", "")) and "ENCRYPTED" not in key:
        raise OptionError(
            "option 'kafka.ssl.keystore.key' is not encrypted",
            "Spark shows options in plans and event logs; encrypt it"
            " (openssl pkcs8 -topk8) and set kafka.ssl.key.password, or name a file in kafka.ssl.keystore.location",
            option="kafka.ssl.keystore.key",
        )
    try:
        return read_security(settings, prefix=KAFKA)
    except SettingRefused as error:
        raise OptionError(f"option {error.name!r} {error.args[1]}", error.args[2], option=error.name) from None


def _read_kafka(key: str, value: str, side: str, values: dict[str, Any]) -> None:
    name = key.removeprefix(KAFKA)
    if name in REFUSED:
        raise OptionError(f"option {key!r} cannot be used", f"{REFUSED[name]}", option=key)
    if is_security(name):
        return
    setting = HONOURED.get(name)
    if setting is not None:
        # What only concerns the other side is harmless on this one: many jobs share one set of options.
        found = parsed(key, setting.parse, value)
        if side in setting.sides:
            values[key] = found
    elif name not in HARMLESS:
        known = [*HONOURED, *HARMLESS, *SECURITY_SETTINGS]
        raise unknown_option(f"option {key!r} is not a setting of Kafka's clients", key, name, known, KAFKA)


def _unknown(key: str, option: Option | None, side: str) -> OptionError:
    if option is not None:
        other = "reads" if SOURCE in option.sides else "writes"
        return OptionError(f"option {option.name!r} is for {other} only", "leave it out", option=option.name)
    if key.lower() == "path":
        return OptionError(
            "option 'path' is not known",
            "leave load() and save() empty and name topics by subscribe or topic",
            option="path",
        )
    known = [option.name for option in OPTIONS if side in option.sides]
    return unknown_option(f"option {key!r} is not known", key, key, known)


def unknown_option(problem: str, option: str, name: str, known: list[str], prefix: str = "") -> OptionError:
    """With the known name that is nearest to `name`, if one is near."""
    by_key = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), by_key, n=1, cutoff=0.6)
    if close:
        return OptionError(f"{problem}; did you mean {prefix + by_key[close[0]]!r}?", option=option)
    return OptionError(problem, "check its spelling", option=option)
