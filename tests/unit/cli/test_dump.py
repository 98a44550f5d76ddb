"""`headrace log dump`: each kind of file, and damage of every sort reported with its place."""

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crc32c import crc32c
from typer.testing import CliRunner

from headrace.broker.maintenance.disk_space_watch import PROBE_FILE
from headrace.broker.maintenance.scrubber import FILE_NAME as SCRUB_FILE, Progress
from headrace.cli.app import app
from headrace.cli.dump.kinds import Kind, base_offset_of, kind_of, partition_of
from headrace.cli.dump.report import Report, counted, short, when
from headrace.cli.dump.sidecars import dump_sidecar
from headrace.client.errors import ClientError
from headrace.metadata.records import encode_record
from headrace.protocol import messages as m
from headrace.protocol.api import GROUP_RECORDS
from headrace.quorum.mark import FILE_NAME as MARK_FILE, Mark, encode_mark
from headrace.records.batch import Record, build_batch
from headrace.records.compression import Codec
from headrace.records.control import ControlType, Marker, encode_control, encode_marker
from headrace.replication.producer_snapshot import seal
from headrace.replication.producers import ProducerStates
from headrace.storage.checkpoints import (
    MetaProperties,
    encode_offsets,
    encode_partition_metadata,
    encode_uuid,
)
from headrace.storage.epochs import EpochCache
from headrace.storage.files import RealDisk
from headrace.storage.index_sums import NOT_KNOWN, IndexSums
from headrace.storage.indexes import OffsetIndex, TimeIndex
from headrace.storage.manifest import Entry, Manifest, lost_entry

NAME = "00000000000000000100"
TOPIC_ID = b"0123456789abcdef"


