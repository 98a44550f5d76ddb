"""Batch writes: each column and option against what is then in the topic, and refusals before any task runs."""

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace.client.produce.partitioner import partition_for_key
from headrace.testing.broker import TestBroker
from tests.spark.topics import make_topic, records_of


@pytest.fixture(scope="module")
def bootstrap(spark: SparkSession) -> Iterator[str]:
    from headrace.spark.datasource import HeadraceDataSource

    spark.dataSource.register(HeadraceDataSource)
    with TestBroker() as broker:
        yield broker.bootstrap


def write(frame: DataFrame, bootstrap: str, **options: Any) -> None:
    writer = frame.write.format("headrace").mode("append").option("kafka.bootstrap.servers", bootstrap)
    for name, value in options.items():
        writer = writer.option(name.replace("__", "."), value)
    writer.save()


def test_keys_and_values_arrive_where_kafkas_clients_would_put_them(spark: SparkSession, bootstrap: str) -> None:
    make_topic(bootstrap, "sink-basic", partitions=3)
    frame = spark.range(5000).selectExpr("CAST(id AS STRING) AS key", "concat('v', id) AS value")
    write(frame, bootstrap, topic="sink-basic")
    found = records_of(bootstrap, "sink-basic")
    rows = [(r.key, r.value) for records in found.values() for r in records]
    assert sorted(rows) == sorted((b"%d" % i, b"v%d" % i) for i in range(5000))
    for partition, records in found.items():
        assert records and all(partition_for_key(r.key or b"", 3) == partition for r in records)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(spark: SparkSession, bootstrap: str, codec: str) -> None:
    topic = f"sink-codec-{codec}"
    make_topic(bootstrap, topic)
    write(
        spark.range(1000).selectExpr("repeat(id, 9) AS value"), bootstrap, topic=topic, kafka__compression__type=codec
    )
    values = sorted(r.value or b"" for records in records_of(bootstrap, topic).values() for r in records)
    assert values == sorted(str(i).encode() * 9 for i in range(1000))


def test_topic_partition_headers_and_time_columns(spark: SparkSession, bootstrap: str) -> None:
    make_topic(bootstrap, "sink-a", partitions=2)
    make_topic(bootstrap, "sink-b", partitions=2)
    frame = spark.sql("""SELECT IF(id % 2 = 0, 'sink-a', 'sink-b') AS topic, IF(id < 10, 1, NULL) AS partition,
                  CAST(NULL AS BINARY) AS key, CAST(CAST(id AS STRING) AS BINARY) AS value,
                  timestamp_millis(1700000000000 + id) AS at,
                  IF(id = 3, NULL, array(struct('n' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value),
                                         struct('null' AS key, CAST(NULL AS BINARY) AS value))) AS headers,
                  'ignored' AS other
           FROM range(20)""")
    write(frame, bootstrap, timestampColumn="at")
    a, b = records_of(bootstrap, "sink-a"), records_of(bootstrap, "sink-b")
    assert sorted(int(r.value or b"") for rs in a.values() for r in rs) == list(range(0, 20, 2))
    for r in a[1] + b[1]:
        number = int(r.value or b"")
        assert r.timestamp == 1700000000000 + number
        assert r.headers == (() if number == 3 else (("n", r.value), ("null", None)))
    assert {int(r.value or b"") for r in a[1] + b[1]} >= set(range(10))


def test_rows_without_keys_spread_over_partitions_in_batches(spark: SparkSession, bootstrap: str) -> None:
    make_topic(bootstrap, "sink-sticky", partitions=3)
    write(
        spark.range(0, 20000, 1, 2).selectExpr("repeat('x', 90) AS value"),
        bootstrap,
        topic="sink-sticky",
        kafka__batch__size=65536,
    )
    counts = {p: len(rs) for p, rs in records_of(bootstrap, "sink-sticky").items()}
    assert sum(counts.values()) == 20000 and all(counts.values())


