"""What a write checks on the driver, without Spark running: columns and options, each refusal with its fix."""

import datetime
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs headrace[spark]")

from headrace.client.columnar.rows import HEADERS_TYPE
from headrace.records.compression import Codec
from headrace.spark.formats.ddl import parse_ddl
from headrace.spark.options import OptionError
from headrace.spark.sink.options import SinkOptions
from headrace.spark.sink.rows import SchemaError, chunks, timestamps_of, with_dedup_headers
from headrace.spark.sink.setup import WriteSetup

SERVER = {"kafka.bootstrap.servers": "127.0.0.1:1"}


def setup(ddl: str, overwrite: bool = False, **options: str) -> WriteSetup:
    return WriteSetup(parse_ddl(ddl), {**SERVER, **options}, overwrite, is_stream=False)


def test_columns_get_their_meaning_by_name_whatever_their_case() -> None:
    layout = setup(
        "Other INT, VALUE STRING, Key BINARY, topic STRING, partition INT, headers ARRAY<STRUCT<k: STRING, v: BINARY>>"
    ).layout
    assert (layout.value, layout.key, layout.topic, layout.partition, layout.headers) == (1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("ddl", "options", "words"),
    [
        ("value BIGINT", {"topic": "t"}, "column 'value' is bigint, but must be string or binary: use CAST"),
        ("key BIGINT, value STRING", {"topic": "t"}, "column 'key' is bigint, but must be string or binary"),
        ("other STRING", {"topic": "t"}, "no column 'value'"),
        ("value STRING", {}, "nothing says which topic to write to: set option 'topic', or add a column 'topic'"),
        ("topic INT, value STRING", {}, "column 'topic' is int, but must be string"),
        ("partition BIGINT, value STRING", {"topic": "t"}, "column 'partition' is bigint, but must be int"),
        ("headers ARRAY<INT>, value STRING", {"topic": "t"}, "must be array<struct<key:string,value:binary>>"),
        ("value STRING", {"topic": "t", "timestampColumn": "at"}, "no column 'at', which option timestampColumn names"),
        ("at STRING, value STRING", {"topic": "t", "timestampColumn": "at"}, "must be timestamp"),
        ("value STRING, VALUE STRING", {"topic": "t"}, "differ only in case"),
        ("key STRING", {"topic": "t", "valueFormat": "json"}, "no column is left to be encoded"),
        ("value STRING", {"topic": "t", "valueFormat": "json"}, "valueFormat encodes a struct"),
    ],
)
def test_columns_that_cannot_be_written(ddl: str, options: Any, words: str) -> None:
    with pytest.raises(SchemaError) as caught:
        setup(ddl, **options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "a b"}, "is not a topic name"),
        ({"deadLetterTopic": "a/b", "badRows": "deadLetter", "valueFormat": "json"}, "is not a topic name"),
        ({"kafka.acks": "1"}, "waits for all in-sync replicas; set all"),
        ({"kafka.enable.idempotence": "false"}, "retries would double records"),
        ({"kafka.partitioner.ignore.keys": "true"}, "set the column partition"),
        ({"kafka.compression.type": "brotli"}, "must be one of none, gzip"),
        ({"kafka.compression.type": "gzip", "kafka.compression.gzip.level": "11"}, "from 1 to 9"),
        ({"kafka.linger": "1"}, "did you mean 'kafka.linger.ms'?"),
        ({"topc": "1"}, "did you mean 'topic'?"),
        ({"kafka.max.in.flight.requests.per.connection": "6"}, "set 1 to 5"),
        ({"badRows": "deadLetter", "valueFormat": "json"}, "'deadLetterTopic' is missing"),
        ({"deadLetterTopic": "d", "valueFormat": "json"}, "set badRows to deadLetter"),
        ({"badRows": "deadLetter", "deadLetterTopic": "d"}, "without valueFormat no row can be bad"),
        ({"valueSchema": "id INT"}, "valueFormat is not: set it"),
        (
            {"kafka.sasl.mechanism": "PLAIN"},
            "'kafka.security.protocol' is missing: without it kafka.sasl.mechanism has no effect",
        ),
        ({"kafka.transactional.id": "t"}, "delivery=exactly-once writes in transactions"),
        ({"delivery": "twice"}, "must be one of at-least-once, exactly-once"),
        ({"writeId": "w"}, "set delivery to exactly-once"),
        ({"kafka.value.serializer": "x"}, "values are bytes"),
        ({"dedupHeaders": "maybe"}, "true or false"),
        ({"kafka.bootstrap.servers": "::"}, "not an address"),
    ],
)
def test_options_that_cannot_be_used(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        SinkOptions.read({**SERVER, "topic": "t", **options})
    assert words in str(caught.value)


def test_a_missing_server_and_an_overwrite_are_refused() -> None:
    with pytest.raises(OptionError, match=r"kafka\.bootstrap\.servers.*127\.0\.0\.1:9092"):
        SinkOptions.read({"topic": "t"})
    with pytest.raises(OptionError, match=r"use \.mode\('append'\)"):
        setup("value STRING", overwrite=True, topic="t")


def test_options_of_kafkas_producer_mean_the_same() -> None:
    found = SinkOptions.read(
        {**SERVER, "topic": "t", "kafka.compression.type": "zstd", "kafka.compression.zstd.level": "7",
         "kafka.batch.size": "5000",
         "kafka.linger.ms": "5", "kafka.retries": "3", "KAFKA.Request.Timeout.MS": "700"}
    )  # fmt: skip
    assert (found.codec, found.level, found.batch_bytes, found.request_timeout_ms) == (Codec.ZSTD, 7, 5000, 700)
    pickle.loads(pickle.dumps(setup("value STRING", topic="t")))


def test_small_arrow_batches_are_joined_and_none_is_lost() -> None:
    batches = [pa.record_batch({"value": pa.array([b"x" * 100] * rows)}) for rows in (3, 0, 50, 1, 200, 2)]
    found = list(chunks(iter(batches), size_bytes=5000))
    assert [batch.num_rows for batch in found] == [53, 201, 2]


def test_times_are_taken_in_milliseconds_and_nulls_are_now() -> None:
    at = datetime.datetime(2024, 1, 1, 0, 0, 0, 1999, datetime.UTC)
    column = pa.array(
        [at, None, datetime.datetime(1969, 12, 31, 23, 59, 59, 999_500, datetime.UTC)], pa.timestamp("us", "UTC")
    )
    assert timestamps_of(column, 77).tolist() == [1_704_067_200_001, 77, -1]
    assert timestamps_of(pa.array([5, None], pa.int64()), 77).tolist() == [5, 77]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"])
def test_times_are_the_same_in_any_zone_also_in_the_hour_that_comes_twice(zone: str) -> None:
    first_ms = 1_729_900_800_000  # the day before Berlin's clocks go back; New York's do a week later
    times = [first_ms + minute * 60_000 for minute in range(0, 12 * 24 * 60, 10)]
    column = pa.array([one * 1000 + 999 for one in times], pa.int64()).cast(pa.timestamp("us", zone))
    assert timestamps_of(column, 77).tolist() == times


@pytest.mark.parametrize("lead", [0, 2])
def test_marks_stand_behind_a_records_own_headers(lead: int) -> None:
    rows = [None, [{"key": "a", "value": None}], [], [{"key": "b", "value": b"1"}, {"key": "c", "value": b"2"}]]
    given = pa.array([*[[{"key": "skipped", "value": b"x"}]] * lead, *rows], HEADERS_TYPE)[lead:]
    found = with_dedup_headers(given, ("q", "3", "1"), 10, 4)
    found.validate(full=True)
    for row, headers in enumerate(found.to_pylist()):
        own = [(one["key"], one["value"]) for one in rows[row] or ()]
        marks = list(
            zip(
                ("headrace.query", "headrace.batch", "headrace.partition", "headrace.row"),
                (b"q", b"3", b"1", b"%d" % (10 + row)),
            )
        )
        assert [(one["key"], one["value"]) for one in headers] == own + marks
    assert len(with_dedup_headers(None, ("q", "3", "1"), 0, 2)) == 2 and np.all(
        with_dedup_headers(None, ("q", "3", "1"), 0, 2).value_lengths() == pa.array([4, 4], pa.int32())
    )
