"""Cutting replicas where their leader's log parts from theirs, on several disks at once."""

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.metrics import Metrics
from headrace.broker.replicas.truncation import Truncation, TruncationParts
from headrace.records.builder import build_batch
from headrace.records.layout import read_header
from headrace.records.reader import Record
from headrace.storage.log import Log
from headrace.storage.manager import LogManager
from headrace.testing.simulator.disk import MemoryDisk


def filled(logs: LogManager, directory: str, partition: int) -> Log:
    directory_id = next(d.directory_id for d in logs.dirs if d.path == directory)
    log = logs.create("t", partition, b"topic-id-of-a-t.", 0, directory_id=directory_id)
    for offset in range(4):
        batch = build_batch([Record(offset, 1, None, b"v")], base_offset=offset, leader_epoch=0)
        header = read_header(batch, 0)
        log.append(memoryview(batch), offset, header.last_offset, 0, 1, 0)
    return log


@pytest.mark.parametrize("failing", ["/one", "/two"])
def test_a_disk_that_fails_is_blamed_itself_and_the_other_is_cut(failing: str) -> None:
    disk = MemoryDisk()
    logs = LogManager(disk, ["/one", "/two"], node_id=1)
    logs.open()
    cuts: list[tuple[Any, int]] = []
    for number, directory in enumerate(["/one", "/two", "/one", "/two"]):
        partition = SimpleNamespace(log=filled(logs, directory, number), truncated=lambda: None)
        cuts.append((SimpleNamespace(partition=partition), 2))
    blamed: list[str] = []
    ready: list[Any] = []
    failures: Any = SimpleNamespace(failed=lambda log, error: blamed.append(logs.dir_of(log).path))
    nothing: Any = None
    metrics = Metrics()
    parts = TruncationParts(1, nothing, logs, failures, nothing, nothing, nothing, metrics)
    disk.fail("truncate", path=f"{failing}/*")
    Truncation(parts, 2, 1.0, ready.append, lambda copy: None, lambda copy: None).cut(cuts)
    assert blamed == [failing]
    whole = [copy for copy, _ in cuts if logs.dir_of(copy.partition.log).path != failing]
    assert ready == whole and [copy.partition.log.end_offset for copy in whole] == [2, 2]
    assert metrics.truncations == 2
