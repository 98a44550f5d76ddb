"""Topics as sources and sinks of a pipeline: which options of format("headrace") a spec's keys stand for."""

from typing import TYPE_CHECKING, Any

from headrace.spark.pipelines.spec import Sink, Source, ValueFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT = "headrace"
RECORD_FIELDS = ("key", "topic", "partition", "offset", "timestamp")
"""Columns of a record beside its value, which typed sources keep under `_key` and so on."""


def source_options(source: Source, bootstrap: str) -> dict[str, str]:
    """What `read_topic` sets; checked against the connector's own table before Spark starts."""
    options = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": source.start}
    if source.topic:
        options["subscribe"] = ",".join(source.topic)
    else:
        assert source.pattern is not None
        options["subscribePattern"] = source.pattern
    return options | dict(source.options)


def read_topic(reader: Any, source: Source, bootstrap: str) -> "DataFrame":
    """A record's columns as they are, or the value's fields with the record's own under _key, _topic and so on."""
    from pyspark.sql import functions as F

    frame = reader.format(FORMAT).options(**source_options(source, bootstrap)).load()
    value = source.value
    if value is None or value.format == "bytes":
        return frame
    record = [F.col(name).alias(f"_{name}") for name in RECORD_FIELDS]
    if value.format == "text":
        return frame.select(F.col("value").cast("string").alias("value"), *record)
    schema = value.schema if value.schema_file is None else value.schema_file.read_text()
    parsed = frame.select(F.from_json(F.col("value").cast("string"), schema, {"mode": "FAILFAST" if value.on_error == "fail" else "PERMISSIVE"}).alias("_value"), *record)
    return parsed.select("_value.*", *[f"_{name}" for name in RECORD_FIELDS])


def sink_options(sink: Sink, bootstrap: str) -> dict[str, str]:
    assert sink.topic is not None
    return {"kafka.bootstrap.servers": bootstrap, "topic": sink.topic} | dict(sink.options)


def records_of(sink: Sink, frame: "DataFrame") -> "DataFrame":
    """The columns that a topic takes: value, and key and headers where asked for."""
    from pyspark.sql import functions as F

    if isinstance(sink.value, str):
        value = F.expr(sink.value)
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


def is_typed(value: object) -> bool:
    return isinstance(value, ValueFormat)
