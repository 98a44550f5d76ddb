"""The keys a spec may have: one table per kind of part, with the kind of value and what it is for.

`read_part` turns a block of YAML into keyword arguments by such a table; unknown keys are refused with a guess at what
was meant. The guide's tables of keys are printed from here.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from headrace.spark.pipelines.spec.document import Block, Items, Scalar, Value
from headrace.spark.pipelines.spec.problems import Problem, Where, choose

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_UNITS_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}


class Wrong(Exception):
    """A value that does not fit: what is wrong, and how to mend it."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message, fix)
        self.message = message
        self.fix = fix


# -- kinds of values


def text(value: Value) -> str:
    if not isinstance(value, Scalar) or value.value is None or not value.text.strip():
        raise Wrong("this must be a text", "write one value after the colon")
    return value.text


def name(value: Value) -> str:
    found = text(value)
    if not _NAME.fullmatch(found):
        raise Wrong(f"{found!r} is no name", "use letters, digits and _, beginning with a letter")
    return found


def flag(value: Value) -> bool:
    if isinstance(value, Scalar) and isinstance(value.value, bool):
        return value.value
    raise Wrong("this must be true or false", "write true or false")


def count(value: Value) -> int:
    if isinstance(value, Scalar) and type(value.value) is int and value.value >= 0:
        return value.value
    raise Wrong("this must be a whole number, 0 or more", "write a number such as 5")


def positive(value: Value) -> int:
    found = count(value)
    if found == 0:
        raise Wrong("this must be above 0", "write a number such as 5")
    return found


def duration_ms(value: Value) -> int:
    found = _DURATION.fullmatch(value.text.strip().lower()) if isinstance(value, Scalar) else None
    if found is None or found[2] not in _UNITS_MS:
        raise Wrong("this must be a time with its unit", "write it as 500 ms, 10 seconds, 5 minutes, 1 hour or 2 days")
    return int(float(found[1]) * _UNITS_MS[found[2]])


def texts(value: Value) -> tuple[str, ...]:
    """One text or a list of them."""
    if isinstance(value, Items):
        return tuple(text(item) for item in value)
    return (text(value),)


def names(value: Value) -> tuple[str, ...]:
    return tuple(name(item) for item in value) if isinstance(value, Items) else (name(value),)


def text_map(value: Value) -> dict[str, str]:
    """Keys to single values, as options of Spark are."""
    if not isinstance(value, Block):
        raise Wrong("this must be a map of names to values", "put each as `name: value` on a line of its own, indented")
    found = {}
    for key, item in value.entries.items():
        if not isinstance(item, Scalar) or item.value is None:
            raise Wrong(f"{key} must be one value", f"write `{key}: value`")
        found[key] = item.text.lower() if isinstance(item.value, bool) else item.text
    return found


def console(value: Value) -> int:
    """`true`, or how many rows of each batch to print."""
    if isinstance(value, Scalar) and value.value is True:
        return 20
    return positive(value)


def one_of(*allowed: str) -> Callable[[Value], str]:
    def kind(value: Value) -> str:
        found = text(value).lower()
        if found not in allowed:
            raise Wrong(f"{found!r} is not one of {', '.join(allowed)}", choose(found, allowed, "choices"))
        return found

    return kind


def part(value: Value) -> Value:
    """A block with a table of its own, read by whoever knows it."""
    return value


class Key(NamedTuple):
    kind: Callable[[Value], Any]
    doc: str
    required: bool = False
    field: str | None = None
    """The attribute's name where it differs from the key's."""


# -- the tables

