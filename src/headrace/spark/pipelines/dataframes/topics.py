"""Topics as DataFrames: the columns that a source gives, and those that a sink writes."""

from typing import TYPE_CHECKING, Any

from headrace.spark.pipelines.dataframes.metrics import COUNT, DEAD_LETTERS
from headrace.spark.pipelines.spec.model import Sink, Source
from headrace.spark.pipelines.spec.topic_options import ERROR_COLUMN, value_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FORMAT = "headrace"
RECORD_FIELDS = ("key", "topic", "partition", "offset", "timestamp")
"""Columns of a record beside its value, which typed sources keep under `_key` and so on."""


def read_topic(reader: Any, source: Source, options: dict[str, str]) -> "DataFrame":
    """A record's columns as they are, or the value's fields with the record's own under _key, _topic and so on."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    frame = reader.format(FORMAT).options(**options).load()
    if options.get("errorColumn") == ERROR_COLUMN:
        unreadable = F.col(ERROR_COLUMN).isNotNull()
        frame = frame.observe(DEAD_LETTERS + source.name, F.count_if(unreadable).alias(COUNT))
        frame = frame.filter(~unreadable).drop(ERROR_COLUMN)
    if source.value is None or source.value.format == "bytes":
        return frame
    record = [F.col(name).alias(f"_{name}") for name in RECORD_FIELDS if name != "key"]
    record.insert(0, F.col("key").cast("string").alias("_key"))
    if source.value.format == "text":
        return frame.select(F.col("value").cast("string").alias("value"), *record)
    is_struct = isinstance(frame.schema["value"].dataType, StructType)
    return frame.select("value.*" if is_struct else "value", *record)


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
