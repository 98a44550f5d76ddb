"""Jars of others, for comparison and for tests of what needs them: fetched once by Maven into a folder beside the
caches."""

from collections.abc import Sequence
from pathlib import Path

from headrace.local_cluster.maven import Artifact, NotFetched, fetch
from tests.reference.apache import Unavailable

CACHE = Path("~/.cache/headrace").expanduser()


KAFKA_3 = "3.9.1"
"""The last Kafka that ran on ZooKeeper."""
KAFKA_3_ARTIFACTS = [("org.apache.kafka", "kafka_2.13", KAFKA_3), ("org.slf4j", "slf4j-nop", "1.7.36")]


def jars(folder: str, artifacts: Sequence[Artifact]) -> list[Path]:
    """Exactly these jars, or Unavailable."""
    target = CACHE / folder
    found = [target / f"{name}-{version}.jar" for _, name, version in artifacts]
    if not all(path.exists() for path in found):
        # What they need besides comes with Spark.
        _fetch(target, artifacts, alone=True)
    return found


def with_dependencies(folder: str, artifacts: Sequence[Artifact]) -> Path:
    """A folder with these jars and with all that they need, or Unavailable."""
    target = CACHE / folder
    if not target.exists():
        _fetch(target, artifacts, alone=False)
    return target


def class_path(found: Sequence[Path]) -> dict[str, str]:
    """Settings of a Spark session that has them."""
    return {"spark.jars": ",".join(map(str, found)), "spark.driver.extraClassPath": ":".join(map(str, found))}


def _fetch(target: Path, artifacts: Sequence[Artifact], *, alone: bool) -> None:
    try:
        fetch(target, artifacts, alone=alone)
    except NotFetched as why:
        raise Unavailable(f"{artifacts[0][1]} is not in {target}: {why}") from None
