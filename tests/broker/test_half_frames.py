"""Half-sent frames: however many and however large, no turn of the loop is long, and their memory comes back."""

import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.broker.loop_probe import ProbedBroker
from tests.broker.support import PATIENCE_S, create_topic, is_closed, produce, rss_bytes
from tests.compat.process import HeadraceProcess
from tests.compat.raw import Connection
from tests.waiting import eventually

FRAME_BYTES = 99 << 20
TURN_MS = 100
"""CPU time; a quiet machine needs a sixth of it. With buffers that are cleared and copied it was 700."""


def half_a_frame(port: int, size: int) -> socket.socket:
    wire = socket.create_connection(("127.0.0.1", port))
    wire.settimeout(PATIENCE_S)
    wire.sendall(struct.pack(">ihhih", FRAME_BYTES, 0, 9, 1, -1))
    piece = bytes(1 << 20)
    for _ in range(size >> 20):
        wire.sendall(piece)
    return wire


def test_no_turn_of_the_loop_is_long_while_large_frames_come_and_go(tmp_path: Path) -> None:
    with ProbedBroker(tmp_path) as broker, ThreadPoolExecutor(12) as threads:
        broker.reset()
        wires = list(threads.map(lambda _: half_a_frame(broker.port, 48 << 20), range(12)))
        eventually(lambda: broker.call(lambda: broker.broker.budget.used_bytes) >= 12 * (48 << 20), "all has come")
        assert broker.longest_turn_ms() < TURN_MS
        broker.reset()
        for wire in wires:
            wire.close()
        eventually(lambda: not broker.call(lambda: broker.broker.budget.used_bytes), "all is given back")
        assert broker.longest_turn_ms() < TURN_MS


def test_memory_is_taken_as_bytes_come_and_given_back_when_the_rest_does_not(tmp_path: Path) -> None:
    config = {"request.receive.timeout.ms": 1000, "queued.max.request.bytes": 128 << 20}
    with HeadraceProcess(tmp_path / "data", config=config) as process:
        create_topic(process.port, "t")
        before = rss_bytes(process.pid)
        announced = [half_a_frame(process.port, 0) for _ in range(100)]
        assert rss_bytes(process.pid) - before < 8 << 20, "9.9 GB announced, nothing sent"
        halves = [half_a_frame(process.port, 20 << 20) for _ in range(2)]
        eventually(lambda: rss_bytes(process.pid) - before > 40 << 20, "what was sent is held")
        eventually(lambda: all(map(is_closed, halves)), "whoever sends no more loses the connection")
        assert "bytes of a request, and no more for 1000 ms" in process.output()
        eventually(lambda: rss_bytes(process.pid) - before < 8 << 20, "and the memory goes back")
        assert not any(map(is_closed, announced)), "those hold nothing that others need"
        with Connection(process.port, PATIENCE_S) as wire:
            assert produce(wire, "t", 0, b"x" * 900_000)[0] == 0
        for connection in (*announced, *halves):
            connection.close()
