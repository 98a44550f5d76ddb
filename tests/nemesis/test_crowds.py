"""Crowds and tricks against one broker: ten thousand silent connections, readers that do not read, records that
unfold."""

import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import Err
from headrace.records.compression import Codec, compress
from tests.broker.support import (
    PATIENCE_S,
    create_topic,
    fetch_fields,
    produce,
    produce_fields,
    rss_bytes,
)
from tests.compat.process import HeadraceProcess
from tests.compat.raw import Connection, Rec, batch, decode_response, encode_records, encode_request
from tests.waiting import eventually

IDLE = 10_000
DESCRIPTORS = 3 * IDLE
"""Of a broker's, four in ten are for connections."""
EACH_BYTES_MAX = 32 << 10


@pytest.fixture
def crowd() -> Iterator[int]:
    """How many connections there can be: ten thousand, or fewer where the machine grants fewer descriptors."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], DESCRIPTORS), max(before[1], DESCRIPTORS)))
    except (OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    granted = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield min(IDLE, (granted - 500) * 4 // 10 - 100)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


class Probe(threading.Thread):
    """Somebody who works while the crowd is there; how long the slowest answer took."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.longest_s = 0.0
        self.answers = 0
        self._stop_asked = threading.Event()

    def run(self) -> None:
        with Connection(self.port, PATIENCE_S) as wire:
            while not self._stop_asked.is_set():
                began = time.perf_counter()
                error, _ = produce(wire, "t", 0, b"work")
                assert error == 0, error
                self.longest_s = max(self.longest_s, time.perf_counter() - began)
                self.answers += 1

    def stop(self) -> None:
        self._stop_asked.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()


def silent(port: int, number: int) -> socket.socket:
    """From several addresses, as they would come: one has too few ports for many times this."""
    return socket.create_connection(("127.0.0.1", port), PATIENCE_S, source_address=(f"127.0.1.{1 + number % 8}", 0))


def test_ten_thousand_idle_connections(tmp_path: Path, crowd: int) -> None:
    with HeadraceProcess(tmp_path / "data") as broker:
        create_topic(broker.port, "t")
        before = rss_bytes(broker.pid)
        probe = Probe(broker.port)
        probe.start()
        held: list[socket.socket] = []
        try:
            held.extend(silent(broker.port, number) for number in range(crowd))
            served = probe.answers
            deadline = time.monotonic() + PATIENCE_S
            while probe.answers < served + 50:
                assert time.monotonic() < deadline, "the crowd keeps others from being served"
                time.sleep(0.02)
            probe.stop()
            each = (rss_bytes(broker.pid) - before) // crowd
            assert each < EACH_BYTES_MAX, f"{each} bytes for each idle connection"
            # The last that came is a client like any other.
            request = encode_request("ApiVersions", 0, {})
            held[-1].sendall(len(request).to_bytes(4) + request)
            assert len(held[-1].recv(4)) == 4
        finally:
            for connection in held:
                connection.close()
        with Connection(broker.port, PATIENCE_S) as wire:
            assert produce(wire, "t", 0, b"after")[0] == 0
        assert "Traceback" not in broker.output()
        print(f"{crowd} connections, {each} bytes each, longest answer {probe.longest_s * 1000:.0f} ms")


def test_readers_that_do_not_read_hold_nobody_up(tmp_path: Path) -> None:
    """A hundred that each ask for megabytes again and again and take nothing: others write and read as before."""
    with HeadraceProcess(tmp_path / "data") as broker:
        create_topic(broker.port, "t")
        create_topic(broker.port, "wide")
        with Connection(broker.port, PATIENCE_S) as wire:
            for _ in range(10):
                assert produce(wire, "wide", 0, bytes(900_000))[0] == 0
        before = rss_bytes(broker.pid)
        slow = [Connection(broker.port, PATIENCE_S) for _ in range(100)]
        try:
            for wire in slow:
                for number in range(20):
                    wire.send(encode_request("Fetch", 12, fetch_fields("wide", 0, 0), number))
            probe = Probe(broker.port)
            probe.start()
            deadline = time.monotonic() + PATIENCE_S
            while probe.answers < 50:
                assert time.monotonic() < deadline and probe.is_alive()
                time.sleep(0.02)
            probe.stop()
            grown = rss_bytes(broker.pid) - before
            assert grown < 64 << 20, f"{grown >> 20} MB held for readers that do not read"
        finally:
            for wire in slow:
                wire.__exit__(None, None, None)


@pytest.mark.parametrize("configs", [{"cleanup_policy": "compact"}, {"compression_type": "lz4"}])
def test_records_that_unfold_hold_nobody_up_and_memory_stays_bounded(tmp_path: Path, configs: dict[str, Any]) -> None:
    """Kilobytes that become 90 MB, or 200, as soon as somebody looks into them."""
    with HeadraceProcess(tmp_path / "data") as broker:
        create_topic(broker.port, "t")
        create_topic(broker.port, "looked-into", **configs)
        before = rss_bytes(broker.pid)
        payloads = {n: compress(Codec.ZSTD, encode_records([Rec(bytes(n << 20), b"k")])) for n in (90, 200)}
        probe = Probe(broker.port)
        probe.start()
        bombs = []
        for megabytes in (90, 90, 90, 200):
            now_ms = int(time.time() * 1000)
            data = batch(payload=payloads[megabytes], count=1, attributes=int(Codec.ZSTD), base_timestamp=now_ms)
            wire = Connection(broker.port, PATIENCE_S)
            wire.send(encode_request("Produce", 9, produce_fields("looked-into", 0, data)))
            bombs.append(wire)
        answers = [decode_response("Produce", 9, wire.receive()) for wire in bombs]
        eventually(lambda: probe.answers > 5 and probe.is_alive(), "others are served")
        probe.stop()
        codes = [answer.responses[0].partition_responses[0].error_code for answer in answers]
        assert codes == [Err.NONE] * 3 + [Err.INVALID_RECORD]
        peak = int(
            next(
                line for line in Path(f"/proc/{broker.pid}/status").read_text().splitlines() if "VmHWM" in line
            ).split()[1]
        )
        assert (peak << 10) - before < 550 << 20, f"{peak >> 10} MB"
        for wire in bombs:
            wire.__exit__(None, None, None)
        print(f"peak {peak >> 10} MB, longest answer {probe.longest_s * 1000:.0f} ms")
