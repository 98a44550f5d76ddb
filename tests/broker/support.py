"""Real broker processes under test: folders compared, memory measured, records written and read back over the wire."""

import hashlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.errors import Err
from headrace.records.batch import check_stored
from headrace.records.layout import iter_headers
from headrace.records.reader import read_records
from tests.compat.raw import Connection, Rec, batch

PATIENCE_S = 30.0
"""For what must happen soon: the machine may be busy."""


def snapshot(folder: Path) -> dict[str, str]:
    """Every file and what is in it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
    return found


def rss_bytes(pid: int) -> int:
    """Memory that a process really has."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def create_topic(port: int, name: str, partitions: int = 1, **configs: str) -> None:
    settings = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    fields = {
        "topics": [{"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": settings}],
        "timeout_ms": 10_000,
    }
    with Connection(port, PATIENCE_S) as wire:
        answer = wire.ask("CreateTopics", 5, fields)
    assert answer.topics[0].error_code == 0, answer


def produce_fields(topic: str, partition: int, data: bytes, acks: int = -1) -> dict[str, Any]:
    rows = [{"index": partition, "records": data}]
    return {"acks": acks, "timeout_ms": 30_000, "topic_data": [{"name": topic, "partition_data": rows}]}


def produce(wire: Connection, topic: str, partition: int, *values: bytes | None, acks: int = -1) -> tuple[Err, int]:
    """(error, base offset) of one batch."""
    data = batch(*map(Rec, values), base_timestamp=int(time.time() * 1000))
    answer = wire.ask("Produce", 9, produce_fields(topic, partition, data, acks))
    row = answer.responses[0].partition_responses[0]
    return Err(row.error_code), row.base_offset


def fetch_fields(topic: str, partition: int, offset: int, **more: Any) -> dict[str, Any]:
    rows = [{"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}]
    defaults = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 50 << 20, "session_epoch": -1}
    return {**defaults, **more, "topics": [{"topic": topic, "partitions": rows}]}


def end_offset(wire: Connection, topic: str, partition: int = 0) -> int:
    """Where committed records end. A leader that has just started may first have to sync what it found."""
    rows = [{"partition_index": partition, "timestamp": -1}]
    deadline = time.monotonic() + PATIENCE_S
    while True:
        answer = wire.ask("ListOffsets", 5, {"replica_id": -1, "topics": [{"name": topic, "partitions": rows}]})
        found = answer.topics[0].partitions[0]
        if found.error_code != Err.OFFSET_NOT_AVAILABLE:
            assert found.error_code == 0, Err(found.error_code)
            return int(found.offset)
        assert time.monotonic() < deadline, "never available"
        time.sleep(0.01)


def read_log(port: int, topic: str, partition: int = 0) -> Iterator[tuple[int, bytes]]:
    """(offset, value) of every committed record. Checks each batch's CRC and that offsets have no gaps."""
    with Connection(port, PATIENCE_S) as wire:
        end_offset(wire, topic, partition)
        offset = 0
        while True:
            answer = wire.ask("Fetch", 12, fetch_fields(topic, partition, offset))
            (row,) = answer.responses[0].partitions
            assert row.error_code == 0, Err(row.error_code)
            data = memoryview(bytes(row.records or b""))
            before = offset
            for position, header in iter_headers(data):
                check_stored(data, position, len(data))
                assert header.base_offset == offset, f"offset {header.base_offset} where {offset} comes next"
                for record in read_records(data, position, header):
                    yield record.offset, bytes(record.value or b"")
                offset = header.end_offset
            if offset == before:
                assert offset == row.high_watermark, "records are missing"
                return


def is_closed(wire: socket.socket) -> bool:
    """Has the broker closed this connection? Does not wait."""
    wire.setblocking(False)
    try:
        return wire.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
