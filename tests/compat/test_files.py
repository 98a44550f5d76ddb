"""Files both ways: what Headrace writes is read by Kafka's own dump tool and served by an Apache Kafka broker that
starts on the folder, what Apache Kafka writes is served by Headrace, and each goes on where the other stopped."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.compat.contents import Filler, TopicContents
from tests.compat.raw import batch
from tests.compat.same_folder import broker_on
from tests.reference.apache import ApacheKafka, dump_log

pytestmark = [pytest.mark.reference, pytest.mark.usefixtures("needs_apache"), pytest.mark.timeout(180)]


@contextmanager
def running(kind: str, data: Path, end: str) -> Iterator[Filler]:
    broker = broker_on(kind, data)
    broker.start()
    try:
        filler = Filler(broker.port)
        try:
            yield filler
        finally:
            filler.close()
    except BaseException:
        broker.kill9()
        raise
    broker.stop() if end == "stop" else broker.kill9()


def same(expected: dict[str, TopicContents], filler: Filler) -> None:
    """The broker serves exactly this; a moment's grace for one that is still loading."""
    deadline = time.monotonic() + 20
    while set(found := filler.contents()) != set(expected) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert {name: t.topic_id.hex() for name, t in found.items()} == {
        name: t.topic_id.hex() for name, t in expected.items()
    }
    assert {name: t.configs for name, t in found.items()} == {name: t.configs for name, t in expected.items()}
    assert {name: t.record_counts for name, t in found.items()} == {
        name: t.record_counts for name, t in expected.items()
    }
    assert found == expected


