"""What `import headrace.spark` does for sessions that somebody else builds: Spark finds format("headrace"), and Java.

Spark looks for Python data sources with a Python that it starts itself, `python3` of the PATH. In a notebook, under
cron or in an environment that is not activated, that is another Python, which has never heard of Headrace.
"""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON = "PYSPARK_PYTHON"
DECIDED = (PYTHON, "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT")
"""Somebody has named a Python, or the JVM runs already and has taken its environment along."""
IN_A_WORKER = ("PYTHON_WORKER_FACTORY_SECRET", "PYTHON_WORKER_FACTORY_SOCK_DIR")
FORMATS = ("headrace", "headrace-log")

_named: str | None = None
"""The Python that was named here, which a session of ours may name better."""


def autoconfigure() -> None:
    """Called when `headrace.spark` is imported. Each step may run again without harm."""
    if any(name in os.environ for name in IN_A_WORKER) or find_spec("pyspark") is None:
        return
    set_worker_python()
    set_java_home()
    make_save_append()
    if (context := sys.modules.get("pyspark.core.context")) is not None and context.SparkContext._active_spark_context:
        from pyspark.sql import SparkSession

        if (session := SparkSession.getActiveSession()) is not None and not _is_this_environment(
            session.sparkContext.pythonExec
        ):
            register(session)


def set_worker_python() -> None:
    """Have Spark start this Python, unless somebody has named another."""
    global _named
    if not any(name in os.environ for name in DECIDED):
        _named = os.environ[PYTHON] = sys.executable


def is_python_chosen_by_user() -> bool:
    """Whether the Python of Spark's workers was chosen by somebody else than `set_worker_python`."""
    return PYTHON in os.environ and os.environ[PYTHON] != _named


def set_java_home() -> None:
    """Where the machine has no Java at all, the one in the wheel."""
    if os.environ.get("JAVA_HOME") or shutil.which("java") is not None:
        return
    from headrace.spark.launch.java import JavaMissing, find_java

    try:
        os.environ["JAVA_HOME"] = str(find_java().home)
    except JavaMissing:
        pass  # Spark says so when it starts, and `spark_session` says what to do


def register(session: "SparkSession") -> None:
    """Tell a session that was built before `headrace.spark` was imported of both formats, and of this Python."""
    from headrace.spark.datasource import HeadraceDataSource
    from headrace.spark.log.scan import HeadraceLogDataSource

    session.sparkContext.pythonExec = sys.executable
    session.dataSource.register(HeadraceDataSource)
    session.dataSource.register(HeadraceLogDataSource)


def make_save_append() -> None:
    """Let `df.write.format("headrace").save()` append, as it does with Spark's Kafka connector.

    Without a mode Spark means "fail if there is something", and refuses that for every source that is written in Python
    before the source is asked. To a topic, records are only ever added. Overwriting stays refused.
    """
    from pyspark.sql.readwriter import DataFrameWriter

    _patch(DataFrameWriter, lambda writer: (writer._jwrite.source(), writer._jwrite.curmode().name()))
    if (connect := sys.modules.get("pyspark.sql.connect.readwriter")) is not None:
        _patch(connect.DataFrameWriter, lambda writer: (writer._write.source, writer._write.mode or "ErrorIfExists"))


def _patch(writer_class: Any, state_of: Any) -> None:
    plain = writer_class.save
    if getattr(plain, "of_headrace", False):
        return

    def save(
        self: Any, path: Any = None, format: Any = None, mode: Any = None, partitionBy: Any = None, **options: Any
    ) -> None:
        if mode is None and (format is None or format.lower() in FORMATS):
            source, current = state_of(self)
            if (format or source or "").lower() in FORMATS and current.lower() in ("errorifexists", "error", "default"):
                mode = "append"
        plain(self, path, format, mode, partitionBy, **options)

    save.__doc__ = plain.__doc__
    save.of_headrace = True  # type: ignore[attr-defined]
    writer_class.save = save


def _is_this_environment(python: str) -> bool:
    """Whether the Python that Spark starts by this name is of the environment that this one is of."""
    found = shutil.which(python)
    return found is not None and Path(found).parent == Path(sys.executable).parent
