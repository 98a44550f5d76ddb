"""A broker meets what the network brings: garbage, half frames, floods, silence. It keeps serving everybody else."""

import os
import resource
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest

from tests.broker.support import (
    PATIENCE_S,
    create_topic,
    fetch_fields,
    is_closed,
    produce,
    read_log,
    rss_bytes,
)
from tests.compat.process import HeadraceProcess
from tests.compat.raw import Closed, Connection, decode_response, encode_request, request_header
from tests.waiting import eventually

IDLE_MS = 3000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceProcess]:
    config = {"connections.max.idle.ms": IDLE_MS, "socket.request.max.bytes": 8 << 20}
    with HeadraceProcess(tmp_path_factory.mktemp("abuse") / "data", config=config) as process:
        create_topic(process.port, "t")
        yield process
        assert "Traceback" not in process.output()


@pytest.fixture(autouse=True)
def still_serving(broker: HeadraceProcess) -> Iterator[None]:
    """After every abuse: a new client gets its answer, and a record comes back."""
    yield
    with Connection(broker.port, PATIENCE_S) as wire:
        error, offset = produce(wire, "t", 0, b"still here")
        assert error == 0
        answer = wire.ask("Fetch", 12, fetch_fields("t", 0, offset))
        assert b"still here" in bytes(answer.responses[0].partitions[0].records)


def no_more(wire: Connection) -> None:
    """Say that nothing follows; the broker may have closed already."""
    with suppress(OSError):
        wire.socket.shutdown(socket.SHUT_WR)


def until_closed(wire: Connection) -> list[bytes]:
    """What is answered before the broker closes the connection."""
    answers: list[bytes] = []
    with suppress(Closed):
        while True:
            answers.append(wire.receive())
    return answers


def test_random_bytes(broker: HeadraceProcess) -> None:
    dice = Random(1)
    for _ in range(60):
        with Connection(broker.port) as wire:
            wire.send_bytes(dice.randbytes(dice.choice([1, 4, 13, 100, 5000])))
            no_more(wire)
            with pytest.raises(Closed):
                wire.receive()


def test_random_bodies_of_real_requests(broker: HeadraceProcess) -> None:
    """The header is good and what follows is not: an answer or a closed connection, nothing else."""
    from headrace.protocol.api import API

    dice = Random(2)
    for key, api in sorted(API.items()):
        for version in {api.min_version, api.max_version}:
            with Connection(broker.port) as wire:
                body = dice.randbytes(dice.choice([0, 3, 50, 300]))
                wire.send(request_header(key, version, flexible=version >= api.flexible_from) + body)
                wire.send_bytes(dice.randbytes(40))
                no_more(wire)
                answers = until_closed(wire)
                assert [struct.unpack_from(">i", answer) for answer in answers] in ([], [(7,)]), (key, version)


@pytest.mark.parametrize("length", [-(1 << 31), -1, 0, 3, (8 << 20) + 1, (1 << 31) - 1])
def test_absurd_lengths(broker: HeadraceProcess, length: int) -> None:
    before = rss_bytes(broker.pid)
    with Connection(broker.port) as wire:
        good = encode_request("ApiVersions", 0, {})
        wire.send_bytes(struct.pack(">i", len(good)) + good + struct.pack(">i", length) + bytes(100))
        assert decode_response("ApiVersions", 0, wire.receive()).error_code == 0, "the good one is answered first"
        with pytest.raises(Closed):
            wire.receive()
    assert rss_bytes(broker.pid) - before < 8 << 20


def test_lengths_that_are_announced_and_never_sent_cost_nothing(broker: HeadraceProcess) -> None:
    before = rss_bytes(broker.pid)
    connections = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(200)]
    for connection in connections:
        connection.sendall(struct.pack(">i", 8 << 20) + bytes(1000))
    with Connection(broker.port) as wire:
        wire.ask("ApiVersions", 0, {})
    grown = rss_bytes(broker.pid) - before
    for connection in connections:
        connection.close()
    assert grown < 40 << 20, f"{grown >> 20} MB for frames of 1.6 GB that never came"