@pytest.mark.parametrize(
    "first, second, end",
    [
        ("headrace", "apache", "kill9"),
        ("apache", "headrace", "stop"),
        pytest.param("headrace", "apache", "stop", marks=pytest.mark.soak),
        pytest.param("apache", "headrace", "kill9", marks=pytest.mark.soak),
    ],
)
def test_one_goes_on_where_the_other_stopped(first: str, second: str, end: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with running(first, data, end) as filler:
        filler.fill()
        filled = filler.contents()
    assert filled["plain"].record_counts == [301, 201, 9]

    with running(second, data, end) as filler:
        same(filled, filler)
        filler.add_more()
        grown = filler.contents()
    assert grown["plain"].record_counts == [1301, 201, 9]
    assert grown["plain"].configs == {"retention.ms": "-1", "flush.messages": "7"}

    with running(first, data, end) as filler:
        same(grown, filler)
        filler.append_many("plain", 2, 100)
        last = filler.contents()

    with running(second, data, end) as filler:
        same(last, filler)


@pytest.mark.parametrize("end", ["stop", "kill9"])
def test_a_producer_repeats_itself_to_the_other_broker(end: str, tmp_path: Path) -> None:
    """Sequences survive the change: the last batch again is a duplicate, the next one is not."""

    def numbered(producer_id: int, sequence: int) -> bytes:
        # With the present time: a producer last heard of long ago is forgotten at start-up.
        return batch(b"x", producer=(producer_id, 0, sequence), base_timestamp=int(time.time() * 1000))

    data = tmp_path / "data"
    with running("headrace", data, end) as filler:
        filler.create("t", 1)
        me = filler.producer_id()
        for sequence in range(4):
            filler.append("t", 0, numbered(me, sequence))
    for kind, sequence in (("apache", 4), ("headrace", 5)):
        with running(kind, data, end) as filler:
            filler.append("t", 0, numbered(me, sequence - 1))
            filler.append("t", 0, numbered(me, sequence))
            assert filler.contents()["t"].record_counts == [sequence + 2]
            assert filler.producer_id() > me


@pytest.fixture(scope="module")
def headrace_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a Headrace broker that was used and stopped cleanly."""
    data = tmp_path_factory.mktemp("files") / "data"
    with running("headrace", data, "stop") as filler:
        filler.fill()
    return data


def test_kafkas_dump_tool_reads_our_segments(headrace_folder: Path) -> None:
    logs = sorted(headrace_folder.glob("*-*/*.log"))
    logs = [log for log in logs if not log.parent.name.startswith("__")]
    assert len([log for log in logs if log.parent.name == "rolled-0"]) >= 3
    out = dump_log(",".join(map(str, logs)), "--deep-iteration", "--print-data-log")
    assert out.count("isvalid: true") == out.count("baseOffset: ") > 0
    assert "isvalid: false" not in out
    assert len(re.findall(r"^\| offset: ", out, re.MULTILINE)) == 301 + 201 + 9 + 21 + 31
    assert "payload: value 7" in out


def test_kafkas_dump_tool_finds_no_fault_in_our_indexes(headrace_folder: Path) -> None:
    files = [*headrace_folder.glob("rolled-0/*.index"), *headrace_folder.glob("rolled-0/*.timeindex")]
    assert len(files) >= 6
    out = dump_log(",".join(map(str, sorted(files))))
    assert len(re.findall(r"offset: \d+ position: \d+", out)) >= 20
    assert not re.search(r"(?i)mismatch|out of order|corrupt|not found", out), out
    sane = dump_log(",".join(map(str, sorted(files))), "--index-sanity-check")
    assert sane.count("passed sanity check") == len(files), sane


def test_kafkas_dump_tool_reads_our_producer_snapshots(headrace_folder: Path) -> None:
    snapshots = sorted(headrace_folder.glob("plain-2/*.snapshot"))
    assert snapshots, "a clean stop leaves a snapshot of the producers"
    out = dump_log(snapshots[-1])
    assert re.search(r"producerId: \d+ producerEpoch: 0 .*lastSequence: 7", out), out


def test_kafkas_dump_tool_reads_our_metadata_log(headrace_folder: Path) -> None:
    folder = headrace_folder / "__cluster_metadata-0"
    files = [*sorted(folder.glob("*.log")), *sorted(folder.glob("*.checkpoint"))]
    out = dump_log(",".join(map(str, files)), "--cluster-metadata-decoder")
    assert "isvalid: false" not in out
    assert not re.search(r"(?i)could not|exception|error", out), out
    for kind in ("TOPIC_RECORD", "PARTITION_RECORD", "CONFIG_RECORD", "REGISTER_BROKER_RECORD", "FEATURE_LEVEL_RECORD"):
        assert kind in out, f"no {kind} in the metadata log"
    assert "LeaderChange" in out
    assert "SnapshotHeader" in out
    assert "KRaftVoters" in out


@pytest.mark.parametrize("end", ["kill9", pytest.param("stop", marks=pytest.mark.soak)])
def test_what_kafka_deletes_meanwhile_is_not_missed(end: str, tmp_path: Path) -> None:
    """Our manifest of closed segments outlives Kafka's time on the folder, and nobody believes it afterwards."""
    data = tmp_path / "data"
    folder = data / "t-0"

    def segments() -> list[str]:
        return sorted(file.name for file in folder.glob("*.log"))

    with running("headrace", data, "stop") as filler:
        filler.create("t", 1, segment_bytes="1048576", retention_ms="-1")
        for _ in range(8):
            filler.append("t", 0, batch(b"x" * 600_000))
    before = segments()
    assert len(before) >= 4 and (folder / ".headrace_segments").exists()

    often = {"log.initial.task.delay.ms": 200, "log.retention.check.interval.ms": 200, "file.delete.delay.ms": 0}
    kafka = ApacheKafka(tmp_path / "apache", data=data, properties=often).start()
    try:
        filler = Filler(kafka.port)
        asked = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 5}]}]
        (row,) = filler.call("DeleteRecords", topics=asked, timeout_ms=20_000).topics[0].partitions
        assert row.error_code == 0, row
        deadline = time.monotonic() + 30
        while len(segments()) > len(before) - 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        filler.append("t", 0, batch(b"kafka's"))
        filler.close()
    finally:
        kafka.stop() if end == "stop" else kafka.kill9()
    assert segments()[0] > before[1], "Kafka has deleted nothing"

    with running("headrace", data, "stop") as filler:
        (topic,) = [found for found in filler.call("Metadata", topics=None).topics if found.name == "t"]
        assert len(filler.batches(topic, 0, 5)) == 5  # 5 to 8, and Kafka's own
    assert not list(folder.glob("*.corrupt"))
    # And what goes missing from here on is noticed.
    (folder / segments()[0]).unlink()
    with running("headrace", data, "stop"):
        pass
    assert list(folder.glob("*.corrupt"))
