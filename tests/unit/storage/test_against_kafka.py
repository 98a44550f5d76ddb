"""Apache Kafka's files read and rebuilt byte for byte, and Headrace's read by Apache Kafka."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.config import LogConfig
from headrace.records.batch import check_stored
from headrace.storage.files import RealDisk
from headrace.storage.log import Log
from headrace.storage.manager import LogManager
from tests.reference.apache import SMALL_INTERNAL_TOPICS, ApacheKafka, Unavailable, dump_log

from .helpers import append, offsets, read_all

pytestmark = pytest.mark.reference

CONFIG = LogConfig(segment_bytes=1 << 20, index_interval_bytes=2000)
DERIVED = (".index", ".timeindex", ".txnindex", ".snapshot")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`clean`: a data folder after an orderly stop; `killed`: the same one after more work and kill -9."""
    folder = tmp_path_factory.mktemp("kafka")
    try:
        broker = ApacheKafka(
            folder / "broker", properties={"log.index.interval.bytes": 2000, **SMALL_INTERNAL_TOPICS}
        ).start()
    except Unavailable as missing:
        pytest.skip(str(missing))
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topic = NewTopic("t", 1, 1, config={"segment.bytes": str(1 << 20), "index.interval.bytes": "2000"})
        for future in admin.create_topics([topic]).values():
            future.result()
        produce(broker.bootstrap, "first", 20)
        broker.stop()
        shutil.copytree(broker.data, folder / "clean")
        broker.start()
        produce(broker.bootstrap, "second", 8)
        broker.kill9()
        shutil.copytree(broker.data, folder / "killed")
    finally:
        broker.kill9()
    yield folder


def produce(bootstrap: str, name: str, transactions: int) -> None:
    """Transactions of a few hundred records, every third aborted: 2.5 MB in twenty."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 1, "batch.size": 3000})
    producer.init_transactions()
    for number in range(transactions):
        producer.begin_transaction()
        for at in range(100):
            producer.produce("t", key=str(at), value=bytes([number]) * 1200)
        producer.flush()
        if number % 3:
            producer.commit_transaction()
        else:
            producer.abort_transaction()


def folder_of(work: Path, kind: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(work / kind, tmp_path / "data")) / "t-0"


def check_all(log: Log) -> list[bytes]:
    batches = read_all(log, max_bytes=10_000)
    for data in batches:
        check_stored(memoryview(data), 0, len(data))
    return batches


def test_a_cleanly_stopped_kafka_is_read_without_a_look_back(work: Path, tmp_path: Path) -> None:
    folder = folder_of(work, "clean", tmp_path)
    manager = LogManager(RealDisk(), [str(folder.parent)], node_id=1, config_of=lambda topic: CONFIG)
    manager.open()
    assert list(manager.load(10**12))
    assert [log_dir.clean for log_dir in manager.dirs] == [True]
    assert manager.dirs[0].broker_epoch >= 0
    log = manager.get("t", 0)
    assert log is not None and log.topic_id is not None
    assert len(log.segments) >= 2 and log.recovery.segments_checked == 0
    assert manager.dirs[0].high_watermarks["t", 0] == log.end_offset == log.durable_end
    assert offsets(check_all(log)) == list(range(log.end_offset))
    assert len(log.aborted_transactions(0, log.end_offset)) == 7
    assert len(log.producers) == 1
    assert log.epochs.entries == [(0, 0)]
    assert manager.notes == []


def test_recovery_writes_the_same_indexes_as_kafka(work: Path, tmp_path: Path) -> None:
    folder = folder_of(work, "clean", tmp_path)
    kafkas = {path.name: path.read_bytes() for path in folder.iterdir()}
    for path in folder.iterdir():
        if path.name.endswith(DERIVED):
            path.unlink()
    Log.open(RealDisk(), str(folder), CONFIG, now_ms=0).close()
    ours = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert {name for name in kafkas if name.endswith(".txnindex")} == {
        name for name in ours if name.endswith(".txnindex")
    }
    for name, data in kafkas.items():
        if name.endswith(".snapshot"):
            # Ours says behind the producers which snapshot it is, and the CRC before them covers that too.
            assert ours[name][6 : len(data)] == data[6:], name
        else:
            assert ours.get(name) == data, name


def test_a_killed_kafka_is_recovered(work: Path, tmp_path: Path) -> None:
    folder = folder_of(work, "killed", tmp_path)
    preallocated = [path for path in folder.iterdir() if path.suffix == ".index" and path.stat().st_size == 10 << 20]
    assert preallocated, "Kafka preallocates the active index"
    log = Log.open(RealDisk(), str(folder), CONFIG, now_ms=0)
    assert offsets(check_all(log)) == list(range(log.end_offset))
    log.close()
    assert not [path for path in folder.iterdir() if path.suffix == ".index" and path.stat().st_size == 10 << 20]
    # Even where nobody recovers, padding is not taken for entries.
    second = folder_of(work, "killed", tmp_path / "again")
    log = Log.open(RealDisk(), str(second), CONFIG, clean=True, now_ms=0)
    assert offsets(check_all(log)) == list(range(log.end_offset))


@pytest.mark.usefixtures("work")  # skips where Kafka is not to be had
def test_kafkas_dump_tool_finds_nothing_wrong(tmp_path: Path) -> None:
    log = Log.open(
        RealDisk(), str(tmp_path / "t-0"), LogConfig(segment_bytes=20_000, index_interval_bytes=500), now_ms=0,
        topic_id=bytes(range(16)),
    )  # fmt: skip
    for at in range(200):
        append(log, 1 + at % 4, timestamp=10**12 + at, size=80)
    log.close()
    folder = tmp_path / "t-0"
    files = sorted(
        str(path) for path in folder.iterdir() if path.suffix in (".log", ".index", ".timeindex", ".snapshot")
    )
    text = dump_log(",".join(files), "--deep-iteration")
    # The tool prints such headings only for entries that do not fit.
    for word in ("Mismatches", "Non-consecutive", "out of order", "not match", "Exception", "corrupt", "invalid"):
        assert word not in text, text[-3000:]
    assert f"lastOffset: {log.end_offset - 1}" in text
    assert text.count("offset: ") > 50


def test_kafka_starts_on_what_headrace_closed(work: Path, tmp_path: Path) -> None:
    folder = folder_of(work, "clean", tmp_path)
    manager = LogManager(RealDisk(), [str(folder.parent)], node_id=1, config_of=lambda topic: CONFIG)
    manager.open()
    list(manager.load(10**12))
    log = manager.get("t", 0)
    assert log is not None
    before = log.end_offset
    for _ in range(600):
        append(log, 2, timestamp=10**12, size=1000, epoch=1)
    end_offset = log.end_offset
    assert log.active.base_offset > before
    manager.close(broker_epoch=5, high_watermarks={("t", 0): end_offset})
    with ApacheKafka(tmp_path / "broker", data=folder.parent, properties=SMALL_INTERNAL_TOPICS) as broker:
        consumer = Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "g", "isolation.level": "read_uncommitted"}
        )
        consumer.assign([TopicPartition("t", 0, 0)])
        seen = 0
        last = -1
        while last < end_offset - 1:
            for message in consumer.consume(500, 0.5):
                assert message.error() is None
                last = message.offset() or 0
                seen += 1
        assert consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=30) == (0, end_offset)
        consumer.close()
        assert seen > 2000 + 1200 - 1
    text = broker.log_file.read_text()
    assert "corrupt" not in text.lower() and "t-0" not in text, text