@pytest.mark.parametrize("api, version", [(3, 99), (0, 0), (1, 2), (999, 0), (-1, 0)])
def test_versions_that_are_not_served_close_the_connection(broker: HeadraceProcess, api: int, version: int) -> None:
    with Connection(broker.port) as wire:
        wire.send(request_header(api, version) + bytes(20))
        with pytest.raises(Closed):
            wire.receive()


@pytest.mark.parametrize("version", [-5, 99])
def test_a_version_of_api_versions_that_is_not_served_is_answered_in_the_oldest(
    broker: HeadraceProcess, version: int
) -> None:
    with Connection(broker.port) as wire:
        wire.send(request_header(18, version) + bytes(20))
        answer = decode_response("ApiVersions", 0, wire.receive())
        assert answer.error_code == 35 and [row.api_key for row in answer.api_keys] == [18]
        assert wire.ask("ApiVersions", 0, {}).error_code == 0, "the client may ask again"


def test_connections_that_break_off_at_every_byte(broker: HeadraceProcess) -> None:
    request = encode_request("Metadata", 9, {"topics": [{"name": "t"}]})
    frame = struct.pack(">i", len(request)) + request
    for cut in range(len(frame)):
        with socket.create_connection(("127.0.0.1", broker.port)) as wire:
            wire.sendall(frame[:cut])


@pytest.mark.parametrize(
    "greeting",
    [
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(506),  # TLS
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ],
)
def test_greetings_of_other_protocols_are_refused_at_once(broker: HeadraceProcess, greeting: bytes) -> None:
    before = rss_bytes(broker.pid)
    with Connection(broker.port) as wire:
        wire.send_bytes(greeting)
        with pytest.raises(Closed):
            wire.receive()
    assert rss_bytes(broker.pid) - before < 8 << 20


def test_one_byte_at_a_time_is_slow_and_right(broker: HeadraceProcess) -> None:
    with Connection(broker.port) as wire:
        request = encode_request("Metadata", 5, {"topics": [{"name": "t"}]})
        for byte in struct.pack(">i", len(request)) + request:
            wire.send_bytes(bytes([byte]))
        assert decode_response("Metadata", 5, wire.receive()).topics[0].name == "t"


def test_a_flood_of_pipelined_requests_is_answered_in_order(broker: HeadraceProcess) -> None:
    with Connection(broker.port, PATIENCE_S) as wire:
        wire.socket.settimeout(PATIENCE_S)
        count = 3000
        flood = b""
        for number in range(count):
            request = encode_request("ApiVersions", 0, {}, correlation_id=number)
            flood += struct.pack(">i", len(request)) + request
        half = len(flood) // 2
        wire.send_bytes(flood[:half])
        wire.send_bytes(flood[half:])
        for number in range(count):
            decode_response("ApiVersions", 0, wire.receive(), correlation_id=number)


def test_a_reader_that_does_not_read_costs_little_and_gets_everything_in_the_end(broker: HeadraceProcess) -> None:
    port = broker.port
    create_topic(port, "wide")
    value = Random(3).randbytes(900_000)
    with Connection(port, PATIENCE_S) as wire:
        for _ in range(20):
            assert produce(wire, "wide", 0, value)[0] == 0
    before = rss_bytes(broker.pid)
    slow = []
    for _ in range(10):
        wire = Connection(port, PATIENCE_S)
        for number in range(100):
            wire.send(encode_request("Fetch", 12, fetch_fields("wide", 0, 0) | {"max_bytes": 20 << 20}, number))
        slow.append(wire)
    started = time.monotonic()
    with Connection(port, PATIENCE_S) as other:
        for _ in range(20):
            other.ask("ApiVersions", 0, {})
    assert time.monotonic() - started < PATIENCE_S
    grown = rss_bytes(broker.pid) - before
    assert grown < 30 << 20, f"{grown >> 20} MB held for readers that do not read"
    frame = slow[0].receive()
    answer = decode_response("Fetch", 12, frame, 0)
    assert bytes(answer.responses[0].partitions[0].records).count(value[:100]) >= 1
    for wire in slow:
        wire.socket.close()
        wire.stream.close()
    assert sum(1 for _ in read_log(port, "wide")) == 20


