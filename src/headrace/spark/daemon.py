"""Spark's Python daemons with everything loaded before they fork: workers start with what they would import first.

`spark.python.daemon.module=headrace.spark.daemon` for tasks; Spark has no such setting for the processes that plan, so the
launcher in `worker_python` starts this for them. Without it everything works the same, a second later per worker.
"""

import ctypes
import gc
import sys
from collections.abc import MutableMapping
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any
from zipimport import zipimporter

TASKS = "pyspark.worker"

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of glibc's malloc.h."""
KEPT_BYTES = 64 << 20
MAPPED_BYTES_MIN = 32 << 20
"""The most that glibc takes."""

NEEDED = {
    TASKS: (
        "headrace.spark.datasource",
        "headrace.spark.source",
        "headrace.spark.sink",
        "headrace.spark.spares",
        # Where Spark keeps the functions that tasks of Python sources and sinks are.
        "pyspark.sql.worker.plan_data_source_read",
        "pyspark.sql.worker.write_into_data_source",
        # Spark's own path for Arrow batches wants pandas, whether anything is a DataFrame or not.
        "pyarrow.pandas_compat",
        "pyarrow.vendored.version",
        "pandas",
    ),
    "pyspark.sql.worker.create_data_source": ("headrace.spark.datasource", "headrace.spark.schema"),
    "pyspark.sql.worker.plan_data_source_read": ("headrace.spark.datasource", "headrace.spark.source"),
    "pyspark.sql.worker.write_into_data_source": ("headrace.spark.datasource", "headrace.spark.sink"),
    "pyspark.sql.worker.commit_data_source_write": ("headrace.spark.sink",),
}
"""Of each kind of worker, what it goes on to import."""
REHEARSED_ROWS, REHEARSED_BYTES = 1000, 200
ASKED_BY_TASKS = ("API_VERSIONS", "METADATA", "FETCH", "INIT_PRODUCER_ID", "PRODUCE")
"""What tasks send to brokers: each message is compiled for the version that is newest here, which most brokers speak."""


def use_compiled(path: list[str]) -> None:
    """Take PySpark's zip file out of a module path that has the package which it is a copy of.

    Spark puts it first, and in it there is only source: over a second of compiling for each daemon.
    """
    for packages in list(path):
        package = Path(packages, "pyspark")
        archive = package / "python" / "lib" / "pyspark.zip"
        if (package / "__init__.py").exists():
            # Spark names it by its real path, whatever links lead to the package.
            path[:] = [place for place in path if place not in (str(archive), str(archive.resolve()))]


def forget_archives(importers: MutableMapping[str, Any]) -> None:
    """Take importers of zip files out of Python's cache of them; one that is still needed is made anew from what is known.

    The first task of a worker has Python look at all folders again, and of each zip file in the cache, and of each folder
    in it, that reads the whole table of contents: a tenth of a second.
    """
    for path in [path for path, importer in importers.items() if isinstance(importer, zipimporter)]:
        del importers[path]


def keep_freed_memory() -> None:
    """Have the C library hold on to memory that tasks have freed: their next batch is as large as the last.

    By default it goes back to the system, which clears it before it hands it out again: a quarter of a worker's time. Idle
    workers are ended by Spark after a minute, and it goes with them.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
        libc.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)


def preload(worker_module: str) -> None:
    """What the workers of a kind are about to need. Nothing here starts a thread: a fork would leave it behind.

    First of all their own module: Spark's daemon imports it behind the fork, so that each worker compiles it anew, from
    the source in a zip file.
    """
    for name in (worker_module, *NEEDED.get(worker_module, ())):
        import_module(name)
    if worker_module == TASKS:
        from headrace.client.columnar import native
        from headrace.protocol.api import API, ApiKey

        for api in (API[ApiKey[name]] for name in ASKED_BY_TASKS):
            api.request.encoder(api.latest_stable)
            api.response.decoder(api.latest_stable)
        if native.is_ready():
            native.load()


def rehearse() -> None:
    """Much of what a task does, with records that are made here: the memory which that writes to is then the worker's own."""
    from pyspark.serializers import CPickleSerializer
    from pyspark.sql.pandas.serializers import ArrowStreamSerializer

    from headrace.client.background import LoopThread
    from headrace.client.columnar.decode import Decoder
    from headrace.records.batch import Record, build_batch
    from headrace.spark.plan import read_plan
    from headrace.spark.reader import kept
    from headrace.spark.schema import default_schema
    from headrace.spark.source import HeadraceReader

    options = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "rehearsal"}
    schema = default_schema(read_plan(options).values)
    pickler = CPickleSerializer()
    pickler.loads(pickler.dumps((HeadraceReader(schema, options), schema)))
    records = build_batch([Record(0, 0, b"key", bytes(REHEARSED_BYTES)) for _ in range(REHEARSED_ROWS)])
    decoder = Decoder("rehearsal", 0, schema.names, memory=kept.memory)
    for _ in range(2):
        written = BytesIO()
        ArrowStreamSerializer(write_start_stream=False).dump_stream(decoder.decode(records, 0, REHEARSED_ROWS), written)
        written.seek(0)
        list(ArrowStreamSerializer().load_stream(written))
    LoopThread().close()


if __name__ == "__main__":
    use_compiled(sys.path)
    worker_module = sys.argv[1] if len(sys.argv) > 1 else TASKS
    if worker_module == TASKS:
        keep_freed_memory()
    preload(worker_module)
    forget_archives(sys.path_importer_cache)
    # Spark has workers collect garbage behind every task, and planners behind every plan: what is here already never is any,
    # and looking at it would take longer than many a task, and give each worker a copy of it.
    gc.freeze()
    if worker_module == TASKS:
        from headrace.spark.spares import manage

        manage(rehearse)
    else:
        # Spark ends none of those that plan: they are there for the next query.
        from pyspark.daemon import manager

        manager()
