"""Spark's Python daemons with everything loaded before they fork: workers start with what they would import first.

`spark.python.daemon.module=headrace.spark.launch.daemon` for tasks; Spark has no such setting for the processes that
plan, so the launcher in `worker_python` starts this for them. Without it everything works the same, a second later per
worker.
"""

import gc
import sys
from collections.abc import MutableMapping
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any
from zipimport import zipimporter

from headrace import platform

TASKS = "pyspark.worker"

KEPT_BYTES = 64 << 20
MAPPED_BYTES_MIN = 32 << 20
"""The most that glibc takes."""

PRELOADED = {
    TASKS: (
        "headrace.spark.datasource",
        "headrace.spark.source.batch",
        "headrace.spark.sink.writer",
        "headrace.spark.launch.prefork",
        # Where Spark keeps the functions that tasks of Python sources and sinks are.
        "pyspark.sql.worker.plan_data_source_read",
        "pyspark.sql.worker.write_into_data_source",
        # Spark's own path for Arrow batches wants pandas, whether anything is a DataFrame or not.
        "pyarrow.pandas_compat",
        "pyarrow.vendored.version",
        "pandas",
    ),
    "pyspark.sql.worker.create_data_source": ("headrace.spark.datasource", "headrace.spark.source.schema"),
    "pyspark.sql.worker.plan_data_source_read": ("headrace.spark.datasource", "headrace.spark.source.batch"),
    "pyspark.sql.worker.write_into_data_source": ("headrace.spark.datasource", "headrace.spark.sink.writer"),
    "pyspark.sql.worker.commit_data_source_write": ("headrace.spark.sink.writer",),
}
"""What each kind of worker imports next."""
WARM_UP_ROWS, WARM_UP_BYTES = 1000, 200
ASKED_BY_TASKS = ("API_VERSIONS", "METADATA", "FETCH", "INIT_PRODUCER_ID", "PRODUCE")
"""What tasks send to brokers: each message is compiled for the version that is newest here, which most brokers
speak."""


def drop_pyspark_zip(path: list[str]) -> None:
    """Take PySpark's zip file out of a module path that has the package which it is a copy of.

    Spark puts it first, and in it there is only source: over a second of compiling for each daemon.
    """
    for packages in list(path):
        package = Path(packages, "pyspark")
        archive = package / "python" / "lib" / "pyspark.zip"
        if (package / "__init__.py").exists():
            # Spark names it by its real path, whatever links lead to the package.
            path[:] = [place for place in path if place not in (str(archive), str(archive.resolve()))]


def forget_zip_importers(importers: MutableMapping[str, Any]) -> None:
    """Take importers of zip files out of Python's cache of them; one that is still needed is made anew from what is
    known.

    The first task of a worker has Python look at all folders again, and of each zip file in the cache, and of each
    folder in it, that reads the whole table of contents: a tenth of a second.
    """
    for path in [path for path, importer in importers.items() if isinstance(importer, zipimporter)]:
        del importers[path]


def keep_freed_memory() -> None:
    """Have the C library hold on to memory that tasks have freed: their next batch is as large as the last.

    By default it goes back to the system, which clears it before it hands it out again: a quarter of a worker's time.
    Idle workers are ended by Spark after a minute, and it goes with them.
    """
    platform.keep_freed_memory(KEPT_BYTES, MAPPED_BYTES_MIN)


def preload(worker_module: str) -> None:
    """What the workers of a kind are about to need. Nothing here starts a thread: a fork would leave it behind.

    First of all their own module: Spark's daemon imports it behind the fork, so that each worker compiles it anew, from
    the source in a zip file.
    """
    for name in (worker_module, *PRELOADED.get(worker_module, ())):
        import_module(name)
    if worker_module == TASKS:
        from headrace.client.columnar import native
        from headrace.protocol.api import API, ApiKey

        for api in (API[ApiKey[name]] for name in ASKED_BY_TASKS):
            api.request.encoder(api.latest_stable)
            api.response.decoder(api.latest_stable)
        if native.is_ready():
            native.load()


def warm_up() -> None:
    """Do much of what a task does, on records made here: the worker then has its own copy of the memory that is
    written to."""
    from pyspark.serializers import CPickleSerializer
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer

    from headrace.client.columnar.decode import Decoder
    from headrace.client.net.background import LoopThread
    from headrace.records.batch import Record, build_batch
    from headrace.spark.source.batch import HeadraceBatchReader
    from headrace.spark.source.options import SourceOptions
    from headrace.spark.source.range_reader import reused
    from headrace.spark.source.schema import default_schema

    options = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "warm-up"}
    schema = default_schema(SourceOptions.read(options).values)
    pickler = CPickleSerializer()
    pickler.loads(pickler.dumps((HeadraceBatchReader(schema, options), schema)))
    records = build_batch([Record(0, 0, b"key", bytes(WARM_UP_BYTES)) for _ in range(WARM_UP_ROWS)])
    decoder = Decoder("warm-up", 0, schema.names, memory=reused.memory)
    for _ in range(2):
        written = BytesIO()
        ArrowStreamSerializer(write_start_stream=False).dump_stream(decoder.decode(records, 0, WARM_UP_ROWS), written)
        written.seek(0)
        list(ArrowStreamSerializer().load_stream(written))
    LoopThread().close()


if __name__ == "__main__":
    drop_pyspark_zip(sys.path)
    worker_module = sys.argv[1] if len(sys.argv) > 1 else TASKS
    if worker_module == TASKS:
        keep_freed_memory()
    preload(worker_module)
    forget_zip_importers(sys.path_importer_cache)
    # Spark has workers collect garbage behind every task, and planners behind every plan: what is here already never is
    # any, and looking at it would take longer than many a task, and give each worker a copy of it.
    gc.freeze()
    if worker_module == TASKS:
        from headrace.spark.launch.prefork import manage

        manage(warm_up)
    else:
        # Spark ends none of those that plan: they are there for the next query.
        from pyspark.daemon import manager

        manager()