def test_limits_of_connections(tmp_path: Path) -> None:
    config = {"max.connections.per.ip": 20, "max.connections.per.ip.overrides": "127.0.0.9:3", "max.connections": 22}
    with HeadraceProcess(tmp_path / "data", config=config) as process:
        address = ("127.0.0.1", process.port)
        held = [socket.create_connection(address) for _ in range(25)]
        eventually(lambda: sum(map(is_closed, held)) == 5, "20 of 25 from one address are kept")
        few = [socket.create_connection(address, source_address=("127.0.0.9", 0)) for _ in range(5)]
        eventually(lambda: sum(map(is_closed, few)) == 3, "2 more fill the broker")
        assert "max.connections=22 reached" in process.output()
        assert "max.connections.per.ip=20 reached for 127.0.0.1" in process.output()
        for connection in held:
            connection.close()
        again = [socket.create_connection(address, source_address=("127.0.0.9", 0)) for _ in range(3)]
        eventually(lambda: sum(map(is_closed, again)) == 2, "the override allows 3 in all")
        with Connection(process.port) as wire:
            wire.ask("ApiVersions", 0, {})


def test_two_thousand_idle_connections(tmp_path: Path) -> None:
    with HeadraceProcess(tmp_path / "data") as process:
        create_topic(process.port, "t")
        before = rss_bytes(process.pid)
        held = [socket.create_connection(("127.0.0.1", process.port)) for _ in range(2000)]
        with Connection(process.port, PATIENCE_S) as wire:
            assert produce(wire, "t", 0, b"x")[0] == 0
        each = (rss_bytes(process.pid) - before) // len(held)
        for connection in held:
            connection.close()
        assert each < 32 << 10, f"{each} bytes for each idle connection"
        with Connection(process.port, PATIENCE_S) as wire:
            assert produce(wire, "t", 0, b"x")[0] == 0


def test_out_of_descriptors_it_serves_those_it_has_and_does_not_spin(tmp_path: Path) -> None:
    with HeadraceProcess(tmp_path / "data") as process:
        create_topic(process.port, "t")
        with Connection(process.port, PATIENCE_S) as old:
            assert produce(old, "t", 0, b"before")[0] == 0
            in_use = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (in_use + 10, in_use + 10))
            held = [socket.create_connection(("127.0.0.1", process.port)) for _ in range(60)]
            started_cpu, started = cpu_seconds(process.pid), time.monotonic()
            for _ in range(10):
                assert produce(old, "t", 0, b"served")[0] == 0
                time.sleep(0.1)
            spent = (cpu_seconds(process.pid) - started_cpu) / (time.monotonic() - started)
            assert spent < 0.6, f"{spent:.0%} of a core for connections that it cannot take"
            for connection in held:
                connection.close()

            def served() -> bool:
                try:
                    with Connection(process.port, 5) as wire:
                        return produce(wire, "t", 0, b"new")[0] == 0
                except (Closed, OSError):
                    return False

            eventually(served, "a new client is served once others have left")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_silence_and_half_a_frame_end_in_a_closed_connection(broker: HeadraceProcess) -> None:
    request = encode_request("Metadata", 5, {"topics": []})
    with (
        socket.create_connection(("127.0.0.1", broker.port)) as mute,
        socket.create_connection(("127.0.0.1", broker.port)) as half,
    ):
        half.sendall(struct.pack(">i", len(request)) + request[:-1])
        for kind, connection in (("mute", mute), ("half", half)):
            eventually(partial(is_closed, connection), f"the {kind} connection is closed")