def test_dedup_headers_name_query_batch_partition_and_row(spark: SparkSession, bootstrap: str) -> None:
    make_topic(bootstrap, "sink-dedup")
    frame = spark.range(0, 6, 1, 2).selectExpr(
        "CAST(id AS STRING) AS value",
        "IF(id = 0, array(struct('own' AS key, CAST('1' AS BINARY) AS value)), NULL) AS headers",
    )
    write(frame, bootstrap, topic="sink-dedup", dedupHeaders="true")
    records = [r for rs in records_of(bootstrap, "sink-dedup").values() for r in rs]
    marks = [dict(r.headers) for r in records]
    assert len({mark["headrace.query"] for mark in marks}) == 1 and {mark["headrace.batch"] for mark in marks} == {b"0"}
    assert sorted((mark["headrace.partition"], mark["headrace.row"]) for mark in marks) == [
        (p, b"%d" % r) for p in (b"0", b"1") for r in range(3)
    ]
    own = [r for r in records if r.value == b"0"]
    assert own[0].headers[0] == ("own", b"1") and len(own[0].headers) == 5


def test_a_missing_topic_is_made_where_the_broker_makes_topics(spark: SparkSession, bootstrap: str) -> None:
    write(spark.range(3).selectExpr("CAST(id AS STRING) AS value"), bootstrap, topic="sink-auto")
    assert sum(len(rs) for rs in records_of(bootstrap, "sink-auto").values()) == 3


@pytest.mark.parametrize(
    ("select", "options", "words"),
    [
        ("id AS value", {"topic": "t"}, "column 'value' is bigint, but must be string or binary: use CAST"),
        ("'v' AS value", {"topic": "t", "topc": "1"}, "did you mean 'topic'?"),
    ],
)
def test_wrong_writes_are_refused_before_any_task(
    spark: SparkSession, bootstrap: str, select: str, options: dict[str, str], words: str
) -> None:
    with pytest.raises(Exception) as caught:
        write(spark.sql(f"SELECT {select} FROM range(1)"), bootstrap, **options)
    assert words in str(caught.value)


def test_overwriting_a_topic_is_refused(spark: SparkSession, bootstrap: str) -> None:
    writer = spark.range(1).selectExpr("'v' AS value").write.format("headrace").mode("overwrite")
    with pytest.raises(Exception, match="can only be appended to"):
        writer.option("kafka.bootstrap.servers", bootstrap).option("topic", "t").save()


def test_a_partition_that_does_not_exist_is_named(spark: SparkSession, bootstrap: str) -> None:
    make_topic(bootstrap, "sink-few", partitions=2)
    with pytest.raises(Exception, match="column 'partition' is 7 in a row, but topic 'sink-few' has 2 partitions"):
        write(spark.range(1).selectExpr("'v' AS value", "7 AS partition"), bootstrap, topic="sink-few")


def test_small_limits_of_a_topic_split_batches_rather_than_fail(spark: SparkSession, bootstrap: str) -> None:
    make_topic(bootstrap, "sink-narrow", configs={"max.message.bytes": "20000"})
    write(spark.range(3000).selectExpr("repeat('x', 90) AS value"), bootstrap, topic="sink-narrow")
    assert sum(len(rs) for rs in records_of(bootstrap, "sink-narrow").values()) == 3000
    with pytest.raises(Exception, match=r"max\.message\.bytes"):
        write(spark.range(1).selectExpr("repeat('x', 30000) AS value"), bootstrap, topic="sink-narrow")


def test_no_rows_write_nothing(spark: SparkSession, bootstrap: str) -> None:
    make_topic(bootstrap, "sink-none")
    write(spark.range(0).selectExpr("CAST(id AS STRING) AS value"), bootstrap, topic="sink-none")
    assert records_of(bootstrap, "sink-none") == {0: []}


def test_an_unreachable_broker_is_named_before_any_task(spark: SparkSession) -> None:
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        write(spark.range(1).selectExpr("'v' AS value"), "127.0.0.1:1", topic="t")
