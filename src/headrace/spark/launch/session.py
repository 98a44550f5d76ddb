"""One way to a Spark session: Java provided, logging quiet, defaults that suit streams; any master by its address."""

import logging
import os
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.spark.launch import fork_server
from headrace.spark.launch.autoconfigure import is_python_chosen_by_user, make_save_append
from headrace.spark.launch.class_cache import provide_java
from headrace.spark.launch.masters import check_master
from headrace.spark.launch.worker_python import worker_python

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_listening: "weakref.WeakSet[SparkContext]" = weakref.WeakSet()

CONTEXT_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # A batch that holds nothing new is no event worth writing a checkpoint for.
    "spark.sql.streaming.noDataProgressEventInterval": "2000",
    "spark.sql.streaming.stopTimeout": "30000",
}
LOCAL_DEFAULTS = {
    # The two hundred that Spark splits a shuffle into by default cost seconds per batch on one machine.
    "spark.sql.shuffle.partitions": "4",
    # Spark's own choice for local folders runs `readlink` or `chmod` as a process of its own for every file of a
    # checkpoint, some forty times per batch. This one renames files just as atomically.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.driver.host": "127.0.0.1",
    # Workers that have imported what a read needs before they are forked.
    "spark.python.daemon.module": "headrace.spark.launch.daemon",
    "spark.driver.bindAddress": "127.0.0.1",
}


def spark_session(
    master: str = "local[*]",
    app_name: str = "headrace",
    conf: Mapping[str, str] | None = None,
    *,
    log_file: Path | None = None,
    build_class_cache: bool = True,
) -> "SparkSession":
    """A session on `local[*]`, `spark://host:7077`, `yarn`, `k8s://...` or, by Connect, `sc://host:15002`.

    Settings in `conf` win over the defaults above. Spark's log goes to `log_file` where one is given, errors to stderr.
    Raises MasterUnusable at once for an address where no Spark is. With `build_class_cache`, the first session on a
    machine starts to build the JVM's class cache in the background.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise ExtraMissing("PySpark is not installed: pip install 'headrace[spark]'") from None
    check_master(master, conf or {})
    _silence_context_loggers()
    if is_connect(master):
        builder = SparkSession.builder.remote(master).appName(app_name)
        for name, value in (conf or {}).items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        make_save_append()
        return session
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        provide_java(build_cache=build_class_cache)
    is_local = master.startswith("local")
    # By this path Spark finds format("headrace") here and reads with it on executors, whatever `python3` is on the
    # PATH.
    if not is_python_chosen_by_user():
        wanted = (conf or {}).get("spark.pyspark.python")
        os.environ["PYSPARK_PYTHON"] = wanted or (worker_python() if is_local else sys.executable)
        if is_local and not wanted and "PYSPARK_GATEWAY_PORT" not in os.environ:
            fork_server.start()
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = DEFAULTS | (LOCAL_DEFAULTS if is_local else {}) | dict(conf or {})
    settings["spark.driver.extraJavaOptions"] = " ".join(
        [*log_options(log_file), settings.get("spark.driver.extraJavaOptions", "")]
    ).strip()
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    if session.sparkContext not in _listening:
        from headrace.spark.listener import ProgressListener

        _listening.add(session.sparkContext)
        session.streams.addListener(ProgressListener(session))
    return session


def _silence_context_loggers() -> None:
    """PySpark prints each error of a query as JSON with its Java stack, beside raising it: the exception says it all.

    A level that somebody has set stays. WARNING is nobody's choice: PySpark's loggers are made with it.
    """
    from pyspark.logger import PySparkLogger

    for name in CONTEXT_LOGGERS:
        logger = PySparkLogger.getLogger(name)
        if logger.level in (logging.NOTSET, logging.WARNING):
            logger.setLevel(logging.CRITICAL + 1)


class ExtraMissing(RuntimeError):
    """The spark extra is not installed."""


def is_connect(master: str) -> bool:
    return master.startswith("sc://")


def log_options(log_file: Path | None) -> list[str]:
    """What a JVM of Spark is told so that its terminal shows errors only, and `log_file` the rest."""
    options = [f"-Dlog4j2.configurationFile=file:{LOG_SETTINGS}"]
    if log_file is not None:
        options.append(f"-Dheadrace.log.file={log_file}")
    return options