def dump(*words: object) -> Any:
    """(exit code, stdout, stderr)"""
    result = CliRunner().invoke(app, ["log", "dump", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def batch(base_offset: Any, count: int = 10, **options: Any) -> Any:
    records = [Record(0, 1_700_000_000_000 + base_offset + n, b"key-%d" % n, b"value-%d" % n) for n in range(count)]
    return build_batch(records, base_offset=base_offset, leader_epoch=3, **options)


@pytest.fixture
def partition(tmp_path: Path) -> Any:
    """A partition's folder with four batches and indexes that agree with them."""
    folder = tmp_path / "orders-2"
    folder.mkdir()
    batches = [
        batch(100),
        batch(110, compression=Codec.ZSTD),
        batch(120, producer_id=9, producer_epoch=1, base_sequence=5),
        batch(130),
    ]
    (folder / f"{NAME}.log").write_bytes(b"".join(batches))
    offsets, times, position = OffsetIndex(), TimeIndex(), 0
    for number, data in enumerate(batches):
        if number:
            offsets.append(number * 10 + 9, position)
            times.append(1_700_000_000_000 + 100 + number * 10 + 9, number * 10 + 9)
        position += len(data)
    (folder / f"{NAME}.index").write_bytes(offsets.encode())
    (folder / f"{NAME}.timeindex").write_bytes(times.encode())
    return folder


def test_batches_are_shown_with_what_is_special_about_them(partition: Path) -> None:
    code, out, err = dump(partition / f"{NAME}.log")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[1].startswith("  @0 offsets 100..109, 10 records, ") and "epoch 3" in lines[1]
    assert "create time 1700000000109 (2023-11-14 22:13:20.109Z)" in lines[1]
    assert "zstd" in lines[2] and "producer 9 epoch 1, sequences 5..14" in lines[3]
    assert lines[-1].startswith("  4 batches, 40 records, offsets up to 139")
    assert "key-1" not in out


def test_records_are_shown_when_asked_for(partition: Path) -> None:
    _, out, _ = dump(partition / f"{NAME}.log", "--records")
    assert "115: 1700000000115 (2023-11-14 22:13:20.115Z) key 'key-5' value 'value-5'" in out
    _, out, _ = dump(partition / f"{NAME}.log", "--records", "--value-bytes", "3")
    assert "value 'val'... (7 bytes)" in out


def test_indexes_have_their_entries_when_named_or_asked_for(partition: Path) -> None:
    entry = "offset 119 -> byte "
    assert entry in dump(partition / f"{NAME}.index")[1]
    assert entry not in dump(partition)[1]
    assert entry in dump(partition, "--index")[1]
    assert "-> offset 129" in dump(partition / f"{NAME}.timeindex")[1]


def test_an_index_padded_by_kafka_is_read(partition: Path) -> None:
    index = partition / f"{NAME}.index"
    index.write_bytes(index.read_bytes() + bytes(8000))
    assert "3 entries, 8,000 bytes preallocated" in dump(index, "--verify")[1]


def test_what_agrees_is_said_to_agree(partition: Path) -> None:
    code, out, _ = dump(partition, "--verify")
    assert code == 0
    assert f"{NAME}.index agrees with the log" in out and f"{NAME}.timeindex agrees with the log" in out
    assert out.endswith("everything agrees\n")


def test_a_flipped_bit_is_found_in_its_batch_and_the_rest_still_shown(partition: Path) -> None:
    log = partition / f"{NAME}.log"
    data = bytearray(log.read_bytes())
    second = len(batch(100))
    data[second + 70] ^= 1
    log.write_bytes(data)
    code, out, err = dump(log)
    assert code == 1
    assert f"!! at byte {second:,}, offset 110: record batch at offset 110: CRC mismatch" in out
    assert "offsets 130..139" in out
    assert "1 damaged place:" in err and str(log) in err


@pytest.mark.parametrize("cut", [1, 60, 61, 62, 150])
def test_a_torn_end_is_found_where_it_begins(partition: Path, cut: int) -> None:
    log = partition / f"{NAME}.log"
    whole = log.read_bytes()
    log.write_bytes(whole + batch(140)[:cut])
    code, out, _ = dump(log)
    assert code == 1
    assert f"at byte {len(whole):,}: the file ends inside a batch" in out
    assert "4 batches, 40 records" in out


def test_zeros_and_rubbish_are_told_apart(partition: Path) -> None:
    log = partition / f"{NAME}.log"
    whole = log.read_bytes()
    log.write_bytes(whole + bytes(500))
    assert "zeros instead of a batch, to the end of the file" in dump(log)[1]
    log.write_bytes(whole + bytes(200) + b"x" * 300)
    assert "zeros instead of a batch, 200 of them" in dump(log)[1]
    log.write_bytes(whole + b"x" * 300)
    assert "no batch (magic 120" in dump(log)[1]
    log.write_bytes(whole + whole[:16] + b"\1" + whole[17:])
    assert "old format (magic 1)" in dump(log)[1]


def test_offsets_that_go_back_are_damage(partition: Path) -> None:
    log = partition / f"{NAME}.log"
    log.write_bytes(batch(100) + batch(105))
    assert "the offset goes back: the batch before ends at 109" in dump(log)[1]


def test_an_index_that_would_lead_a_reader_astray_is_damage(partition: Path) -> None:
    index = OffsetIndex()
    index.append(19, 7)
    index.append(15, 0)
    (partition / f"{NAME}.index").write_bytes(index.encode())
    times = TimeIndex()
    times.append(1_700_000_000_105, 35)
    times.append(1_800_000_000_000, 90)
    (partition / f"{NAME}.timeindex").write_bytes(times.encode())
    code, out, _ = dump(partition / f"{NAME}.log", "--verify")
    assert code == 1
    assert f"!! {NAME}.index: entry 0 (offset 119 -> byte 7): no batch begins at that byte" in out
    assert f"!! {NAME}.index: entry 1 (offset 115 -> byte 0): offsets do not grow" in out
    assert "entry 0 (1700000000105 -> offset 135): a batch before that offset has the later timestamp" in out
    assert "entry 1 (1800000000000 -> offset 190): the log ends at offset 139" in out


def test_no_bytes_make_it_fall_over(tmp_path: Path) -> None:
    """Whatever is in the files, the dump ends with a code of 0 or 1 and no traceback."""
    dice = random.Random(7)
    names = [f"{NAME}{s}" for s in (".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".checkpoint")]
    names += ["leader-epoch-checkpoint", "partition.metadata", "meta.properties", "quorum-state",
    ".kafka_cleanshutdown",
              "recovery-point-offset-checkpoint", f"{NAME}.indexsum", ".headrace_scrub", ".headrace_metadata",
              ".headrace_vouched"]  # fmt: skip
    for _ in range(40):
        for name in names:
            data = dice.randbytes(dice.choice([0, 1, 7, 61, 300]))
            if name.endswith((".log", ".checkpoint")):
                good = bytearray(batch(100, compression=dice.choice([0, 1, 2, 3, 4])))
                good[dice.randrange(len(good))] ^= 1 << dice.randrange(8)
                data = bytes(good) + data
            (tmp_path / name).write_bytes(data)
        assert dump(tmp_path, "--records", "--verify", "--index")[0] in (0, 1)
        assert len(json.loads(dump(tmp_path, "--records", "--verify", "--index", "--json")[1])) == len(names)


def test_markers_and_quorum_records_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    log = folder / "00000000000000000000.log"
    abort = encode_marker(Marker(False, 4), producer_id=9, producer_epoch=1, timestamp=5, base_offset=0)
    leader = encode_control(
        [(ControlType.LEADER_CHANGE, m.LeaderChangeMessage(leader_id=1))], timestamp=5, base_offset=1
    )
    log.write_bytes(abort + leader)
    _, out, _ = dump(log, "--records")
    assert "0: abort marker, coordinator epoch 4" in out
    assert "1: control LEADER_CHANGE {version: 0, leader_id: 1" in out


def test_the_metadata_log_is_decoded_by_itself(tmp_path: Path) -> None:
    folder = tmp_path / "__cluster_metadata-0"
    folder.mkdir()
    values = [encode_record(m.TopicRecord(name="orders", topic_id=TOPIC_ID), 0), b"\x01\xff\x7f\x00"]
    data = build_batch([Record(0, 1, None, value) for value in values])
    (folder / "00000000000000000000.log").write_bytes(data)
    (folder / "00000000000000000007-0000000001.checkpoint").write_bytes(data)
    code, out, _ = dump(folder)
    assert code == 0
    assert out.count(f"0: TopicRecord v0 {{name: 'orders', topic_id: {encode_uuid(TOPIC_ID)}}}") == 2
    assert "1: cannot be read: metadata record of unknown type" in out


def test_committed_offsets_are_decoded(tmp_path: Path) -> None:
    folder = tmp_path / "__consumer_offsets-3"
    folder.mkdir()
    codec = GROUP_RECORDS[1]
    key = b"\0\1" + codec.key.encode(m.OffsetCommitKey(group="g", topic="t", partition=1), 0)
    value = b"\0\1" + codec.value.encode(m.OffsetCommitValue(offset=42, metadata="", commit_timestamp=1), 1)
    log = folder / "00000000000000000000.log"
    log.write_bytes(build_batch([Record(0, 1, key, value), Record(0, 1, key, None), Record(0, 1, b"\x00\x63", b"")]))
    _, out, _ = dump(log, "--records")
    assert "0: OffsetCommit {group: 'g', topic: 't', partition: 1} -> v1 {offset: 42" in out
    assert "1: OffsetCommit {group: 'g', topic: 't', partition: 1} deleted" in out
    assert "2: record of type 99, which this version does not know" in out
    assert "OffsetCommit" not in dump(log)[1]
    assert "OffsetCommit" in dump(log, "--decode", "offsets")[1]


def test_the_small_files(tmp_path: Path) -> None:
    states = ProducerStates()
    states.load(states.snapshot(), 0, 1)
    (tmp_path / f"{NAME}.snapshot").write_bytes(states.snapshot())
    epochs = EpochCache()
    epochs.assign(2, 50)
    (tmp_path / "leader-epoch-checkpoint").write_bytes(epochs.encode())
    (tmp_path / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
    (tmp_path / "meta.properties").write_bytes(MetaProperties("cluster", 7, TOPIC_ID).encode())
    (tmp_path / "replication-offset-checkpoint").write_bytes(encode_offsets({("orders", 1): 99}))
    (tmp_path / "quorum-state").write_text(json.dumps({"leaderId": 1, "data_version": 1}))
    code, out, _ = dump(tmp_path)
    assert code == 0
    for line in (
        "0 producers as of offset 100",
        "epoch 2 from offset 50",
        f"topic id {encode_uuid(TOPIC_ID)}",
        f"cluster cluster, node 7, directory id {encode_uuid(TOPIC_ID)}, version 1",
        "orders-1: 99",
        "leaderId 1, data_version 1",
    ):
        assert f"  {line}\n" in out


def test_a_producer_snapshot_that_a_broker_left_at_its_stop(tmp_path: Path) -> None:
    """It says of which partition it is, in bytes behind Kafka's own."""
    states = ProducerStates()
    states.load(states.snapshot(), 0, 1)
    (tmp_path / f"{NAME}.snapshot").write_bytes(seal(states.snapshot(), "orders-0", 100))
    code, out, errors = dump(tmp_path)
    assert (code, errors) == (0, "")
    assert "  0 producers as of offset 100\n" in out


def test_a_folder_that_is_in_those_of_nodes_is_named(tmp_path: Path) -> None:
    for node in ("node-1", "node-2"):
        (tmp_path / node / "orders-0").mkdir(parents=True)
    with pytest.raises(ClientError) as refused:
        dump(tmp_path / "orders-0")
    first, second = (tmp_path / node / "orders-0" for node in ("node-1", "node-2"))
    assert str(refused.value) == f"there is no {tmp_path}/orders-0: did you mean {first} or {second}?"


def test_files_that_only_headrace_keeps(partition: Path, tmp_path: Path) -> None:
    log = partition / f"{NAME}.log"
    offsets, times = (crc32c((partition / f"{NAME}{suffix}").read_bytes()) for suffix in (".index", ".timeindex"))
    sums = IndexSums(100, log.stat().st_size, 7, 1_700_000_000_139, 139, offsets, times, NOT_KNOWN)
    (partition / f"{NAME}.indexsum").write_bytes(sums.encode())
    progress = Progress(1_700_000_000_000, 1_700_000_000_500, ("orders", 2), {"orders-2": 1_700_000_000_001})
    (tmp_path / SCRUB_FILE).write_bytes(msgspec.json.encode(progress))
    (tmp_path / MARK_FILE).write_bytes(encode_mark(Mark(43, 5), TOPIC_ID))
    (tmp_path / PROBE_FILE).write_bytes(bytes(10))
    code, out, _ = dump(tmp_path)
    assert code == 0
    for line in (
        f"of a log of {log.stat().st_size:,} bytes from offset 100: index {offsets:08x}, timeindex {times:08x},"
        " txnindex not known",
        "latest timestamp 1700000000139 (2023-11-14 22:13:20.139Z) at offset 139",
        "last whole pass 1700000000000 (2023-11-14 22:13:20.000Z)",
        "a pass began 1700000000500 (2023-11-14 22:13:20.500Z) and has come to orders-2",
        "orders-2 checked 1700000000001 (2023-11-14 22:13:20.001Z)",
        f"directory {encode_uuid(TOPIC_ID)} holds committed metadata up to offset 42, epoch 5",
    ):
        assert f"  {line}\n" in out, out
    (partition / f"{NAME}.index").write_bytes(b"")
    (tmp_path / MARK_FILE).write_bytes(b"headrace-metadata 1 x 1 1 1")
    code, out, err = dump(tmp_path)
    assert code == 1 and f"{NAME}.index has another checksum" in err and "its checksum is wrong" in err


def test_json_has_every_batch_record_and_damage(partition: Path) -> None:
    log = partition / f"{NAME}.log"
    code, out, _ = dump(partition, "--records", "--index", "--json")
    index, found, times = json.loads(out)
    assert code == 0 and [one["kind"] for one in (index, found, times)] == ["offset index", "log segment", "time index"]
    assert index["entries"][0] == {"offset": 119, "position": found["entries"][1]["position"]}
    batches = found["entries"]
    assert [(b["base_offset"], b["last_offset"], b["count"]) for b in batches] == [
        (100, 109, 10), (110, 119, 10), (120, 129, 10), (130, 139, 10),
    ]  # fmt: skip
    assert batches[1]["compression"] == "zstd" and batches[2]["producer_id"] == 9 and not found["damage"]
    assert batches[1]["records"][5] == {
        "offset": 115, "timestamp": 1_700_000_000_115, "key": "key-5", "value": "value-5", "headers": [],
    }  # fmt: skip
    data = bytearray(log.read_bytes())
    data[-1] ^= 1
    log.write_bytes(data)
    code, out, _ = dump(log, "--json")
    assert code == 1 and "CRC" in json.loads(out)[0]["damage"][0]["text"]


def test_what_recovery_set_aside_is_named(partition: Path) -> None:
    log = partition / f"{NAME}.log"
    (partition / f"{NAME}.log.531.cut").write_bytes(b"rubbish")
    code, out, _ = dump(partition)
    assert code == 0 and "bytes behind the place where the log was cut" in out
    assert dump(partition / f"{NAME}.log.531.cut")[0] == 1
    log.rename(partition / f"{NAME}.log.corrupt")
    code, out, err = dump(partition)
    assert code == 1 and "its offsets, from 100 on, are not served" in err
    assert "4 batches" in dump(partition / f"{NAME}.log.corrupt")[1]


def test_what_is_not_there_or_not_kafkas_is_refused(tmp_path: Path) -> None:
    from headrace.cli.app import run

    (tmp_path / "notes.txt").write_text("hello")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ClientError, match="none of the files"):
            dump(path, "--verify")  # nothing was seen, so nothing agrees
    assert run(["log", "dump", str(tmp_path / "nothing")]) == 1


def test_what_may_not_be_read_is_no_agreement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_right(path: Any, *args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "t-0").mkdir()
    with monkeypatch.context() as patched, pytest.raises(ClientError, match=r"cannot look into .*: permission denied"):
        patched.setattr("os.stat", no_right)
        dump(tmp_path)
    with monkeypatch.context() as patched, pytest.raises(ClientError, match=r"cannot look into .*: permission denied"):
        patched.setattr("os.scandir", no_right)
        dump(tmp_path, "--verify")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("00000000000000000000.log", Kind.LOG),
        ("00000000000000000000.log.deleted", Kind.LOG),
        ("00000000000000000000.index.swap", Kind.OFFSET_INDEX),
        ("00000000000000000000-0000000000.checkpoint", Kind.METADATA_SNAPSHOT),
        ("bootstrap.checkpoint", Kind.METADATA_SNAPSHOT),
        ("cleaner-offset-checkpoint", Kind.OFFSETS),
        ("leader-epoch-checkpoint", Kind.EPOCHS),
        ("notes.txt", None),
    ],
)
def test_kinds(name: str, kind: Any) -> None:
    assert kind_of(name) is kind


def test_names() -> None:
    assert base_offset_of("/x/00000000000000000123.log") == 123
    assert base_offset_of("00000000000000000007-0000000001.checkpoint") == 7
    assert partition_of("/data/my-topic-12") == ("my-topic", 12)
    assert partition_of("/data/t-0.f177e14fd25c467c932d0b74757664ec-delete") == ("t", 0)
    assert partition_of("/data") is None
    assert when(-1) == "none" and when(1 << 62) == str(1 << 62)
    assert short(None, 5) == "null" and short(b"\xff\x00", 5) == "0xff00"


def test_counts() -> None:
    assert [counted(n, "producer") for n in (0, 1, 2000)] == ["0 producers", "1 producer", "2,000 producers"]
    assert [counted(n, "entry", "entries") for n in (1, 2)] == ["1 entry", "2 entries"]


def test_a_manifest_is_held_against_the_files_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "orders-0"
    folder.mkdir()
    (folder / f"{0:020d}.log").write_bytes(b"x" * 10)
    manifest = Manifest(0)
    manifest.add(Entry(0, 5, 10, 1, 2, 3))
    manifest.add(Entry(5, 9, 20, 1, 2, 3))
    manifest.add(lost_entry(9, 12))
    manifest.save(RealDisk(), str(folder))
    own = encode_offsets({("orders", 0): 99}, "\t")
    for hand, damaged in ((own, True), (encode_offsets({("orders", 0): 99}), False)):
        (tmp_path / "replication-offset-checkpoint").write_bytes(hand)
        report = Report(print)
        dump_sidecar(Kind.SEGMENTS, str(folder / ".headrace_segments"), report)
        said = capsys.readouterr().out
        assert (
            "offsets 0..4 in 10 bytes" in said
            and "offsets 9..11 in unknown files, known to be" in said
            and "3 closed" in said
        )
        assert (f"{5:020d}.log is missing, and had 20" in said) == damaged == bool(report.damaged)
        assert ("another broker" in said) == (not damaged)
