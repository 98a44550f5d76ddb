"""Jars of others, for comparison and for tests of what needs them: fetched once by Maven into a folder beside the
caches."""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.reference.apache import Unavailable

CACHE = Path("~/.cache/headrace").expanduser()

Artifact = tuple[str, str, str]
"""Group, name, version."""

KAFKA_3 = "3.9.1"
"""The last Kafka that ran on ZooKeeper."""
KAFKA_3_ARTIFACTS = [("org.apache.kafka", "kafka_2.13", KAFKA_3), ("org.slf4j", "slf4j-nop", "1.7.36")]

# What they need besides comes with Spark.
ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def jars(folder: str, artifacts: Sequence[Artifact]) -> list[Path]:
    """Exactly these jars, or Unavailable."""
    target = CACHE / folder
    found = [target / f"{name}-{version}.jar" for _, name, version in artifacts]
    if not all(path.exists() for path in found):
        _fetch(target, artifacts)
    return found


def with_dependencies(folder: str, artifacts: Sequence[Artifact]) -> Path:
    """A folder with these jars and with all that they need, or Unavailable."""
    target = CACHE / folder
    if not target.exists():
        _fetch(target, artifacts, alone="")
    return target


def class_path(found: Sequence[Path]) -> dict[str, str]:
    """Settings of a Spark session that has them."""
    return {"spark.jars": ",".join(map(str, found)), "spark.driver.extraClassPath": ":".join(map(str, found))}


def _fetch(target: Path, artifacts: Sequence[Artifact], alone: str = ALONE) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(f"{artifacts[0][1]} is not in {target} and there is no mvn on PATH to fetch it")
    dependencies = "".join(
        f"<dependency><groupId>{g}</groupId><artifactId>{a}</artifactId><version>{v}</version>{alone}</dependency>"
        for g, a, v in artifacts
    )
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as work:
        Path(work, "pom.xml").write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>headrace</groupId><artifactId>reference</artifactId>"
            f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
        )
        command = [maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={work}/jars"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(f"mvn could not fetch {artifacts[0][1]}: {(done.stdout + done.stderr).strip()[-500:]}")
        shutil.rmtree(target, ignore_errors=True)
        Path(work, "jars").rename(target)
