"""Typed values through Spark: written by the sink, read by the source, bad ones in the dead-letter topic."""

import datetime
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace.testing.broker import TestBroker
from tests.registry.server import RegistryServer
from tests.spark.topics import make_topic, records_of

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None}],
    }
)
PROTO = 'syntax = "proto3"; message Order { int64 id = 1; optional string name = 2; }'
SCHEMAS = {"json": "id BIGINT, name STRING", "avro": AVRO, "protobuf": PROTO}


@pytest.fixture(scope="module")
def bootstrap(spark: SparkSession) -> Iterator[str]:
    with TestBroker() as broker:
        yield broker.bootstrap


def write(frame: DataFrame, bootstrap: str, **options: Any) -> None:
    frame.write.format("headrace").mode("append").options(**{"kafka.bootstrap.servers": bootstrap, **options}).save()


def read(spark: SparkSession, bootstrap: str, topic: str, **options: Any) -> DataFrame:
    return (
        spark.read.format("headrace")
        .options(**{"kafka.bootstrap.servers": bootstrap, "subscribe": topic, **options})
        .load()
    )


@pytest.mark.parametrize("kind", list(SCHEMAS))
def test_columns_written_typed_are_read_typed(spark: SparkSession, bootstrap: str, kind: str) -> None:
    topic = f"typed-{kind}"
    make_topic(bootstrap, topic, partitions=2)
    options = {"valueFormat": kind, "valueSchema": SCHEMAS[kind]}
    frame = spark.range(1000).selectExpr(
        "CAST(id AS STRING) AS key", "id", "IF(id % 2 = 0, concat('n', id), NULL) AS name"
    )
    write(frame, bootstrap, topic=topic, **options)
    rows = read(spark, bootstrap, topic, **options).selectExpr("CAST(key AS STRING)", "value.*").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(str(i), i, f"n{i}" if i % 2 == 0 else None) for i in range(1000)]


def test_a_registry_keeps_the_schema_between_writer_and_reader(spark: SparkSession, bootstrap: str) -> None:
    make_topic(bootstrap, "typed-registry")
    with RegistryServer() as registry:
        options = {"valueFormat": "avro", "valueSchemaRegistry": registry.url}
        frame = spark.sql("SELECT struct(id, timestamp_micros(id) AS at, array(id) AS all) AS value FROM range(10)")
        write(frame, bootstrap, topic="typed-registry", **options)
        found = read(spark, bootstrap, "typed-registry", **options)
        assert found.schema["value"].dataType.simpleString() == "struct<id:bigint,at:timestamp,all:array<bigint>>"
        rows = sorted(tuple(row) for row in found.select("value.*").collect())
        assert rows[3][0] == 3 and rows[3][2] == [3] and isinstance(rows[3][1], datetime.datetime)


def test_bad_values_fail_the_read_by_default_and_are_named(spark: SparkSession, bootstrap: str) -> None:
    make_topic(bootstrap, "typed-bad")
    write(spark.sql('SELECT \'{"id": "x"}\' AS value'), bootstrap, topic="typed-bad")
    with pytest.raises(Exception, match="typed-bad-0 offset 0: the value is not json") as caught:
        read(spark, bootstrap, "typed-bad", valueFormat="json", valueSchema="id BIGINT").collect()
    assert "got `str` - at `$.id`" in str(caught.value) and "Set badRows=deadLetter" in str(caught.value)


def test_bad_values_of_a_read_go_to_the_dead_letter_topic(spark: SparkSession, bootstrap: str) -> None:
    make_topic(bootstrap, "typed-mixed")
    make_topic(bootstrap, "typed-mixed-dead")
    frame = spark.sql(
        """SELECT CAST(id AS STRING) AS key, IF(id % 10 = 7, 'oops', concat('{"id":', id, '}')) AS value,
                  array(struct('h' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value)) AS headers FROM range(100)"""
    )
    write(frame, bootstrap, topic="typed-mixed")
    found = read(
        spark, bootstrap, "typed-mixed", valueFormat="json", valueSchema="id BIGINT", badRows="deadLetter",
        deadLetterTopic="typed-mixed-dead", columns="value",
    )  # fmt: skip
    assert sorted(row.value.id for row in found.collect()) == [i for i in range(100) if i % 10 != 7]
    letters = [r for rs in records_of(bootstrap, "typed-mixed-dead").values() for r in rs]
    assert sorted(int(r.key or b"") for r in letters) == list(range(7, 100, 10)) and all(
        r.value == b"oops" for r in letters
    )
    headers = dict(letters[0].headers)
    assert headers["h"] == letters[0].key and headers["headrace.error.topic"] == b"typed-mixed"
    assert headers["headrace.error.format"] == b"json" and b"malformed" in (headers["headrace.error.reason"] or b"")
    assert headers["headrace.error.partition"] == b"0" and (headers["headrace.error.offset"] or b"").isdigit()
    kept = read(
        spark, bootstrap, "typed-mixed", valueFormat="json", valueSchema="id BIGINT", badRows="deadLetter",
        deadLetterTopic="typed-mixed-dead", columns="key,value", errorColumn="why",
    ).collect()  # fmt: skip
    assert sorted(int(row.key) for row in kept if row.why is not None) == list(range(7, 100, 10))
    assert all((row.value is None) == (row.why is not None) for row in kept) and len(kept) == 100


def test_rows_that_cannot_be_encoded_go_to_the_dead_letter_topic(spark: SparkSession, bootstrap: str) -> None:
    make_topic(bootstrap, "typed-out")
    make_topic(bootstrap, "typed-out-dead")
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]})
    frame = spark.sql("SELECT IF(id = 2, NULL, id) AS id, CAST(id AS STRING) AS key FROM range(5)")
    options = {"valueFormat": "avro", "valueSchema": schema}
    write(frame, bootstrap, topic="typed-out", badRows="deadLetter", deadLetterTopic="typed-out-dead", **options)
    assert sorted(int(r.key or b"") for rs in records_of(bootstrap, "typed-out").values() for r in rs) == [0, 1, 3, 4]
    (letter,) = (r for rs in records_of(bootstrap, "typed-out-dead").values() for r in rs)
    assert letter.key == b"2" and letter.value == b"{}" and dict(letter.headers)["headrace.error.topic"] == b"typed-out"
    with pytest.raises(Exception, match="cannot be encoded as avro"):
        write(frame, bootstrap, topic="typed-out", **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"valueFormat": "json"}, "needs the schema"),
        ({"valueFormat": "avro", "valueSchemaRegistry": "http://127.0.0.1:1"}, "cannot be asked"),
    ],
)
def test_bad_formats_are_refused_when_the_read_is_planned(
    spark: SparkSession, bootstrap: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(Exception) as caught:
        read(spark, bootstrap, "typed-json", **options)
    assert words in str(caught.value)
