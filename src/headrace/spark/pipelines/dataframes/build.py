"""From a spec to Spark's DataFrames: sources read, SQL and Python applied, expectations counted, nothing started
yet."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from headrace.spark.pipelines.dataframes.metrics import EXPECTATIONS, ROWS, WRITTEN
from headrace.spark.pipelines.dataframes.spark_errors import EXPECTATION_MARK, problem_of, sql_problem
from headrace.spark.pipelines.dataframes.topics import read_topic
from headrace.spark.pipelines.spec.decorated import collecting
from headrace.spark.pipelines.spec.graph import build_order, needed_for
from headrace.spark.pipelines.spec.model import DROP, FAIL, Node, Pipeline, Sink, Source, Transform
from headrace.spark.pipelines.spec.problems import Problem, SpecInvalid, Where
from headrace.spark.pipelines.spec.topic_options import source_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

REJECTED_BY = "_rejected_by"


@dataclass(slots=True)
class Built:
    """The DataFrame of each source and transform, and of the rows that expectations dropped."""

    frames: dict[str, "DataFrame"] = field(default_factory=dict)
    rejected: dict[str, "DataFrame"] = field(default_factory=dict)

    def of(self, sink: Sink) -> "DataFrame":
        return (self.rejected if sink.takes_rejected else self.frames)[sink.input]

    def counted(self, sink: Sink) -> "DataFrame":
        """The same, with its rows counted; those of the screen are not, since it asks for the first ones only."""
        from pyspark.sql import functions as F

        frame = self.of(sink)
        return frame if sink.kind == "console" else frame.observe(WRITTEN, F.count(F.lit(1)).alias(WRITTEN))


def build(spark: "SparkSession", pipeline: Pipeline, only: Sink | None = None) -> Built:
    """Everything, or what one sink needs. Raises SpecInvalid with all that Spark finds wrong, each at its line.

    Parts become temporary views of `spark` under their names, so it should be a session of the pipeline's own.
    """
    wanted = set(pipeline.nodes) if only is None else needed_for(pipeline, only.input)
    built = Built()
    problems: list[Problem] = []
    failed: set[str] = set()
    for name in build_order(pipeline):
        if name not in wanted:
            continue
        transform = pipeline.transforms.get(name)
        if transform is not None and failed.intersection(transform.inputs):
            failed.add(name)  # its failure would only repeat the one above it
            continue
        try:
            if transform is None:
                frame = _source(spark, pipeline, pipeline.sources[name], only)
            else:
                frame = _transform(spark, transform, built)
            _finish(pipeline.nodes[name], frame, built)
        except SpecInvalid as error:
            problems.extend(error.problems)
            failed.add(name)
    if problems:
        raise SpecInvalid(problems)
    return built


def _finish(node: Node, frame: "DataFrame", built: Built) -> None:
    """Expectations and the watermark, then the view."""
    frame = _expectations(node, frame, built)
    if node.watermark is not None:
        with _at(node.watermark.where):
            frame = frame.withWatermark(node.watermark.column, f"{node.watermark.delay_ms} milliseconds")
            frame.schema  # noqa: B018  (Connect checks nothing until it is asked)
    with _at(node.where):
        frame.createOrReplaceTempView(node.name)
    built.frames[node.name] = frame


@contextmanager
def _at(where: Where) -> Iterator[None]:
    """Whatever fails within is a problem of that place."""
    try:
        yield
    except SpecInvalid:
        raise
    except Exception as error:
        raise SpecInvalid([problem_of(error, where)]) from error


# -- sources


def _source(spark: "SparkSession", pipeline: Pipeline, source: Source, sink: Sink | None) -> "DataFrame":
    reader = spark.read if source.static else spark.readStream
    with _at(source.where):
        if source.is_topic:
            return read_topic(reader, source, source_options(pipeline, source, sink))
        if source.table is not None:
            frame = reader.table(source.table)
        else:
            frame = _files(reader, source)
        frame.schema  # noqa: B018
        return frame


def _files(reader: Any, source: Source) -> "DataFrame":
    assert source.format is not None
    schema = source.schema if source.schema_file is None else source.schema_file.read_text().strip()
    if schema is not None:
        with _at(source.place("schema")):
            reader = reader.schema(schema)
    return reader.format(source.format).options(**source.options).load(source.files)


# -- transforms


def _transform(spark: "SparkSession", transform: Transform, built: Built) -> "DataFrame":
    if transform.sql is not None:
        try:
            frame = spark.sql(transform.sql)
            frame.schema  # noqa: B018
        except Exception as error:
            raise SpecInvalid([sql_problem(error, transform)]) from error
        return frame
    return _python(spark, transform, built)


def _python(spark: "SparkSession", transform: Transform, built: Built) -> "DataFrame":
    from pyspark.sql import DataFrame as Classic

    assert transform.python_path is not None and transform.function is not None
    where = transform.place("python")
    with _at(where):
        made = _called(spark, transform, built)
        if not isinstance(made, Classic):
            problem = Problem(where, f"{transform.function} returned {type(made).__name__}", "return a DataFrame")
            raise SpecInvalid([problem])
        made.schema  # noqa: B018
        return made


def _called(spark: "SparkSession", transform: Transform, built: Built) -> Any:
    assert transform.python_path is not None and transform.function is not None
    if transform.decorated:
        context, found = collecting()
        with context:
            load_module(transform.python_path, spark=spark)
        return found[transform.function]()
    function = getattr(load_module(transform.python_path), transform.function)
    given = [built.frames[name] for name in transform.inputs]
    return function(*given, spark=spark) if transform.wants_spark else function(*given)


def load_module(path: Path, **names: Any) -> ModuleType:
    """A file of the user's, with its folder importable, and its functions sent to executors as they are.

    Executors need not have the project's files: what was imported from its folder travels by value.
    """
    from pyspark import cloudpickle

    folder = str(path.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = f"headrace_pipeline_{path.stem}_{abs(hash(str(path)))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module).update(names)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    for one in list(sys.modules.values()):
        file = getattr(one, "__file__", None)
        if file is not None and os.path.dirname(os.path.abspath(file)) == folder:
            cloudpickle.register_pickle_by_value(one)
    return module


# -- expectations


def _expectations(node: Node, frame: "DataFrame", built: Built) -> "DataFrame":
    """Count, then stop the query at the first row that must not be, then leave out what is to be dropped."""
    from pyspark.sql import functions as F

    if not node.expect:
        return frame
    met: dict[str, Column] = {}
    for one in node.expect:
        with _at(one.place("check")):
            kind = frame.select(F.expr(one.check)).schema[0].dataType
            if kind.typeName() != "boolean":
                problem = f"the check is of type {kind.simpleString().upper()}, not BOOLEAN"
                raise SpecInvalid([Problem(one.place("check"), problem, "write a condition, such as amount > 0")])
            met[one.name] = F.coalesce(F.expr(one.check), F.lit(False))
    counts = [F.count_if(~condition).alias(name) for name, condition in met.items()]
    counted = frame.observe(EXPECTATIONS + node.name, F.count(F.lit(1)).alias(ROWS), *counts)
    for one in node.expect:
        if one.action == FAIL:
            text = f"{EXPECTATION_MARK}{one.name} of {node.name} failed on the row "
            row = F.to_json(F.struct("*")) if frame.columns else F.lit("")
            counted = counted.filter(
                F.when(met[one.name], F.lit(True)).otherwise(F.raise_error(F.concat(F.lit(text), row)).cast("boolean"))
            )
    dropping = [one for one in node.expect if one.action == DROP]
    if not dropping:
        return counted
    names = F.array_compact(F.array(*[F.when(~met[one.name], F.lit(one.name)) for one in dropping]))
    built.rejected[node.name] = frame.withColumn(REJECTED_BY, names).filter(F.size(REJECTED_BY) > 0)
    for one in dropping:
        counted = counted.filter(met[one.name])
    return counted
