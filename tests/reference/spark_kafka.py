"""Spark's own Kafka connector, for comparison: its jars, fetched once by Maven, and how to put them before a session."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.reference.apache import Unavailable

# Built for Spark 4.2 and 4.0, the newest that exist; they load on 4.3.
ARTIFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)
FOLDER = Path("~/.cache/headrace").expanduser() / "spark-kafka-4.2.0"
# What they need besides comes with Spark.
ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def jars() -> list[Path]:
    """The connector's jars, or Unavailable."""
    found = [FOLDER / f"{name}-{version}.jar" for _, name, version in ARTIFACTS]
    if not all(path.exists() for path in found):
        _fetch()
    return found


def class_path() -> dict[str, str]:
    """Settings of a session that has the connector."""
    return {"spark.jars": ",".join(map(str, jars())), "spark.driver.extraClassPath": ":".join(map(str, jars()))}


def _fetch() -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(f"Spark's Kafka connector is not in {FOLDER} and there is no mvn on PATH to fetch it")
    dependencies = "".join(
        f"<dependency><groupId>{g}</groupId><artifactId>{a}</artifactId><version>{v}</version>{ALONE}</dependency>"
        for g, a, v in ARTIFACTS
    )
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER.parent) as work:
        Path(work, "pom.xml").write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>headrace</groupId><artifactId>reference</artifactId>"
            f"<version>1</version><packaging>pom</packaging><dependencies>{dependencies}</dependencies></project>"
        )
        command = [maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={work}/jars"]
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(f"mvn could not fetch Spark's Kafka connector: {(done.stdout + done.stderr).strip()[-500:]}")
        shutil.rmtree(FOLDER, ignore_errors=True)
        Path(work, "jars").rename(FOLDER)
