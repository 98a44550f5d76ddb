"""A launcher of Java for Spark, in a folder that Spark takes for JAVA_HOME; folders that nobody uses are removed.

Spark starts whatever `$JAVA_HOME/bin/java` is. The launcher leaves out the one module that slim runtimes lack, and maps
a cache of Spark's parsed and linked classes (see `class_cache`), which takes seconds off every start of a driver.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from headrace.spark.launch.java import BEHIND, Java, JavaMissing, cache_folder, put_script, quoted

FIRST_WITH_AOT_CACHE = 25
LAUNCHER_VERSION = 1
"""Part of every launcher folder's name; raise it when the launcher or the job of the class cache changes."""

CACHE_VARIABLE = "HEADRACE_JVM_CACHE"
"""off: no class cache; use: one that is there already, but none is made."""

TRAINING_VARIABLE = "HEADRACE_JVM_TRAINING"
"""Set for a training run, as Java calls it: the file that the JVM writes its class cache to."""

SPARK = "spark-jars"
"""A launcher's folder holds this file with the folder of the Spark that it was made for."""

UNUSED_S_MAX = 30 * 86_400.0
CLASS_CACHES_MAX = 8
"""Each is about 200 MB, and each environment with Spark has its own."""

TRIES = 10

_kept: dict[Path, IO[str]] = {}
"""Launchers that this process uses, with the open file that says so to others."""


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
        """Why the class cache could not be built; for a day nobody tries again."""
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
    launcher.home.mkdir(parents=True, exist_ok=True)
    for name, place in ((SPARK, spark_jars), (BEHIND, java.home)):
        if not (launcher.home / name).exists():
            (launcher.home / name).write_text(str(place))
    put_script(launcher.home / "bin" / "java", _script(launcher))
    return launcher


def launcher_in_use(java: Java, spark_jars: Path, cache: Path | None = None) -> Launcher:
    """The same, and nobody removes it as long as this process lives.

    Somebody may be removing it at this moment: (1) we find it there, (2) they lock and rename it, (3) we wait for their
    lock, and get it on a file that is no longer in its place. Then it is written anew.
    """
    for _ in range(TRIES):
        with contextlib.suppress(FileNotFoundError):
            launcher = launcher_for(java, spark_jars, cache)
            if _keep(launcher.home):
                os.utime(launcher.home / BEHIND)
                return launcher
    raise JavaMissing(
        f"{cache or cache_folder()} is being removed again and again: set XDG_CACHE_HOME to another folder"
    )


def _keep(home: Path) -> bool:
    """Say to others that this process uses the folder. False if it was removed just now."""
    if home in _kept and _is_in_place(_kept[home], home / BEHIND):
        return True
    file = (home / BEHIND).open()
    # Some network file systems know no locks: then nobody gets the one to remove it, either.
    with contextlib.suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_SH)
    if not _is_in_place(file, home / BEHIND):
        file.close()
        return False
    _kept[home] = file
    return True


def _is_in_place(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@dataclass(frozen=True, slots=True)
class Folder:
    """What decides whether a launcher's folder stays."""

    home: Path
    used_s: float
    has_class_cache: bool
    has_spark: bool
    """Whether the Spark that it was made for is still there."""


def removable(folders: Iterable[Folder], now_s: float) -> list[Path]:
    """Those whose Spark is gone, those unused for long, and of those with a class cache all but the last used."""
    gone, caches = [], 0
    for folder in sorted(folders, key=lambda folder: folder.used_s, reverse=True):
        is_old = now_s - folder.used_s > UNUSED_S_MAX
        if is_old or not folder.has_spark or (folder.has_class_cache and caches == CLASS_CACHES_MAX):
            gone.append(folder.home)
        else:
            caches += folder.has_class_cache
    return gone


def remove_unused(cache: Path) -> list[Path]:
    """Remove launchers with their class caches, but none that a process uses. Returns those removed."""
    removed = []
    for home in removable(_folders(cache), time.time()):
        with contextlib.suppress(OSError), (home / BEHIND).open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Out of its place in one step: nobody finds half a folder.
            aside = home.with_name(f".removed-{home.name}-{os.getpid()}")
            home.rename(aside)
            removed.append(home)
            shutil.rmtree(aside, ignore_errors=True)
    return removed


def _folders(cache: Path) -> list[Folder]:
    found = []
    for behind in cache.glob(f"java*-*/{BEHIND}"):
        home = behind.parent
        with contextlib.suppress(OSError):
            spark = home / SPARK
            has_spark = not spark.exists() or Path(spark.read_text()).is_dir()
            found.append(Folder(home, behind.stat().st_mtime, (home / "driver.classes").exists(), has_spark))
    return found


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
