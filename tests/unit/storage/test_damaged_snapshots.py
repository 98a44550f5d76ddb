"""Producer snapshots that are damaged, exchanged or gone: what the log itself says of its producers is not
forgotten."""

import random

import pytest

from headrace.config import LogConfig
from headrace.replication.producers import ProducerStates, ProducerView
from headrace.storage.file_names import SNAPSHOT_SUFFIX
from headrace.storage.log import Log
from headrace.testing.simulator.disk import MemoryDisk
from tests.unit.storage.helpers import FOLDER, Files, batch, files_of, open_log, restored

CONFIG = LogConfig(segment_bytes=2_000, index_interval_bytes=200)
PRODUCERS = 4


def written(count: int, path: str = FOLDER, first: int = 0) -> tuple[Files, list[ProducerView]]:
    """The files of a log that was closed, and what its producers did last."""
    disk = MemoryDisk()
    log = open_log(disk, path, config=CONFIG)
    for number in range(count):
        sequence = number // PRODUCERS
        data = batch(
            log.end_offset, size=20, producer_id=first + number % PRODUCERS, producer_epoch=0, base_sequence=sequence
        )
        log.append_batches(data, 1000)
    views = log.producers.describe()
    log.close()
    return {name: disk.read_bytes(f"{path}/{name}") for name in disk.list(path)}, views


def known(log: Log) -> list[tuple[int, int, int]]:
    return sorted((view.producer_id, view.producer_epoch, view.last_sequence) for view in log.producers.describe())


def expected(views: list[ProducerView]) -> list[tuple[int, int, int]]:
    return sorted((view.producer_id, view.producer_epoch, view.last_sequence) for view in views)


def is_refused(log: Log, producer_id: int, sequence: int) -> bool:
    return log.producers.check(producer_id, 0, sequence, 0) is not None


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("count", [7, 90], ids=["one segment", "many"])
@pytest.mark.parametrize(
    "kind", ["flip", "cut", "zero", "empty", "remove", "remove all", "swap", "older", "stranger's"]
)
def test_producers_are_remembered(kind: str, count: int, clean: bool) -> None:
    whole, views = written(count)
    for seed in range(4):
        dice = random.Random(seed)
        files = dict(whole)
        names = sorted(name for name in files if name.endswith(SNAPSHOT_SUFFIX))
        for name in names if kind == "remove all" else names[-1 - dice.randrange(len(names)) :]:
            data = bytearray(files[name])
            if kind == "flip":
                data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
            elif kind == "cut":
                del data[dice.randrange(len(data)) :]
            elif kind == "zero":
                data[:] = bytes(len(data))
            elif kind == "empty":
                data.clear()
            elif kind == "swap":
                data[:] = whole[dice.choice(names)]
            elif kind == "older":
                older, _ = written(count - 3)
                data[:] = older[sorted(name for name in older if name.endswith(SNAPSHOT_SUFFIX))[-1]]
            elif kind == "stranger's":
                others, _ = written(count, "/data/other-0", first=50)
                data[:] = others[name]
            files[name] = bytes(data)
            if kind.startswith("remove"):
                del files[name]
        last = max(int(name[:20]) for name in whole if name.endswith(".log"))
        log = open_log(restored(files), config=CONFIG, clean=clean, recovery_point=last)
        assert known(log) == expected(views), seed
        for view in views:
            assert is_refused(log, view.producer_id, view.last_sequence)


def test_an_older_snapshot_that_does_not_say_so_is_found_out_by_the_log() -> None:
    """As Kafka writes them: one that was exchanged for an older one would have let a duplicate in."""
    whole, views = written(7)
    (name,) = (name for name in whole if name.endswith(SNAPSHOT_SUFFIX))
    states = ProducerStates()
    for producer_id in range(3):
        states.record(producer_id, 0, 0, producer_id, 0, 1000)
    files = {**whole, name: states.snapshot()}
    log = open_log(restored(files), config=CONFIG, clean=True)
    assert known(log) == expected(views)


def test_what_has_expired_is_not_missed_in_a_snapshot() -> None:
    whole, _ = written(7)
    (name,) = (name for name in whole if name.endswith(SNAPSHOT_SUFFIX))
    files = {**whole, name: ProducerStates().snapshot()}
    disk = restored(files)
    log = Log.open(disk, FOLDER, CONFIG, clean=True, now_ms=100_000, producer_expiration_ms=50_000)
    assert not log.producers.describe()
    assert files_of(disk)[name] == files[name]


def test_a_name_that_only_looks_like_a_number_is_nobodys_snapshot() -> None:
    whole, views = written(7)
    files = {**whole, f"{'²' * 20}{SNAPSHOT_SUFFIX}": b"", f"{'9' * 30}{SNAPSHOT_SUFFIX}": b"x"}
    assert known(open_log(restored(files), config=CONFIG, clean=True)) == expected(views)
