"""Disks of the real kind that fill up or fail under a running broker."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as confluent
import pytest

from headrace.errors import Err
from headrace.platform import IS_PORTABLE
from tests.broker.support import PATIENCE_S, create_topic, end_offset, produce, read_log
from tests.compat.process import HeadraceProcess
from tests.compat.raw import Connection
from tests.librdkafka import STEADY
from tests.simulation.ext4 import fill
from tests.waiting import eventually

TMPFS_BYTES = 6 << 20
SYNC = "fsync" if IS_PORTABLE else "fdatasync"


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    mount = tmp_path / "small"
    mount.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", str(mount)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.strip()}")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def filled(mount: Path, leaving_bytes: int = 0) -> Path:
    ballast = fill(mount, leaving_bytes)
    assert leaving_bytes or shutil.disk_usage(mount).free == 0
    return ballast


def partition_on(folder: Path, topic: str = "t") -> int:
    (found,) = [int(path.name.rpartition("-")[2]) for path in folder.glob(f"{topic}-[0-9]")]
    return found


def test_a_full_disk_refuses_whole_batches_and_others_serve_on(tmpfs: Path, tmp_path: Path) -> None:
    small, large = tmpfs / "logs", tmp_path / "large"
    with broker(tmp_path, large, small) as process:
        create_topic(process.port, "t", 2)
        full, roomy = partition_on(small), partition_on(large)
        acknowledged: dict[int, bytes] = {}
        with Connection(process.port, PATIENCE_S) as wire:
            write(wire, full, acknowledged, 20)
            ballast = filled(tmpfs)
            refused = 0
            for number in range(50):
                error, offset = produce(wire, "t", full, value := f"tight{number}".encode() + bytes(3000))
                if error == 0:
                    acknowledged[offset] = value
                else:
                    assert error == Err.KAFKA_STORAGE_ERROR
                    refused += 1
                assert produce(wire, "t", roomy, b"room")[0] == 0
            assert refused >= 45
            assert end_offset(wire, "t", full) == len(acknowledged)
            assert dict(read_log(process.port, "t", full)) == acknowledged
            ballast.unlink()
            wait_for_room(wire, full, acknowledged)
            write(wire, full, acknowledged, 20)
            assert dict(read_log(process.port, "t", full)) == acknowledged
        assert process.stop() == 0
        assert "Traceback" not in process.output()
        process.start()
        assert dict(read_log(process.port, "t", full)) == acknowledged
        assert sum(1 for _ in read_log(process.port, "t", roomy)) == 50


def test_a_broker_whose_only_disk_is_full_lives_on_and_recovers(tmpfs: Path, tmp_path: Path) -> None:
    """Metadata and checkpoints are on that disk too: topics cannot be made, but nothing falls over."""
    with HeadraceProcess(tmpfs / "data") as process:
        process.log_file = tmp_path / "output"  # from the next start on, not on the full disk
        process.restart()
        create_topic(process.port, "t")
        acknowledged: dict[int, bytes] = {}
        with Connection(process.port, PATIENCE_S) as wire:
            write(wire, 0, acknowledged, 10)
            ballast = filled(tmpfs)
            for _ in range(3):
                assert produce(wire, "t", 0, bytes(5000))[0] == Err.KAFKA_STORAGE_ERROR
            assert dict(read_log(process.port, "t")) == acknowledged
            ballast.unlink()
            wait_for_room(wire, 0, acknowledged)
            write(wire, 0, acknowledged, 10)
        create_topic(process.port, "more")
        process.kill9()
        process.start()
        assert dict(read_log(process.port, "t")) == acknowledged


def test_below_its_reserve_a_broker_refuses_records_and_goes_on_with_all_else(tmpfs: Path, tmp_path: Path) -> None:
    """Alone it has nobody to hand over to: clients wait, with their defaults, and groups and metadata go on
    meanwhile."""
    reserve_bytes = 2 << 20
    config = {"log.dir.reserve.bytes": str(reserve_bytes), "offsets.topic.num.partitions": "1"}
    with HeadraceProcess(tmpfs / "data", config=config) as process:
        process.log_file = tmp_path / "output"
        process.restart()
        create_topic(process.port, "t")
        bootstrap = f"127.0.0.1:{process.port}"
        producer = confluent.Producer({**STEADY, "bootstrap.servers": bootstrap, "log_level": 0})
        consumer = confluent.Consumer({**STEADY, "bootstrap.servers": bootstrap, "group.id": "g", "log_level": 0})
        delivered: list[int] = []

        def told(error: confluent.KafkaError | None, message: confluent.Message) -> None:
            assert error is None, error
            delivered.append(message.offset())

        def commit(offset: int) -> None:
            consumer.commit(offsets=[confluent.TopicPartition("t", 0, offset)], asynchronous=False)

        try:
            producer.produce("t", b"before", on_delivery=told)
            assert producer.flush(PATIENCE_S) == 0
            commit(1)
            ballast = filled(tmpfs, leaving_bytes=reserve_bytes // 2)
            with Connection(process.port, PATIENCE_S) as wire:
                eventually(lambda: produce(wire, "t", 0, None)[0] == Err.KAFKA_STORAGE_ERROR, "records are refused")
                end = end_offset(wire, "t", 0)
                producer.produce("t", b"patient", on_delivery=told)
                assert producer.flush(2) == 1, "it tries again and again"
                for offset in range(2, 50):
                    commit(offset)
                create_topic(process.port, "more")
                assert dict(read_log(process.port, "t"))[0] == b"before"
                assert end_offset(wire, "t", 0) == end
            ballast.unlink()
            assert producer.flush(PATIENCE_S) == 0
            assert delivered == [0, end]
        finally:
            consumer.close()
        assert process.stop() == 0
        assert "Traceback" not in process.output()


def test_a_stop_on_a_full_disk_loses_nothing(tmpfs: Path, tmp_path: Path) -> None:
    """Indexes and checkpoints cannot be written: the next start recovers what the logs say."""
    process = HeadraceProcess(tmpfs / "data")
    process.log_file = tmp_path / "output"
    process.start()
    try:
        create_topic(process.port, "t")
        acknowledged: dict[int, bytes] = {}
        with Connection(process.port, PATIENCE_S) as wire:
            write(wire, 0, acknowledged, 200)
        ballast = filled(tmpfs)
        process.stop()
        assert "Traceback" not in process.output(), process.output()[-2000:]
        ballast.unlink()
        process.start()
        assert dict(read_log(process.port, "t")) == acknowledged
    finally:
        process.kill9()


def wait_for_room(wire: Connection, partition: int, acknowledged: dict[int, bytes]) -> None:
    """The broker looks by itself, several times a second."""

    def taken() -> bool:
        error, offset = produce(wire, "t", partition, value := b"first" + bytes(1000))
        if error == 0:
            acknowledged[offset] = value
        return error == 0

    eventually(taken, "writes are taken again")


def write(wire: Connection, partition: int, acknowledged: dict[int, bytes], count: int) -> None:
    for _ in range(count):
        value = f"value {len(acknowledged)} ".encode() + bytes(1000)
        error, offset = produce(wire, "t", partition, value)
        assert error == 0 and offset == len(acknowledged), (error, offset)
        acknowledged[offset] = value


def broker(folder: Path, sound: Path, other: Path) -> HeadraceProcess:
    """On two log dirs, its metadata in the first."""
    return HeadraceProcess(
        folder / "broker", config={"metadata.log.dir": str(sound)}, args=["--data", f"{sound},{other}"]
    )  # fmt: skip


# ---- fsync that fails


@pytest.fixture
def strace() -> str:
    found = shutil.which("strace")
    if found is None:
        pytest.skip("strace is not installed")
    return found


def all_traced(pid: int) -> bool:
    return all("TracerPid:\t0\n" not in (task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir())


def test_an_fsync_that_fails_once_is_never_an_acknowledgement(strace: str, tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    with broker(tmp_path, good, bad) as process:
        create_topic(process.port, "t", 2)
        broken, sound = partition_on(bad), partition_on(good)
        with Connection(process.port, PATIENCE_S) as wire:
            for partition in (0, 1):
                for _ in range(3):
                    assert produce(wire, "t", partition, b"before")[0] == 0
            tracer = subprocess.Popen(
                [strace, "-f", "-p", str(process.pid), "-o", "/dev/null", "-e", f"trace={SYNC}",
                 "-e", f"inject={SYNC}:error=EIO:when=1"],
                stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
            try:
                assert tracer.stderr is not None
                attached = tracer.stderr.readline()
                if "attached" not in attached:
                    pytest.skip(f"strace cannot attach here: {attached.strip()}")
                eventually(lambda: all_traced(process.pid), "strace holds every thread")
                error, _ = produce(wire, "t", broken, b"lost")
            finally:
                tracer.terminate()
                tracer.wait()
            assert error == Err.KAFKA_STORAGE_ERROR
            eventually(lambda: "is offline" in process.output(), "the log dir is taken out of service")
            for _ in range(3):
                assert produce(wire, "t", broken, b"refused")[0] == Err.KAFKA_STORAGE_ERROR
                assert produce(wire, "t", sound, b"served")[0] == 0
        process.stop()
        process.start()
        values = [value for _, value in read_log(process.port, "t", broken)]
        assert values[:3] == [b"before"] * 3 and b"refused" not in values
        assert [value for _, value in read_log(process.port, "t", sound)] == [b"before"] * 3 + [b"served"] * 3
