"""A broker whose index files were damaged while it was down: it serves every record of every topic, start after
start."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broker.support import PATIENCE_S, create_topic, produce, read_log
from tests.compat.process import HeadraceProcess
from tests.compat.raw import Connection
from tests.waiting import eventually

DAMAGED, OTHER = "damaged", "other"
SEGMENT_BYTES = 1 << 20
"""The least that a topic may have."""
OPTIONS = {
    "log.initial.task.delay.ms": 1, "log.retention.check.interval.ms": 200, "log.index.interval.bytes": 4096,
    "group.initial.rebalance.delay.ms": 0,
}  # fmt: skip


def flip_signs(data: bytearray, dice: random.Random) -> None:
    for at in range(4, len(data), 8):
        data[at] ^= 0x80


def scramble(data: bytearray, dice: random.Random) -> None:
    data[:] = dice.randbytes(len(data))


def index_files(folder: Path, suffix: str) -> list[Path]:
    """Of closed segments."""
    return sorted(folder.glob(f"*{suffix}"))[:-1]


def damage(folder: Path, suffix: str, how: Callable[[bytearray, random.Random], None], dice: random.Random) -> None:
    for path in index_files(folder, suffix):
        data = bytearray(path.read_bytes())
        how(data, dice)
        path.write_bytes(data)


def values(topic: str, seed: int) -> list[bytes]:
    dice = random.Random(f"{topic}{seed}")
    return [f"{topic}:{number}:".encode() + dice.randbytes(9_000) for number in range(400)]


def offset_for_time(wire: Connection, topic: str, timestamp: int) -> tuple[int, int]:
    rows = [{"partition_index": 0, "timestamp": timestamp}]
    answer = wire.ask("ListOffsets", 5, {"replica_id": -1, "topics": [{"name": topic, "partitions": rows}]})
    found = answer.topics[0].partitions[0]
    return found.error_code, found.offset


@pytest.mark.parametrize("sums", ["kept", "gone"])
def test_damaged_indexes_harm_nobody(tmp_path: Path, sums: str) -> None:
    broker = HeadraceProcess(tmp_path / "data", config=OPTIONS).start()
    try:
        expected = {}
        for topic in (DAMAGED, OTHER):
            create_topic(broker.port, topic, segment_bytes=str(SEGMENT_BYTES))
            sent = values(topic, 1)
            with Connection(broker.port, PATIENCE_S) as wire:
                for at in range(0, len(sent), 4):
                    assert produce(wire, topic, 0, *sent[at : at + 4]) == (0, at)
            expected[topic] = sent
        folder = tmp_path / "data" / f"{DAMAGED}-0"
        assert len(index_files(folder, ".index")) >= 2
        dice = random.Random(7)
        for life in range(2):
            if life:
                broker.kill9()
            else:
                assert broker.stop() == 0
            damage(folder, ".index", scramble if life else flip_signs, dice)
            damage(folder, ".timeindex", scramble, dice)
            if sums == "gone":
                for path in folder.glob("*.indexsum"):
                    path.unlink()
            broker.start()
            # Retention looks at every segment, which is what ended a broker; give it some rounds.
            check_all(broker, expected)
            rounds_end = time.monotonic() + 0.7
            eventually(lambda end=rounds_end: time.monotonic() > end, "some rounds of retention")  # type: ignore[misc]
            check_all(broker, expected)
            assert "offline" not in broker.output(), broker.output()
        assert broker.stop() == 0
    finally:
        broker.kill9()


def check_all(broker: HeadraceProcess, expected: dict[str, list[bytes]]) -> None:
    for topic, sent in expected.items():
        assert [value for _, value in read_log(broker.port, topic)] == sent
        with Connection(broker.port, PATIENCE_S) as wire:
            assert offset_for_time(wire, topic, 1) == (0, 0)
    assert broker.process is not None and broker.process.poll() is None, broker.output()
