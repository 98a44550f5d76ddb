"""Beside the originals: Spark's own Kafka connector against a Headrace broker, and format("headrace") against Apache
Kafka."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.records.batch import Record
from headrace.records.compression import Codec
from headrace.spark.source.batch import batch_reader
from headrace.spark.source.schema import source_schema
from headrace.spark.source.stream import HeadraceStreamReader
from headrace.testing.broker import TestBroker
from tests.reference import spark_kafka
from tests.reference.apache import ApacheKafka, Unavailable
from tests.spark.source_data import T0, committed, make, put, put_numbers

pytestmark = pytest.mark.reference


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_sparks_own_connector_reads_and_writes_the_same_here(tmp_path: Path) -> None:
    try:
        spark_kafka.jars()
    except Unavailable as missing:
        pytest.skip(str(missing))
    with TestBroker() as broker:
        make(broker.bootstrap, "t", 2)
        make(broker.bootstrap, "t-out", 3)
        first = [
            Record(0, T0 + i, b"k%d" % i if i % 3 else None, b"v" * i if i != 4 else None,
                   (("h", b"\x01"), ("n", None)) if i % 2 else ())
            for i in range(10)
        ]  # fmt: skip
        put(broker.bootstrap, "t", {0: [first[:4], first[4:]]}, compression=Codec.ZSTD)
        put(broker.bootstrap, "t", {1: [first]})
        command = [sys.executable, "-m", "tests.spark.connector_job", broker.bootstrap, "t", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(
            next(line for line in done.stdout.splitlines() if line.startswith("FOUND ")).removeprefix("FOUND ")
        )
    assert len(found["kafka"]["all"]) == 20
    assert found["headrace"] == found["kafka"]
    assert found["written"] == list(range(50))


def read(apache: ApacheKafka, topic: str, **options: Any) -> dict[int, list[bytes]]:
    """What tasks of a batch query give, without a driver."""
    given = {"kafka.bootstrap.servers": f"127.0.0.1:{apache.port}", "subscribe": topic}
    given |= {name.replace("__", "."): value for name, value in options.items()}
    reader = batch_reader(source_schema(given), given)
    found: dict[int, list[bytes]] = {}
    for part in reader.partitions():
        for batch in reader.read(part):
            found.setdefault(batch["partition"][0].as_py(), []).extend(batch["value"].to_pylist())
    return found


def test_apache_kafka_is_read_by_every_codec(apache: ApacheKafka) -> None:
    bootstrap = f"127.0.0.1:{apache.port}"
    make(bootstrap, "spark-codecs", len(Codec))
    for codec in Codec:
        put(
            bootstrap,
            "spark-codecs",
            {int(codec): [[Record(0, T0, None, b"%d" % i) for i in range(500)]] * 4},
            compression=codec,
        )
    found = read(apache, "spark-codecs", kafka__max__partition__fetch__bytes="3000", maxRecordsPerPartition="333")
    assert found == {int(codec): [b"%d" % i for i in range(500)] * 4 for codec in Codec}


def test_transactions_of_apache_kafka(apache: ApacheKafka) -> None:
    import confluent_kafka as confluent

    bootstrap = f"127.0.0.1:{apache.port}"
    make(bootstrap, "spark-txn")
    producer = confluent.Producer({"bootstrap.servers": bootstrap, "transactional.id": "spark-txn", "log_level": 0})
    producer.init_transactions(30)
    for turn in range(6):
        producer.begin_transaction()
        for i in range(5):
            producer.produce("spark-txn", b"%d-%d" % (turn, i))
        producer.flush(30)
        if turn % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
    everything = [b"%d-%d" % (turn, i) for turn in range(6) for i in range(5)]
    kept = [value for value in everything if int(value[:1]) % 2 == 0]
    assert read(apache, "spark-txn") == {0: everything}
    assert read(apache, "spark-txn", kafka__isolation__level="read_committed") == {0: kept}
    # Ranges that begin and end inside of aborted transactions.
    pieces = read(apache, "spark-txn", kafka__isolation__level="read_committed", maxRecordsPerPartition="4")
    assert pieces == {0: kept}


def test_a_stream_over_apache_kafka_commits_its_progress(apache: ApacheKafka) -> None:
    bootstrap = f"127.0.0.1:{apache.port}"
    make(bootstrap, "spark-stream", 2)
    put_numbers(bootstrap, "spark-stream", 0, range(30))
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": "spark-stream", "startingOffsets": "earliest"}
    stream = HeadraceStreamReader(source_schema(options), options)
    start = stream.initialOffset()
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    rows = [
        row
        for part in stream.partitions(start, end)
        for batch in stream.read(part)
        for row in batch["value"].to_pylist()
    ]
    assert rows == [b"%d" % i for i in range(30)]
    assert stream.latestOffset(end, stream.getDefaultReadLimit()) == end
    stream.stop()
    assert committed(bootstrap, "spark-kafka-source-spark-stream") == {("spark-stream", 0): 30, ("spark-stream", 1): 0}
