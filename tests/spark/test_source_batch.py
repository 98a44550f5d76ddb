"""Batch reads: every option against the rows it must give, and losses, damage and refusals."""

import datetime as dt
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace.client.admin.groups import Groups
from headrace.records.batch import HEADER_BYTES, Record, iter_headers
from headrace.records.compression import Codec
from headrace.testing.broker import TestBroker
from tests.spark.source_data import T0, admin, make, put, put_numbers

FIRST = [
    Record(0, T0, b"k0", b"v0", (("a", b"1"), ("b", None))),
    Record(0, T0 + 1000, None, b"v1"),
    Record(0, T0 + 2000, b"", None, (("é", b""),)),
    Record(0, T0 + 3000, b"k3", b""),
]
SECOND = [Record(0, T0 + 500 * i, b"k", b"w%d" % i) for i in range(20)]


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker() as running:
        make(running.bootstrap, "src", 3)
        put(running.bootstrap, "src", {0: [FIRST[:2], FIRST[2:]]})
        put(running.bootstrap, "src", {1: [SECOND[:7], SECOND[7:]]}, compression=Codec.LZ4)
        yield running


@pytest.fixture(scope="module")
def read(spark: SparkSession, broker: TestBroker) -> Callable[..., DataFrame]:
    def load(schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("headrace").option("kafka.bootstrap.servers", broker.bootstrap)
        options = {"subscribe": "src"} | options
        for name, value in options.items():
            if value is not None:
                reader = reader.option(name.replace("__", "."), value)
        return reader.schema(schema).load() if schema else reader.load()

    return load


def offsets(frame: DataFrame) -> dict[int, list[int]]:
    """partition -> offsets, in order."""
    found: dict[int, list[int]] = {}
    for row in frame.select("partition", "offset").collect():
        found.setdefault(row["partition"], []).append(row["offset"])
    return {partition: sorted(rows) for partition, rows in sorted(found.items())}


EVERYTHING = {0: list(range(4)), 1: list(range(20))}


def test_all_columns_of_sparks_kafka_source(read: Callable[..., DataFrame]) -> None:
    frame = read(includeHeaders="true")
    assert (
        frame.schema.simpleString()
        == "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    rows = frame.where("partition = 0").orderBy("offset").collect()
    assert [row["key"] for row in rows] == [b"k0", None, b"", b"k3"]
    assert [row["value"] for row in rows] == [b"v0", b"v1", None, b""]
    assert [row["headers"] and [tuple(pair) for pair in row["headers"]] for row in rows] == [
        [("a", b"1"), ("b", None)], None, [("é", b"")], None,
    ]  # fmt: skip
    assert {(row["topic"], row["timestampType"]) for row in rows} == {("src", 0)}
    when = frame.selectExpr("unix_millis(timestamp) AS ms", "offset").where("partition = 0").orderBy("offset").collect()
    assert [row["ms"] for row in when] == [T0, T0 + 1000, T0 + 2000, T0 + 3000]
    assert "headers" not in read().columns


def test_values_of_every_codec(spark: SparkSession, broker: TestBroker, read: Callable[..., DataFrame]) -> None:
    for codec in Codec:
        make(broker.bootstrap, f"codec-{codec.name}")
        put(broker.bootstrap, f"codec-{codec.name}", {0: [SECOND]}, compression=codec)
    frame = read(subscribe=None, subscribePattern="codec-.*", columns="topic,value")
    found = frame.groupBy("topic").agg({"value": "count"}).collect()
    assert sorted(tuple(row) for row in found) == sorted((f"codec-{codec.name}", 20) for codec in Codec)
    assert {row["value"] for row in frame.collect()} == {b"w%d" % i for i in range(20)}


def test_topics_by_list_pattern_and_assignment(broker: TestBroker, read: Callable[..., DataFrame]) -> None:
    make(broker.bootstrap, "src2")
    put_numbers(broker.bootstrap, "src2", 0, range(3))
    assert read(subscribe="src, src2").count() == 27
    # A pattern matches whole names.
    assert read(subscribe=None, subscribePattern="src").count() == 24
    assert read(subscribe=None, subscribePattern="src.?").count() == 27
    assert offsets(read(subscribe=None, assign='{"src": [1, 2]}')) == {1: list(range(20))}


@pytest.mark.parametrize(
    "options, expected",
    [
        ({}, EVERYTHING),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, EVERYTHING),
        ({"startingOffsets": '{"src": {"0": 1, "1": 18, "2": -2}}'}, {0: [1, 2, 3], 1: [18, 19]}),
        ({"endingOffsets": '{"src": {"0": 2, "1": -1, "2": 0}}'}, {0: [0, 1], 1: list(range(20))}),
        (
            {"startingOffsets": '{"src": {"0": 3, "1": 5, "2": -2}}',
             "endingOffsets": '{"src": {"0": 4, "1": 9, "2": -1}}'},
            {0: [3], 1: [5, 6, 7, 8]},
        ),
        ({"startingTimestamp": str(T0 + 2500), "startingOffsetsByTimestampStrategy": "latest"}, {0: [3],
         1: list(range(5, 20))}),
        (
            {
                "startingOffsetsByTimestamp": json.dumps({"src": {"0": T0 + 1, "1": T0 + 9500, "2": 0}}),
                "startingOffsetsByTimestampStrategy": "latest",
            },
            {0: [1, 2, 3], 1: [19]},
        ),
        ({"endingTimestamp": str(T0 + 1000)}, {0: [0], 1: [0, 1]}),
        ({"endingOffsetsByTimestamp": json.dumps({"src": {"0": T0 + 3000, "1": T0 + 999_999, "2": 0}})}, {0: [0, 1, 2],
         1: list(range(20))}),
    ],
)  # fmt: skip
def test_where_a_read_starts_and_ends(read: Callable[..., DataFrame], options: Any, expected: Any) -> None:
    assert offsets(read(**options)) == expected


def test_a_group_is_taken_up_where_it_was(broker: TestBroker, read: Callable[..., DataFrame]) -> None:
    admin(broker.bootstrap, lambda client: Groups(client).commit("old-job", {("src", 1): 15}))
    # What the group has never committed is new to it.
    assert offsets(read(startingOffsets="group:old-job")) == {0: [0, 1, 2, 3], 1: [15, 16, 17, 18, 19]}


def test_columns_by_option_and_by_schema(read: Callable[..., DataFrame]) -> None:
    assert read(columns="offset, value").schema.simpleString() == "struct<offset:bigint,value:binary>"
    assert read(columns="OFFSET,Value").where("offset = 1").count() == 2
    frame = read(schema="value binary, headers array<struct<key: string, value: binary>>, offset long")
    rows = frame.where("value = X'7630'").collect()
    assert [(bytes(row["value"]), row["headers"][0]["key"], row["offset"]) for row in rows] == [(b"v0", "a", 0)]
    assert read(columns="partition").distinct().count() == 2


def test_ranges_are_split_over_tasks(read: Callable[..., DataFrame]) -> None:
    assert read().rdd.getNumPartitions() == 2
    assert read(minPartitions="8").rdd.getNumPartitions() == 8
    assert read(maxRecordsPerPartition="5").rdd.getNumPartitions() == 5
    assert offsets(read(minPartitions="8", maxRecordsPerPartition="3")) == EVERYTHING


def test_an_empty_read(read: Callable[..., DataFrame]) -> None:
    assert read(subscribe=None, assign='{"src": [2]}').count() == 0


def test_filters_narrow_what_is_fetched(spark: SparkSession, read: Callable[..., DataFrame]) -> None:
    from pyspark.sql.functions import col

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        # A frame for each query: Spark keeps the ranges of the first for all that use the same one.
        assert offsets(read(pushFilters="true").where("partition = 1 AND offset >= 5 AND offset < 8")) == {1: [5, 6, 7]}
        assert offsets(read(pushFilters="true").where("offset IN (3, 19)")) == {0: [3], 1: [3, 19]}
        late = dt.datetime.fromtimestamp((T0 + 9000) / 1000, dt.UTC)
        assert offsets(read(pushFilters="true").where(col("timestamp") > late)) == {1: [19]}
        assert offsets(read(pushFilters="true").where("partition = 0 OR offset = 2")) == {0: [0, 1, 2, 3], 1: [2]}
        assert read(pushFilters="true").where("partition = 1 AND offset >= 15").rdd.getNumPartitions() == 1
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


def test_narrowing_of_ranges() -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThanOrEqual, Not

    from headrace.spark.source.filters import FilterBounds
    from headrace.spark.source.lookup import Lookup
    from headrace.spark.source.offsets import OffsetRange

    class Times:
        def first_at(self, timestamp_ms: int, partitions: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
            assert timestamp_ms == T0
            return {one: 40 if one[1] == 0 else -1 for one in partitions}

    ranges = [OffsetRange("a", 0, 0, 100), OffsetRange("a", 1, 0, 100), OffsetRange("b", 2, 0, 100)]
    bounds = FilterBounds()
    for one in (
        In(("partition",), (0, 1)),
        GreaterThan(("offset",), 9),
        LessThanOrEqual(("offset",), 59),
        EqualTo(("value",), b"x"),
    ):
        bounds.take(one)
    bounds.take(Not(EqualTo(("partition",), 0)))
    times = cast(Lookup, Times())
    assert bounds.narrow(ranges, times) == [OffsetRange("a", 0, 10, 60), OffsetRange("a", 1, 10, 60)]
    bounds.take(GreaterThan(("timestamp",), dt.datetime.fromtimestamp(T0 / 1000, dt.UTC)))
    assert [one.size for one in bounds.narrow(ranges, times)] == [20, 0]


def test_expired_offsets_fail_or_are_passed_over(broker: TestBroker, read: Callable[..., DataFrame]) -> None:
    make(broker.bootstrap, "expired")
    put_numbers(broker.bootstrap, "expired", 0, range(100), per_batch=10)
    admin(broker.bootstrap, lambda client: client.delete_records("expired", {0: 35}))
    options = {"subscribe": "expired", "startingOffsets": '{"expired": {"0": 5}}'}
    with pytest.raises(Exception, match=r"offset 5 is wanted, but the log holds 35 to 100.*failOnDataLoss to false"):
        read(**options).count()
    frame = read(**options, failOnDataLoss="false")
    assert offsets(frame) == {0: list(range(35, 100))}


def test_a_range_beyond_the_end_fails_or_ends_early(broker: TestBroker, read: Callable[..., DataFrame]) -> None:
    options = {"endingOffsets": '{"src": {"0": 4, "1": 30, "2": 0}}', "kafkaConsumer__pollTimeoutMs": "1000"}
    with pytest.raises(Exception, match="failOnDataLoss"):
        read(**options).count()
    assert offsets(read(**options, failOnDataLoss="false")) == EVERYTHING


def test_large_amounts_through_the_kernels(broker: TestBroker, read: Callable[..., DataFrame]) -> None:
    make(broker.bootstrap, "large", 2)
    for partition in (0, 1):
        put_numbers(broker.bootstrap, "large", partition, range(60_000), per_batch=3000)
    frame = read(subscribe="large").selectExpr("CAST(CAST(value AS STRING) AS INT) AS n", "offset", "partition")
    assert frame.where("n != offset").count() == 0
    assert [tuple(row) for row in frame.groupBy("partition").agg({"n": "sum"}).orderBy("partition").collect()] == [
        (0, 1_799_970_000), (1, 1_799_970_000),
    ]  # fmt: skip
    # Small answers, so that ranges are put together from many.
    assert (
        read(subscribe="large", kafka__max__partition__fetch__bytes="1000", maxRecordsPerPartition="7001").count()
        == 120_000
    )


def test_damaged_records_are_named_with_where_they_lie(spark: SparkSession, tmp_path: Path) -> None:
    with TestBroker(tmp_path) as running:
        make(running.bootstrap, "hurt")
        put_numbers(running.bootstrap, "hurt", 0, range(100), per_batch=10)
        # Under a broker that runs, which trusts what it has written itself until it is scrubbed.
        segment = next((running.data).rglob("hurt-0/*.log"))
        data = segment.read_bytes()
        place = [at for at, _ in iter_headers(data)][5] + HEADER_BYTES + 3
        with segment.open("r+b") as file:
            file.seek(place)
            file.write(bytes([data[place] ^ 0xFF]))
        reader = (
            spark.read.format("headrace")
            .option("kafka.bootstrap.servers", running.bootstrap)
            .option("subscribe", "hurt")
        )
        with pytest.raises(Exception, match=r"hurt-0, between offsets 0 and 100.*CRC mismatch"):
            reader.load().count()
        assert reader.option("endingOffsets", '{"hurt": {"0": 40}}').load().count() == 40


@pytest.mark.parametrize(
    "schema, options, message",
    [
        (None, {"subscribe": "no-such-topic"}, "there is no topic 'no-such-topic': create it first"),
        (None, {"subscribe": None, "assign": '{"src": [0, 9]}'}, "'assign' names partitions that do not exist: src-9"),
        (None, {"startingOffsets": '{"src": {"0": 1}}'}, "'startingOffsets' must name exactly.*src-1, src-2"),
        (None, {"startingTimestamp": str(T0 + 999_999)},
         "has no record at or after.*startingOffsetsByTimestampStrategy to latest"),
        (None, {"startingOffsets": "group:nobody"}, "group 'nobody' has committed nothing"),
        (None, {"columns": "value,size"}, "'columns' names 'size': there are key"),
        ("value string", {}, "the schema says value is string: it is binary"),
        ("worth binary", {}, "the schema has a column 'worth'"),
        ("value binary NOT NULL", {}, "never null"),
        (None, {"subscibe": "src"}, "did you mean 'subscribe'"),
    ],
)  # fmt: skip
def test_refusals_before_any_task_runs(
    spark: SparkSession, read: Callable[..., DataFrame], schema: str | None, options: Any, message: str
) -> None:
    tracker = spark.sparkContext.statusTracker()
    with pytest.raises(Exception, match=message):
        read(schema=schema, **options).collect()
    assert not tracker.getActiveStageIds()


def test_no_broker_is_said_at_once(spark: SparkSession, read: Callable[..., DataFrame]) -> None:
    with pytest.raises(Exception, match=r"cannot connect to 127.0.0.1:1: connection refused"):
        read(kafka__bootstrap__servers="127.0.0.1:1", fetchOffset__numRetries="0").collect()


def test_the_reader_of_tasks_travels(read: Callable[..., DataFrame], broker: TestBroker) -> None:
    import pickle

    from headrace.spark.source.batch import batch_reader
    from headrace.spark.source.schema import source_schema

    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "src"}
    reader = pickle.loads(pickle.dumps(batch_reader(source_schema(options), options)))
    parts = reader.partitions()
    assert sum(batch.num_rows for part in parts for batch in reader.read(pickle.loads(pickle.dumps(part)))) == 24


def test_the_first_rows_of_a_task_go_ahead_of_the_rest(broker: TestBroker) -> None:
    from headrace.spark.source.batch import batch_reader
    from headrace.spark.source.range_reader import FIRST_ROWS
    from headrace.spark.source.schema import source_schema

    make(broker.bootstrap, "ahead")
    put_numbers(broker.bootstrap, "ahead", 0, range(1000))
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "ahead"}
    reader = batch_reader(source_schema(options), options)
    (part,) = reader.partitions()
    batches = list(reader.read(part))
    assert [batch.num_rows for batch in batches] == [FIRST_ROWS, 1000 - FIRST_ROWS]
    assert [int(value) for batch in batches for value in batch.column("value").to_pylist()] == list(range(1000))
