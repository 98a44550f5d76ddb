"""Real Spark servers for tests, from the classes that the pyspark package brings: a standalone cluster, a Connect
server."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark

from headrace.spark.launch.java import find_java, spark_jars
from headrace.spark.launch.launcher import launcher_in_use
from headrace.spark.launch.session import LOG_SETTINGS

START_LIMIT_S = 90.0
HOME = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
INFO = "-Dheadrace.log.level=info -Dheadrace.log.console=info"


@contextmanager
def server(
    words: list[str], log: Path, ready: str, environment: Mapping[str, str] | None = None
) -> Iterator[re.Match[str]]:
    """A process until the block ends; `ready` is what its log says once it serves."""
    java = launcher_in_use(find_java(), spark_jars()).home
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SPARK_"))}
    env = inherited | {"JAVA_HOME": str(java), "SPARK_LOCAL_IP": "127.0.0.1"} | dict(environment or {})
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while (found := re.search(ready, log.read_text(errors="replace"))) is None:
            assert process.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
            time.sleep(0.05)
        yield found
    finally:
        # The whole group that was started here: a worker has executors of its own.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def standalone_cluster(folder: Path, *, workers: int = 2) -> Iterator[str]:
    """A master and workers of one core each; gives the master's address."""
    options = {
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"-Dlog4j2.configurationFile=file:{LOG_SETTINGS} {INFO}",
        "PYSPARK_PYTHON": sys.executable,
    }
    spark_class = str(HOME / "bin" / "spark-class")
    master = [
        spark_class,
        "org.apache.spark.deploy.master.Master",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--webui-port",
        "0",
    ]
    with server(master, folder / "master.log", r"Starting Spark master at (spark://\S+)", options) as found:
        yield from _with_workers(spark_class, found[1], folder, workers, options)


def _with_workers(spark_class: str, master: str, folder: Path, count: int, options: Mapping[str, str]) -> Iterator[str]:
    if not count:
        yield master
        return
    words = [spark_class, "org.apache.spark.deploy.worker.Worker", master, "--cores", "1", "--memory", "1g"]
    words += ["--work-dir", str(folder / f"work-{count}"), "--webui-port", "0", "--host", "127.0.0.1"]
    with server(words, folder / f"worker-{count}.log", r"Successfully registered with master", options):
        yield from _with_workers(spark_class, master, folder, count - 1, options)


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A Spark Connect server on local[2]; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [
        str(HOME / "bin" / "spark-submit"), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer",
            "--master", "local[2]",
        "--conf", f"spark.connect.grpc.binding.port={port}", "--conf", "spark.connect.grpc.binding.address=127.0.0.1",
        "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.memory=1g", "--conf",
        "spark.sql.shuffle.partitions=2",
        "--conf", f"spark.driver.extraJavaOptions=-Dlog4j2.configurationFile=file:{LOG_SETTINGS} {INFO}",
        "--conf", f"spark.sql.warehouse.dir={folder / 'warehouse'}",
    ]  # fmt: skip
    with server(words, folder / "connect.log", r"Spark Connect server started", {"PYSPARK_PYTHON": sys.executable}):
        yield f"sc://127.0.0.1:{port}"