PIPELINE: Mapping[str, Key] = {
    "name": Key(name, "What the pipeline is called; begins its runs' and checkpoints' names.", True),
    "description": Key(text, "What it is for; shown by `list` and `watch`."),
    "storage": Key(
        text, "Folder (or hdfs://, s3a://, ... address) of checkpoints. Default: .headrace/NAME beside the spec."
    ),
    "bootstrap": Key(text, "Brokers of all topics that name no other. Default: 127.0.0.1:9092."),
    "kafka": Key(
        text_map,
        "Settings of Kafka's clients for topics of `bootstrap`, such as security.protocol; keep secrets out:"
        " ${KAFKA_LOGIN}.",
    ),
    "mode": Key(
        one_of("continuous", "bounded"),
        "continuous (default): runs until stopped. bounded: works off what is there, then ends.",
    ),
    "trigger": Key(
        duration_ms, "How often a continuous run looks for new rows. Default: 1 second.", field="trigger_ms"
    ),
    "spark": Key(part, "Where Spark runs, and its settings."),
    "retries": Key(part, "How often and how fast a failed query starts again."),
    "sources": Key(part, "Where rows come from.", True),
    "transforms": Key(part, "SQL and Python in between."),
    "sinks": Key(part, "Where rows go.", True),
}
SPARK: Mapping[str, Key] = {
    "master": Key(text, "local[*] (default), spark://host:7077, yarn, k8s://..., or sc://host:15002 for Connect."),
    "conf": Key(text_map, "Settings of Spark, such as spark.executor.memory: 4g."),
    "packages": Key(texts, "Maven coordinates of jars to fetch, such as org.postgresql:postgresql:42.7.4."),
    "jars": Key(texts, "Jars to load."),
}
RETRIES: Mapping[str, Key] = {
    "attempts": Key(count, "How often a failed query is started again before the run fails. Default: 5."),
    "backoff": Key(
        duration_ms, "The wait before the first retry; it doubles with each. Default: 1 second.", field="backoff_ms"
    ),
    "backoff_max": Key(duration_ms, "The longest wait. Default: 1 minute.", field="backoff_max_ms"),
    "reset_after": Key(
        duration_ms,
        "After so long without failure, counting starts again. Default: 10 minutes.",
        field="reset_after_ms",
    ),
}
WATERMARK: Mapping[str, Key] = {
    "column": Key(text, "The column with each row's time.", True),
    "delay": Key(duration_ms, "How late rows may be and still be counted.", True, field="delay_ms"),
}
EXPECT: Mapping[str, Key] = {
    "name": Key(name, "What the expectation is called in counts and errors.", True),
    "check": Key(text, "An SQL condition each row must meet; null does not.", True),
    "action": Key(
        one_of("warn", "drop", "fail"), "warn (default): count. drop: leave the row out and count. fail: stop the run."
    ),
}
VALUE: Mapping[str, Key] = {
    "format": Key(one_of("json", "avro", "protobuf", "text", "bytes"), "How values are written.", True),
    "schema": Key(text, "The columns: Spark's DDL for json, a schema's own text for avro and protobuf."),
    "schema_file": Key(text, "A file with the schema."),
    "registry": Key(text, "Address of a schema registry, for values in Confluent's wire format."),
    "subject": Key(text, "The subject in the registry. Default: TOPIC-value."),
    "message": Key(text, "protobuf: the message's name."),
    "on_error": Key(
        one_of("fail", "dead-letter"),
        "What becomes of values that cannot be read or written. Default: fail; dead-letter where dead_letters is set.",
    ),
    "dead_letters": Key(
        text,
        "Topic for values that cannot be read or written, with the reason in headers; once for each sink that reads"
        " them.",
    ),
}
_NODE: Mapping[str, Key] = {
    "watermark": Key(part, "How late rows may be: {column: at, delay: 10 minutes}."),
    "expect": Key(part, "Conditions that rows must meet; those dropped can be read as NAME.rejected by sinks."),
}
SOURCE: Mapping[str, Key] = {
    "topic": Key(texts, "Topic, or list of topics, to read."),
    "pattern": Key(text, "Regular expression of topics to read."),
    "files": Key(text, "Folder or pattern of files to read; new ones are picked up as they appear."),
    "table": Key(text, "Table of Spark's catalog to read."),
    "bootstrap": Key(text, "Brokers of this topic."),
    "start": Key(text, "Topics: where the first run starts: earliest (default), latest, group:ID, or offsets as JSON."),
    "value": Key(part, "Topics: how values are written; their fields become columns."),
    "format": Key(one_of("parquet", "json", "csv", "orc", "text", "avro", "delta"), "Files: how they are written."),
    "schema": Key(
        text, "Files: columns as Spark's DDL, such as id BIGINT, at TIMESTAMP. Needed but for text and delta."
    ),
    "schema_file": Key(text, "Files: a file with such a schema."),
    "static": Key(
        flag, "Files and tables: read whole each time, as the side of a join that is looked up. Default: false."
    ),
    "options": Key(text_map, "Options of Spark's reader, such as maxOffsetsPerTrigger or header."),
    **_NODE,
}
TRANSFORM: Mapping[str, Key] = {
    "sql": Key(part, "A query over sources and other transforms, by their names."),
    "sql_file": Key(text, "A file with such a query."),
    "python": Key(text, "file.py:function; its arguments are named after what it reads, and it returns a DataFrame."),
    "inputs": Key(names, "Python: what to read instead, in the order of the function's arguments."),
    **_NODE,
}
SINK: Mapping[str, Key] = {
    "from": Key(
        text,
        "The source or transform whose rows are written; NAME.rejected for rows that expectations dropped.",
        True,
        "from_",
    ),
    "topic": Key(text, "Topic to write."),
    "bootstrap": Key(text, "Brokers of this topic."),
    "key": Key(text, "Topics: SQL expression of the record's key. Default: none."),
    "value": Key(part, "Topics: SQL expression of the record's value, or {format: ...}. Default: the row as JSON."),
    "headers": Key(text_map, "Topics: SQL expression of each header."),
    "create_partitions": Key(
        positive, "Topics: create the topic with so many partitions if there is none.", field="create_partitions"
    ),
    "delivery": Key(
        one_of("at-least-once", "exactly-once"),
        "Topics: at-least-once (default), or exactly-once: in transactions, from committed records to committed ones.",
    ),
    "files": Key(text, "Folder to write files to, each row exactly once."),
    "format": Key(
        one_of("parquet", "json", "csv", "orc", "text", "avro", "delta", "iceberg"),
        "Files and tables: how they are written. Default: parquet.",
    ),
    "partition_by": Key(names, "Files and tables: columns that become folders."),
    "table": Key(text, "Table of Spark's catalog to write; with jdbc, the table there."),
    "jdbc": Key(text, "Address of a database, jdbc:...; rows are written at least once."),
    "driver": Key(text, "JDBC: the driver's class."),
    "user": Key(text, "JDBC: user."),
    "password": Key(text, "JDBC: password; keep it out of the spec: ${DB_PASSWORD}."),
    "console": Key(console, "Print rows: true, or how many of each batch."),
    "mode": Key(
        one_of("append", "update", "complete"),
        "append (default): finished rows. update: changed ones. complete: all, each time.",
    ),
    "trigger": Key(duration_ms, "How often this sink's query looks for new rows.", field="trigger_ms"),
    "options": Key(text_map, "Options of Spark's writer."),
}


