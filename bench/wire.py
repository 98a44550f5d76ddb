"""Requests encoded once and sent many times, so that nearly all the work of a run is the broker's.
Old, simple versions on purpose (Produce 7, Fetch 11, CreateTopics 4): every broker serves them alike."""

import os
import socket
import struct
import time
from collections.abc import Mapping, Sequence

from tests.compat.raw import Rec, batch

PRODUCE, FETCH, CREATE_TOPICS, DELETE_TOPICS = 0, 1, 19, 20


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def frame(key: int, version: int, body: bytes) -> bytes:
    request = struct.pack(">hhi", key, version, 0) + text("bench") + body
    return struct.pack(">i", len(request)) + request


def random_batch(count: int, size_bytes: int, key: bytes | None = None) -> bytes:
    """Records of noise with the present time, so that nothing is expired or compressible."""
    now_ms = int(time.time() * 1000)
    return batch(*(Rec(os.urandom(size_bytes), key) for _ in range(count)), base_timestamp=now_ms)


def produce(topic: str, partitions: Sequence[int], records: bytes, acks: int = -1) -> bytes:
    parts = b"".join(struct.pack(">ii", p, len(records)) + records for p in partitions)
    head = struct.pack(">hhii", -1, acks, 30_000, 1) + text(topic) + struct.pack(">i", len(partitions))
    return frame(PRODUCE, 7, head + parts)


def produce_error(answer: bytes | memoryview, topic: str) -> int:
    """The first partition's error code in an answer (correlation id included) to `produce`."""
    return int(struct.unpack_from(">h", answer, 4 + 4 + 2 + len(topic) + 4 + 4)[0])


def fetch(topic: str, partition: int, offset: int, max_bytes: int, isolation: int = 0) -> bytes:
    head = struct.pack(">iiiibii", -1, 500, 1, max_bytes, isolation, 0, -1)
    part = struct.pack(">iiqqi", partition, -1, offset, -1, max_bytes)
    return frame(
        FETCH,
        11,
        head + struct.pack(">i", 1) + text(topic) + struct.pack(">i", 1) + part + struct.pack(">i", 0) + text(""),
    )


def fetched(answer: memoryview, topic: str) -> tuple[int, int, memoryview]:
    """(error code, high watermark, records) of the one partition in an answer to `fetch`."""
    at = 4 + 4 + 2 + 4 + 4 + 2 + len(topic) + 4
    _, error, high_watermark = struct.unpack_from(">ihq", answer, at)
    at += 4 + 2 + 8 + 8 + 8
    (aborted,) = struct.unpack_from(">i", answer, at)
    at += 4 + max(aborted, 0) * 16 + 4
    (size,) = struct.unpack_from(">i", answer, at)
    return error, high_watermark, answer[at + 4 : at + 4 + max(size, 0)]


def next_offset(records: memoryview) -> int | None:
    """The offset after the last whole batch."""
    at, found, end = 0, None, len(records)
    while at + 61 <= end:
        base, length = struct.unpack_from(">qi", records, at)
        if at + 12 + length > end:
            break
        found = base + struct.unpack_from(">i", records, at + 23)[0] + 1
        at += 12 + length
    return found


# One-off requests


def call(port: int, request: bytes, timeout_s: float = 300) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s) as sock:
        sock.sendall(request)
        stream = sock.makefile("rb")
        return stream.read(struct.unpack(">i", stream.read(4))[0])


def create_topic(port: int, topic: str, partitions: int = 1, configs: Mapping[str, object] | None = None) -> None:
    """Makes a topic and waits until each of its partitions takes a record."""
    settings = {"file.delete.delay.ms": 1000, **(configs or {})}
    body = struct.pack(">i", 1) + text(topic) + struct.pack(">ihii", partitions, 1, 0, len(settings))
    body += b"".join(text(name) + text(str(value)) for name, value in settings.items())
    answer = call(port, frame(CREATE_TOPICS, 4, body + struct.pack(">i?", 120_000, False)))
    (error,) = struct.unpack_from(">h", answer, 4 + 4 + 4 + 2 + len(topic))
    if error:
        raise RuntimeError(f"creating {topic} on port {port}: error {error}: {answer!r}")
    record = random_batch(1, 10, b"k")
    deadline = time.monotonic() + 120
    for partition in {0, partitions - 1}:
        while error := produce_error(call(port, produce(topic, [partition], record)), topic):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{topic}-{partition} on port {port} is not ready: error {error}")
            time.sleep(0.05)


def delete_topic(port: int, topic: str) -> None:
    call(port, frame(DELETE_TOPICS, 1, struct.pack(">i", 1) + text(topic) + struct.pack(">i", 30_000)))
