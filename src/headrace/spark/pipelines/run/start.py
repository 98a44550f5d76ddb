"""From a spec's path to a finished run in this process: checks, lock, registry, session, signals, in that order."""

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.spark.launch.session import is_connect, spark_session
from headrace.spark.pipelines.checks.jars import EXTRAS, jars_of
from headrace.spark.pipelines.checks.preflight import check_before_start
from headrace.spark.pipelines.dataframes.build import Built, build
from headrace.spark.pipelines.dataframes.sinks import Print, check_all
from headrace.spark.pipelines.run.pipeline_run import Outcome, PipelineRun, Snapshot, failures_told
from headrace.spark.pipelines.run.registry import RunEntry, checkpoints_locked, create_run
from headrace.spark.pipelines.spec.load import find_spec, load_pipeline
from headrace.spark.pipelines.spec.model import BOUNDED, CONTINUOUS, Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]


def load(path: Path | None, master: str | None = None, conf: Mapping[str, str] | None = None) -> Pipeline:
    """The spec with what the command line changes of it. Raises SpecInvalid."""
    pipeline = load_pipeline(find_spec(path))
    spark = replace(pipeline.spark, conf={**pipeline.spark.conf, **(conf or {})})
    if master is not None:
        # No place in the spec is to blame for it.
        spark = replace(spark, master=master, at={key: at for key, at in spark.at.items() if key != "master"})
    return replace(pipeline, spark=spark)


def driver_settings(pipeline: Pipeline) -> dict[str, str]:
    """Settings that must be there when the driver starts: jars, and what Delta and Iceberg want to be told."""
    settings = dict(pipeline.spark.conf)
    if pipeline.spark.packages:
        settings["spark.jars.packages"] = ",".join(
            filter(None, [settings.get("spark.jars.packages"), *pipeline.spark.packages])
        )
    if pipeline.spark.jars:
        jars = [jar if "://" in jar else str((pipeline.folder / jar).absolute()) for jar in pipeline.spark.jars]
        settings["spark.jars"] = ",".join(filter(None, [settings.get("spark.jars"), *jars]))
    formats = {source.format for source in pipeline.sources.values()} | {
        sink.format for sink in pipeline.sinks.values()
    }
    extensions = [settings["spark.sql.extensions"]] if "spark.sql.extensions" in settings else []
    if "delta" in formats and jars_of(pipeline, EXTRAS["delta"].prefix):
        extensions.append("io.delta.sql.DeltaSparkSessionExtension")
        settings.setdefault("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    if "iceberg" in formats:
        extensions.append("org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        _iceberg_catalogs(pipeline, settings)
    if extensions:
        settings["spark.sql.extensions"] = ",".join(dict.fromkeys(extensions))
    return settings


def _iceberg_catalogs(pipeline: Pipeline, settings: dict[str, str]) -> None:
    """A catalog that nobody has configured is a folder beside the checkpoints."""
    for sink in pipeline.sinks.values():
        if sink.format == "iceberg" and sink.table is not None and sink.table.count(".") >= 2:
            key = f"spark.sql.catalog.{sink.table.split('.')[0]}"
            if key not in settings:
                settings |= {
                    key: "org.apache.iceberg.spark.SparkCatalog",
                    f"{key}.type": "hadoop",
                    f"{key}.warehouse": f"{pipeline.storage}/warehouse",
                }


def open_session(pipeline: Pipeline, log_file: Path | None = None) -> "SparkSession":
    return spark_session(
        pipeline.spark.master, f"headrace-{pipeline.name}", driver_settings(pipeline), log_file=log_file
    )


def dry_run(pipeline: Pipeline, *, with_spark: bool, say: Say) -> dict[str, list[tuple[str, str]]]:
    """Check all that can be checked without moving a row; returns the columns of each part. Raises SpecInvalid."""
    check_before_start(pipeline)
    if not with_spark:
        return {}
    say("starting Spark to check queries and columns ...")
    spark = open_session(pipeline)
    try:
        session = spark.newSession()
        built: Built = build(session, pipeline)
        check_all(pipeline, built.of, connect=is_connect(pipeline.spark.master))
        return {name: list(frame.dtypes) for name, frame in built.frames.items()}
    finally:
        spark.stop()


def run(
    pipeline: Pipeline,
    *,
    bounded: bool | None = None,
    say: Say,
    on_start: Callable[[RunEntry], None] | None = None,
    on_update: Callable[[Snapshot], None] | None = None,
    show: Print | None = None,
) -> Outcome:
    """Run until the end; a second signal does not wait for batches. Raises SpecInvalid, AlreadyRunning, JavaMissing."""
    is_bounded = pipeline.mode == BOUNDED if bounded is None else bounded
    check_before_start(pipeline, create_topics=True)
    with checkpoints_locked(pipeline.storage, pipeline.name):
        entry = create_run(
            pipeline.name,
            pipeline.where.file,
            master=pipeline.spark.master,
            mode=BOUNDED if is_bounded else CONTINUOUS,
            storage=pipeline.storage,
            description=pipeline.description,
        )
        if on_start is not None:
            on_start(entry)
        with failures_told(entry):
            say(f"run {entry.info.run_id}: starting Spark on {pipeline.spark.master} ...")
            spark = open_session(pipeline, entry.log_file)
            try:
                if not is_connect(pipeline.spark.master):
                    entry.note_driver(int(spark._jvm.java.lang.ProcessHandle.current().pid()))
                going = PipelineRun(pipeline, spark, bounded=is_bounded, entry=entry, on_update=on_update, show=show)
                with _signals(going):
                    return going.go()
            finally:
                spark.stop()


@contextmanager
def _signals(going: PipelineRun) -> Iterator[None]:
    def handle(number: int, frame: Any) -> None:
        going.stop("now" if going.stopping else "graceful")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
