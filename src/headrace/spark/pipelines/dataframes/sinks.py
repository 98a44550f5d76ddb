"""Starting a sink's query: one streaming query per sink, with a checkpoint of its own."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.spark.pipelines.dataframes.spark_errors import problem_of
from headrace.spark.pipelines.dataframes.topics import FORMAT, records_of
from headrace.spark.pipelines.spec.model import Pipeline, Sink
from headrace.spark.pipelines.spec.problems import Problem, SpecInvalid, no_column
from headrace.spark.pipelines.spec.topic_options import sink_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

Print = Callable[[str], None]


def start_sink(
    pipeline: Pipeline, sink: Sink, frame: "DataFrame", *, bounded: bool, connect: bool, show: Print | None = None
) -> "StreamingQuery":
    """The running query. Raises whatever Spark says against it."""
    writer = _writer(pipeline, sink, frame, connect, show)
    writer = (
        writer.queryName(sink.name).outputMode(sink.mode).option("checkpointLocation", pipeline.checkpoint(sink.name))
    )
    if bounded:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{sink.trigger_ms or pipeline.trigger_ms} milliseconds")
    if sink.kind == "table":
        return writer.toTable(sink.table)
    return writer.start()


def _writer(pipeline: Pipeline, sink: Sink, frame: "DataFrame", connect: bool, show: Print | None) -> Any:
    options = dict(sink.options)
    if sink.kind == "topic" and sink.mode == "update":
        # Spark has no update mode for sinks in Python, but any sink may take a batch of changed rows.
        return records_of(sink, frame).writeStream.foreachBatch(_appender(FORMAT, sink_options(pipeline, sink)))
    if sink.kind == "topic":
        return records_of(sink, frame).writeStream.format(FORMAT).options(**sink_options(pipeline, sink))
    if sink.kind in ("files", "table"):
        writer = frame.writeStream.format(sink.format).options(**options)
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        return writer if sink.files is None else writer.option("path", sink.files)
    if sink.kind == "jdbc":
        return frame.writeStream.foreachBatch(_jdbc_writer(sink))
    if connect:
        # The batch's rows would have to be printed by a function on the server; its own console does that.
        return frame.writeStream.format("console").option("numRows", str(sink.console)).option("truncate", "false")
    return frame.writeStream.foreachBatch(_printer(sink, show))


def _jdbc_writer(sink: Sink) -> Callable[["DataFrame", int], None]:
    """A batch that is repeated after a crash is appended again: at least once."""
    assert sink.jdbc is not None and sink.jdbc_table is not None
    options = {"url": sink.jdbc, "dbtable": sink.jdbc_table}
    options |= {key: value for key in ("driver", "user", "password") if (value := getattr(sink, key)) is not None}
    return _appender("jdbc", options | dict(sink.options))


def _appender(format_: str, options: dict[str, str]) -> Callable[["DataFrame", int], None]:
    def write(batch: "DataFrame", batch_id: int) -> None:
        batch.write.format(format_).options(**options).mode("append").save()

    return write


def _printer(sink: Sink, show: Print | None) -> Callable[["DataFrame", int], None]:
    assert sink.console is not None
    name, limit = sink.name, sink.console

    def write(batch: "DataFrame", batch_id: int) -> None:
        rows = batch.limit(limit + 1).collect()
        if not rows:
            return
        lines = [f"{name}, batch {batch_id}:"]
        lines += ["  " + ", ".join(f"{key}={value}" for key, value in row.asDict().items()) for row in rows[:limit]]
        if len(rows) > limit:
            lines.append("  ...")
        (show or _to_stdout)("\n".join(lines))

    return write


def _to_stdout(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def check_sink(pipeline: Pipeline, sink: Sink, frame: "DataFrame", *, connect: bool) -> list[Problem]:
    """What Spark would say against the query if it were started, without starting it."""
    if not frame.isStreaming:
        fix = "make one of the sources a stream: remove `static: true`"
        return [
            Problem(sink.place("from"), f"{sink.from_} reads only static sources, so there is nothing to stream", fix)
        ]
    problems = []
    missing = [name for name in sink.partition_by if name.lower() not in {one.lower() for one in frame.columns}]
    if missing:
        problems.append(no_column(sink.place("partition_by"), missing[0], frame.columns))
    try:
        if sink.kind == "topic":
            frame = records_of(sink, frame)
            frame.schema  # noqa: B018
    except Exception as error:
        key = next((key for key in ("key", "value", "headers") if key in sink.at), "topic")
        return [*problems, problem_of(error, sink.place(key))]
    if not connect:
        problems += _check_mode(sink, frame)
    return problems


def _check_mode(sink: Sink, frame: "DataFrame") -> list[Problem]:
    """Spark checks this only when a query starts; its check can be asked for."""
    jvm = frame.sparkSession._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    mode = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[sink.mode]()
    try:
        jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(
            frame._jdf.queryExecution().analyzed(), mode
        )
    except Exception as error:
        return [problem_of(error, sink.place("mode" if "mode" in sink.at else "from"))]
    return []


def check_all(pipeline: Pipeline, frames: Callable[[Sink], "DataFrame"], *, connect: bool) -> None:
    """Raises SpecInvalid with everything that is wrong with any sink."""
    problems = [
        p for sink in pipeline.sinks.values() for p in check_sink(pipeline, sink, frames(sink), connect=connect)
    ]
    if problems:
        raise SpecInvalid(problems)