def read_part(value: Value, table: Mapping[str, Key], what: str, problems: list[Problem]) -> dict[str, Any] | None:
    """Keyword arguments for the part, `where` and `at` among them; None if something is wrong, which `problems` then
    has."""
    if not isinstance(value, Block):
        problems.append(Problem(value.where, f"{what} is a map of keys", f"keys: {', '.join(table)}"))
        return None
    before = len(problems)
    found: dict[str, Any] = {"where": value.where, "at": {key: item.where for key, item in value.entries.items()}}
    for key, item in value.entries.items():
        known = table.get(key)
        if known is None:
            problems.append(Problem(item.where, f"{what} has no such key", choose(key, list(table), "keys")))
            continue
        try:
            found[known.field or key] = known.kind(item)
        except Wrong as wrong:
            problems.append(Problem(item.where, wrong.message, wrong.fix))
    for key, known in table.items():
        if known.required and key not in value.entries:
            problems.append(Problem(value.where, f"{key} is missing", f"add `{key}:`. {known.doc}"))
    return found if len(problems) == before else None


def exactly_one(
    found: Mapping[str, Any], keys: tuple[str, ...], where: Where, what: str, problems: list[Problem]
) -> bool:
    """Whether exactly one of `keys` was given."""
    at: Mapping[str, Where] = found["at"]
    given = [key for key in keys if key in at]
    if len(given) == 1:
        return True
    if not given:
        problems.append(Problem(where, f"{what} has none of {', '.join(keys)}", "give exactly one of them"))
    else:
        problems.append(
            Problem(
                at[given[1]],
                f"{what} has both {given[0]} and {given[1]}",
                "keep one; make two parts of it if both are meant",
            )
        )
    return False
