"""Projects of Spark's own declarative pipelines (spark-pipeline.yml), run by Spark's own engine with Java provided.

They may read and write format("headrace") like any Spark job. The engine knows bounded runs only, and runs by Connect:
a local server of its own, or one given by sc://.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pyspark

from headrace.spark.launch.class_cache import provide_java
from headrace.spark.launch.session import log_options
from headrace.spark.pipelines.run.registry import RunEntry
from headrace.spark.pipelines.spec.problems import Problem, SpecInvalid, Where

SPEC_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml")
STOP_LIMIT_S = 30.0
# Spark's default catalog forgets its tables with the session and then stumbles over their folders in the next run.
SETTINGS = {
    "spark.sql.catalogImplementation": "hive",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# Spark's engine sets all settings once more in its session, and warns of each that is too late for.
QUIET = "ignore:Failed to set spark.:UserWarning"


def is_declarative(path: Path) -> bool:
    return path.name in SPEC_NAMES


def command(spec: Path, action: str, master: str, conf: dict[str, str]) -> list[str]:
    """`action`: run or dry-run. Raises SpecInvalid for masters that the engine cannot use."""
    if not master.startswith(("local", "sc://")):
        problem = Problem(
            Where(spec, 1, ""),
            f"Spark's declarative pipelines cannot run on {master} directly",
            "start a Connect server on that cluster and use --spark sc://host:15002",
        )
        raise SpecInvalid([problem])
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    words = [f"{home}/bin/spark-pipelines", "--remote", master]
    settings = conf if master.startswith("sc://") else {**SETTINGS, **conf}
    for name, value in settings.items():
        words += ["--conf", f"{name}={value}"]
    return [*words, action, "--spec", str(spec)]


def _environment(entry: RunEntry | None) -> dict[str, str]:
    """This Python for Spark's workers; what its JVMs warn of goes to the run's log, not between the engine's lines."""
    options = log_options(entry.log_file if entry is not None else None)
    given = os.environ
    return {
        **given,
        "PYSPARK_PYTHON": given.get("PYSPARK_PYTHON", sys.executable),
        "SPARK_LOCAL_IP": given.get("SPARK_LOCAL_IP", "127.0.0.1"),
        "SPARK_SUBMIT_OPTS": " ".join([given.get("SPARK_SUBMIT_OPTS", ""), *options]).strip(),
        "PYTHONWARNINGS": ",".join(filter(None, [given.get("PYTHONWARNINGS"), QUIET])),
    }


def run_declarative(spec: Path, action: str, master: str, conf: dict[str, str], entry: RunEntry | None = None) -> int:
    """Spark's engine as a child; its exit code. A stop through the registry, or a signal, ends it."""
    words = command(spec, action, master, conf)
    provide_java()
    child = subprocess.Popen(words, env=_environment(entry), cwd=spec.parent)
    try:
        while child.poll() is None:
            if entry is not None:
                entry.write_progress({"state": "running", "pipeline": entry.info.pipeline, "queries": []})
                if entry.stop_requested():
                    child.terminate()
            time.sleep(0.5)
    except KeyboardInterrupt:
        child.terminate()
    finally:
        try:
            code = child.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
    if entry is not None:
        asked = entry.stop_requested() is not None
        state = "stopped" if asked else "done" if code == 0 else "failed"
        entry.write_progress(
            {
                "state": state,
                "pipeline": entry.info.pipeline,
                "queries": [],
                "error": "" if code == 0 or asked else "see its output",
            }
        )
    return code
