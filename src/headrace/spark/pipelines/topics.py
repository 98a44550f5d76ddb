"""Topics as sources and sinks of a pipeline: which options of format("headrace") a spec's keys stand for."""

from typing import TYPE_CHECKING, Any

from headrace.spark.pipelines.spec import Pipeline, Sink, Source, ValueFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT = "headrace"
RECORD_FIELDS = ("key", "topic", "partition", "offset", "timestamp")
"""Columns of a record beside its value, which typed sources keep under `_key` and so on."""

GROUP = "kafka.group.id"


def source_options(pipeline: Pipeline, source: Source, sink: Sink | None = None) -> dict[str, str]:
    """What a read for `sink` sets. Each sink is a query with a place of its own in the topic, so it has its own group."""
    options = _cluster(pipeline, source) | {"startingOffsets": source.start}
    if sink is not None:
        options[GROUP] = f"{pipeline.name}-{sink.name}"
    if source.topic:
        options["subscribe"] = ",".join(source.topic)
    else:
        assert source.pattern is not None
        options["subscribePattern"] = source.pattern
    return options | value_options(source.value) | dict(source.options)


def value_options(value: ValueFormat | None) -> dict[str, str]:
    if value is None or value.format in ("bytes", "text"):
        return {}
    given = {
        "valueFormat": value.format,
        "valueSchema": value.schema,
        "valueSchemaFile": None if value.schema_file is None else str(value.schema_file),
        "valueSchemaRegistry": value.registry,
        "valueSchemaSubject": value.subject,
        "valueMessage": value.message,
        "badRows": "deadLetter" if value.on_error == "dead-letter" else None,
        "deadLetterTopic": value.dead_letters,
    }
    return {name: text for name, text in given.items() if text is not None}


OPTION_KEYS = {
    "startingOffsets": "start",
    "kafka.bootstrap.servers": "bootstrap",
    "subscribePattern": "pattern",
    "subscribe": "topic",
    "valueFormat": "value",
    "valueSchema": "value.schema",
    "valueSchemaFile": "value.schema_file",
    "valueSchemaRegistry": "value.registry",
    "valueSchemaSubject": "value.subject",
    "valueMessage": "value.message",
    "badRows": "value.on_error",
    "deadLetterTopic": "value.dead_letters",
}
"""Which key of a spec an option comes from."""


def read_topic(reader: Any, source: Source, options: dict[str, str]) -> "DataFrame":
    """A record's columns as they are, or the value's fields with the record's own under _key, _topic and so on."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    frame = reader.format(FORMAT).options(**options).load()
    if source.value is None or source.value.format == "bytes":
        return frame
    record = [F.col(name).alias(f"_{name}") for name in RECORD_FIELDS if name != "key"]
    record.insert(0, F.col("key").cast("string").alias("_key"))
    if source.value.format == "text":
        return frame.select(F.col("value").cast("string").alias("value"), *record)
    is_struct = isinstance(frame.schema["value"].dataType, StructType)
    return frame.select("value.*" if is_struct else "value", *record)


def sink_options(pipeline: Pipeline, sink: Sink) -> dict[str, str]:
    assert sink.topic is not None
    typed = value_options(sink.value) if isinstance(sink.value, ValueFormat) else {}
    return _cluster(pipeline, sink) | {"topic": sink.topic} | typed | dict(sink.options)


def _cluster(pipeline: Pipeline, part: Source | Sink) -> dict[str, str]:
    """Which brokers, and how to speak to them. Those of another cluster must not be shown this one's logins."""
    if part.bootstrap is not None:
        return {"kafka.bootstrap.servers": part.bootstrap}
    shared = {f"kafka.{name}": value for name, value in pipeline.kafka.items()}
    return {"kafka.bootstrap.servers": pipeline.bootstrap} | shared


def records_of(sink: Sink, frame: "DataFrame") -> "DataFrame":
    """The columns that a topic takes: value, and key and headers where asked for."""
    from pyspark.sql import functions as F

    if isinstance(sink.value, str):
        value = F.expr(sink.value)
    elif sink.value is not None and value_options(sink.value):
        value = F.struct("*")  # the sink encodes it
    else:
        value = F.to_json(F.struct("*"))
    columns = [value.alias("value")]
    if sink.key is not None:
        columns.append(F.expr(sink.key).cast("string").alias("key"))
    if sink.headers:
        headers = [
            F.struct(F.lit(name).alias("key"), F.expr(text).cast("string").cast("binary").alias("value"))
            for name, text in sink.headers.items()
        ]
        columns.append(F.array(*headers).alias("headers"))
    return frame.select(*columns)
