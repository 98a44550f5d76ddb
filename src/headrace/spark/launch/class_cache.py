"""The JVM's class cache for Spark's driver: built once per Java and Spark by a small job, in the background."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.platform import put_session_behind
from headrace.spark.launch.java import Java, JavaMissing, find_java, spark_jars
from headrace.spark.launch.launcher import (
    CACHE_VARIABLE,
    TRAINING_VARIABLE,
    Launcher,
    launcher_in_use,
    remove_unused,
)

JOB_S_MAX = 1800.0
"""For what hangs. On a busy machine, where it gets what others leave, the job has taken over three minutes."""
RETRY_AFTER_S = 86_400.0
"""What made it fail may be gone by then: a full disk, a machine switched off. A try costs a minute of one core."""
HEAD_START_S = 60.0
"""The first job on a machine is somebody's first look: it has the processors for itself until it runs steadily."""
BEHIND_OTHERS = 10
"""As nice as building the class cache is: a tenth of what others get, so that it ends on a busy machine, too."""


def provide_java(*, build_cache: bool = True) -> Java:
    """Set JAVA_HOME of this process so that Spark starts on the Java found; builds the class cache once, in the
    background."""
    java = find_java()
    if shutil.which("bash") is None:
        raise JavaMissing("Spark starts Java with scripts for bash, and bash is not on the PATH: install it")
    launcher = launcher_in_use(java, spark_jars())
    os.environ["JAVA_HOME"] = str(launcher.home)
    if build_cache and should_build_class_cache(launcher):
        subprocess.Popen(
            [sys.executable, "-m", "headrace.spark.launch.class_cache", str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return java


def should_build_class_cache(launcher: Launcher) -> bool:
    if os.environ.get(CACHE_VARIABLE) in ("off", "use") or os.environ.get(TRAINING_VARIABLE):
        return False
    return not launcher.class_cache.exists() and not _has_failed_lately(launcher)


def _has_failed_lately(launcher: Launcher) -> bool:
    try:
        return abs(time.time() - launcher.failure.stat().st_mtime) < RETRY_AFTER_S
    except OSError:
        return False


def build_class_cache(*, wait: bool = True, first: Callable[[], None] = lambda: None) -> bool:
    """Make the class cache if there is none, by running a small Spark job. Returns whether there is one afterwards.

    One process builds, after doing `first`, while others wait (or, unless `wait`, go on without). A failure is kept
    with its reason, so that it costs one attempt a day and not one per start; a driver without a cache is only slower.
    Each build also removes launchers that nobody uses any more.
    """
    launcher = launcher_in_use(find_java(), spark_jars())
    if not should_build_class_cache(launcher):
        return launcher.class_cache.exists()
    with _locked(launcher.lock, wait) as held:
        if held and should_build_class_cache(launcher):
            first()
            remove_unused(launcher.home.parent)
            _run_class_cache_job(launcher)
    return launcher.class_cache.exists()


@contextlib.contextmanager
def _locked(path: Path, wait: bool) -> Iterator[bool]:
    """The system lets go of the lock with the process, however it ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def _run_class_cache_job(launcher: Launcher) -> None:
    _clear(launcher)
    # Not in TMPDIR: that of whoever started this may be a folder that goes when they end, in the middle of the job.
    folder = Path(tempfile.mkdtemp(prefix="training-", dir=launcher.home))
    fresh = folder / "driver.classes"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment |= {
        "JAVA_HOME": str(launcher.home),
        "TMPDIR": str(folder),
        TRAINING_VARIABLE: str(fresh),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, "-m", "headrace.spark.launch.class_cache_job", str(folder)]
    try:
        done = subprocess.run(
            command, env=environment, cwd=folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=JOB_S_MAX, check=False,
        )  # fmt: skip
        problem = done.stdout.decode(errors="replace") if done.returncode else ""
        if not problem and not fresh.exists():
            problem = "Java wrote no cache: " + done.stdout.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired) as error:
        problem = str(error)
    if problem:
        launcher.failure.write_text(problem[-8000:] + "\n")
    else:
        os.replace(fresh, launcher.class_cache)
        launcher.failure.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _clear(launcher: Launcher) -> None:
    """What builders left that were killed. The caller holds the lock: nobody else is building here."""
    for left in launcher.home.glob("training-*"):
        shutil.rmtree(left, ignore_errors=True)


def give_way() -> None:
    """Take what others leave of the processors: whoever started this has work of their own to do."""
    os.nice(BEHIND_OTHERS)
    if os.getsid(0) == os.getpid():
        put_session_behind(BEHIND_OTHERS)


def await_turn(parent: int, limit_s: float = HEAD_START_S) -> None:
    """Return when whoever started this has ended, or has had its head start."""
    deadline = time.monotonic() + limit_s
    while os.getppid() == parent and time.monotonic() < deadline:
        time.sleep(0.2)


if __name__ == "__main__":
    give_way()
    build_class_cache(wait=False, first=lambda: await_turn(int(sys.argv[1])))
