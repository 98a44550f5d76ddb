"""Spark's own Kafka connector, for comparison: its jars, and how to put them before a session."""

from pathlib import Path

from tests.reference import maven

# Built for Spark 4.2 and 4.0, the newest that exist; they load on 4.3.
ARTIFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)


def jars() -> list[Path]:
    """The connector's jars, or Unavailable."""
    return maven.jars("spark-kafka-4.2.0", ARTIFACTS)


def class_path() -> dict[str, str]:
    """Settings of a session that has the connector."""
    return maven.class_path(jars())
