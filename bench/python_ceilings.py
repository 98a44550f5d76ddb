"""What a client could reach that does next to nothing: batches that were made before go into a blocking socket, and
what was fetched is thrown away. That is as fast as broker, kernel and cores are together, whoever the client is.
"""

import asyncio
import math
import os
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

from headrace.client.net.cluster import Cluster
from headrace.protocol import messages as m
from headrace.protocol.api import API, ApiKey
from headrace.protocol.frames import LENGTH, decode_response, encode_request
from headrace.records.batch import BatchBuilder
from headrace.records.layout import iter_headers

BATCH_BYTES, FETCH_BYTES, IN_FLIGHT = 256 << 10, 8 << 20, 5


class Ceiling(NamedTuple):
    """Records per second, and the broker's microseconds of processor time for each."""

    rate: float
    broker_us: float


class Socket:
    """Frames out and in, of one partition's leader."""

    def __init__(self, boot: str, topic: str) -> None:
        asyncio.run(self._look(boot, topic))
        self._socket = socket.create_connection(self._address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(FETCH_BYTES + (1 << 20)))

    async def _look(self, boot: str, topic: str) -> None:
        async with Cluster(boot) as cluster:
            found, _, connection = await cluster.leader(topic, 0)
            self.topic_id, self.topic = found.topic_id, topic
            self._address = connection.host, connection.port
            self._versions = {key: connection.version_of(key) for key in (ApiKey.PRODUCE, ApiKey.FETCH)}

    def frame(self, key: ApiKey, body: Any) -> bytes:
        return b"".join(encode_request(API[key], self._versions[key], 1, "bench", body))

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> memoryview:
        self._fill(self._buffer[:4])
        (length,) = LENGTH.unpack_from(self._buffer)
        self._fill(self._buffer[:length])
        return self._buffer[:length]

    def _fill(self, room: memoryview) -> None:
        while room:
            room = room[self._socket.recv_into(room) :]

    def answer(self, key: ApiKey, frame: memoryview) -> Any:
        return decode_response(API[key], self._versions[key], frame)[1]

    def close(self) -> None:
        self._socket.close()


def ready_batch(value: bytes, count: int) -> bytes:
    builder = BatchBuilder()
    for _ in range(count):
        builder.append(time.time_ns() // 1_000_000, None, value)
    return builder.build()


def produce_frame(to: Socket, batch: bytes) -> bytes:
    kind = m.ProduceRequest
    part = kind.PartitionProduceData(index=0, records=batch)
    topic = kind.TopicProduceData(name=to.topic, topic_id=to.topic_id, partition_data=[part])
    return to.frame(ApiKey.PRODUCE, kind(acks=-1, timeout_ms=30_000, topic_data=[topic]))


def out(boot: str, topic: str, value: bytes, count: int, pid: int) -> Ceiling:
    to = Socket(boot, topic)
    try:
        each = max(1, BATCH_BYTES // (len(value) + 10))
        frame = produce_frame(to, ready_batch(value, each))
        requests = math.ceil(count / each)
        cpu_s, began = broker_cpu_s(pid), time.perf_counter()
        for number in range(requests + IN_FLIGHT):
            if number < requests:
                to.send(frame)
            if number >= IN_FLIGHT:
                last = to.receive()
        wall_s = time.perf_counter() - began
        assert to.answer(ApiKey.PRODUCE, last).responses[0].partition_responses[0].error_code == 0
        return Ceiling(requests * each / wall_s, (broker_cpu_s(pid) - cpu_s) / (requests * each) * 1e6)
    finally:
        to.close()


def back_in(boot: str, topic: str, count: int, pid: int) -> Ceiling:
    source = Socket(boot, topic)
    try:
        kind, offset = m.FetchRequest, 0
        cpu_s, began = broker_cpu_s(pid), time.perf_counter()
        while offset < count:
            part = kind.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=FETCH_BYTES)
            rows = [kind.FetchTopic(topic=topic, topic_id=source.topic_id, partitions=[part])]
            request = kind(max_wait_ms=500, min_bytes=1, max_bytes=FETCH_BYTES, topics=rows)
            source.send(source.frame(ApiKey.FETCH, request))
            records = source.answer(ApiKey.FETCH, source.receive()).responses[0].partitions[0].records
            for _, header in iter_headers(memoryview(records)):
                offset = header.end_offset
        wall_s = time.perf_counter() - began
        return Ceiling(offset / wall_s, (broker_cpu_s(pid) - cpu_s) / offset * 1e6)
    finally:
        source.close()


def one(boot: str, topic: str, value: bytes, sends: int, warm: int) -> float:
    """The median of one record there and its answer back, in milliseconds."""
    to = Socket(boot, topic)
    try:
        frame, times = produce_frame(to, ready_batch(value, 1)), []
        for number in range(sends + warm):
            began = time.perf_counter()
            to.send(frame)
            to.receive()
            if number >= warm:
                times.append(time.perf_counter() - began)
        return sorted(times)[len(times) // 2] * 1000
    finally:
        to.close()


def broker_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
