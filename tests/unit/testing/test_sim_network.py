"""The simulated network keeps TCP's promises, and breaks everything TCP does not promise."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any

import pytest

from headrace.testing.simulator.loop import SimLoop
from headrace.testing.simulator.network import CALM, OUTSIDE, Conditions
from headrace.testing.simulator.process import Process


@pytest.fixture
def loop() -> Iterator[Any]:
    loop = SimLoop(Random(1))
    yield loop
    loop.close()
    assert loop.errors == []


def on(loop: SimLoop, process: Process, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
    return loop.create_task(work, context=process.context.copy())


class Recorder(asyncio.Protocol):
    """Everything asyncio tells a protocol, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.data = bytearray()
        self.pieces: list[int] = []
        self.lost: BaseException | str | None = "not yet"
        self.transport: asyncio.Transport
        self.keep_open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.pieces.append(len(data))

    def eof_received(self) -> bool:
        self.events.append("eof")
        return self.keep_open

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = exc
        self.events.append("lost")


class Buffered(asyncio.BufferedProtocol):
    def __init__(self, size: int) -> None:
        self.buffer = bytearray(size)
        self.data = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self.buffer[:nbytes]


async def pair(loop: SimLoop, factory: Callable[[], asyncio.BaseProtocol] = Recorder) -> tuple[Recorder, Any]:
    """A connection from this test to a server on host s; returns both protocols."""
    accepted: list[asyncio.BaseProtocol] = []

    def accept() -> asyncio.BaseProtocol:
        accepted.append(factory())
        return accepted[-1]

    server = Process("s", "s")
    await on(loop, server, loop.create_server(accept, "0.0.0.0", 9092))
    _, protocol = await loop.create_connection(Recorder, "s", 9092)
    await asyncio.sleep(1)
    assert isinstance(protocol, Recorder)
    return protocol, accepted[0]


def test_streams_echo(loop: SimLoop) -> None:
    async def main() -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(100):
                writer.write(data)
                await writer.drain()
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(echo, "localhost", 0)
        port = server.port  # type: ignore[attr-defined]
        async with server:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert writer.get_extra_info("peername") == (OUTSIDE, port)
            assert writer.get_extra_info("sockname")[0] == OUTSIDE
            assert writer.get_extra_info("socket") is None
            writer.writelines([b"a" * 1000, b"b" * 1000])
            writer.write_eof()
            assert await reader.read() == b"a" * 1000 + b"b" * 1000
            writer.close()
            await writer.wait_closed()
        assert not server.is_serving()

    loop.run_until_complete(main())


def test_order_and_content_survive_chunks_delays_and_stalls(loop: SimLoop) -> None:
    loop.network.set_conditions(Conditions(chunk_bytes=(1, 50), spike_chance=0.2, window_bytes=300))
    loop.timer_jitter_s = 0.01

    async def main() -> None:
        client, server = await pair(loop)
        sent = bytes(Random(1).randbytes(5000))
        for start in range(0, 5000, 500):
            client.transport.write(sent[start : start + 500])
            if start == 2000:
                loop.network.stall(OUTSIDE, "s", 30)
            await asyncio.sleep(0.01)
        client.transport.close()
        await asyncio.sleep(200)
        assert bytes(server.data) == sent
        assert len(server.pieces) > 100
        assert max(server.pieces) <= 50
        assert server.events == ["made", "eof", "lost"] and server.lost is None
        assert client.lost is None

    loop.run_until_complete(main())


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_buffered_protocol_of_any_buffer_size(loop: SimLoop, size: int) -> None:
    async def main() -> None:
        client, server = await pair(loop, lambda: Buffered(size))
        client.transport.writelines([b"0123456789", memoryview(b"abcdef")])
        await asyncio.sleep(1)
        assert bytes(server.data) == b"0123456789abcdef"

    loop.run_until_complete(main())


def test_a_reader_that_does_not_read_stops_the_writer(loop: SimLoop) -> None:
    loop.network.set_conditions(Conditions(window_bytes=1000))

    async def main() -> None:
        client, server = await pair(loop)
        server.transport.pause_reading()
        assert not server.transport.is_reading()
        client.transport.set_write_buffer_limits(high=500)
        client.transport.write(b"x" * 1400)
        assert client.events == ["made"]
        client.transport.write(b"x" * 200)
        assert client.events == ["made", "pause"]
        assert client.transport.get_write_buffer_size() == 600
        await asyncio.sleep(10)
        assert len(server.data) == 0
        server.transport.resume_reading()
        await asyncio.sleep(1)
        assert len(server.data) == 1600
        assert client.events == ["made", "pause", "resume"]
        assert client.transport.get_write_buffer_size() == 0

    loop.run_until_complete(main())


def test_high_water_zero_pauses_at_the_first_byte_kept(loop: SimLoop) -> None:
    loop.network.set_conditions(Conditions(window_bytes=10))

    async def main() -> None:
        client, server = await pair(loop)
        client.transport.set_write_buffer_limits(high=0)
        assert client.transport.get_write_buffer_limits() == (0, 0)
        client.transport.write(b"0123456789")
        assert client.events == ["made"]
        client.transport.write(b"x")
        assert client.events[-1] == "pause"
        await asyncio.sleep(1)
        assert client.events[-1] == "resume"
        assert len(server.data) == 11
        with pytest.raises(ValueError):
            client.transport.set_write_buffer_limits(high=1, low=2)

    loop.run_until_complete(main())


def test_nobody_listens(loop: SimLoop) -> None:
    async def main() -> None:
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Recorder, "s", 1)
        process = Process("s", "s")
        listener = await on(loop, process, loop.create_server(Recorder, "s", 1))
        with pytest.raises(OSError, match="in use"):
            await on(loop, process, loop.create_server(Recorder, "s", 1))
        with pytest.raises(OSError, match="no address"):
            await on(loop, process, loop.create_server(Recorder, "other", 2))
        await loop.create_connection(Recorder, "s", 1)
        listener.close()
        await listener.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Recorder, "s", 1)

    loop.run_until_complete(main())


def test_connecting_through_a_partition_times_out_or_waits_for_the_heal(loop: SimLoop) -> None:
    async def main() -> None:
        await pair(loop)
        loop.network.partition([OUTSIDE], ["s"])
        with pytest.raises(OSError, match="timed out"):
            await loop.create_connection(Recorder, "s", 9092)
        waiting = asyncio.ensure_future(loop.create_connection(Recorder, "s", 9092))
        await asyncio.sleep(20)
        loop.network.heal()
        await waiting

    loop.run_until_complete(main())


@pytest.mark.parametrize("there", [True, False])
def test_one_way_partition_stops_one_direction(loop: SimLoop, there: bool) -> None:
    async def main() -> None:
        client, server = await pair(loop)
        loop.network.block(*((OUTSIDE, "s") if there else ("s", OUTSIDE)))
        client.transport.write(b"question")
        server.transport.write(b"answer")
        await asyncio.sleep(60)
        assert bytes(server.data) == (b"" if there else b"question")
        assert bytes(client.data) == (b"answer" if there else b"")
        loop.network.heal()
        await asyncio.sleep(1)
        assert (bytes(server.data), bytes(client.data)) == (b"question", b"answer")

    loop.run_until_complete(main())


@pytest.mark.parametrize("at", [0, 1, 5, 10])
def test_reset_at_a_byte(loop: SimLoop, at: int) -> None:
    async def main() -> None:
        client, server = await pair(loop)
        loop.network.connections(OUTSIDE)[0].outgoing.reset_at = at  # type: ignore[union-attr]
        client.transport.write(b"0123456789")
        client.transport.write(b"more")
        await asyncio.sleep(1)
        assert bytes(server.data) == b"0123456789"[:at]
        assert isinstance(server.lost, ConnectionResetError)
        assert isinstance(client.lost, ConnectionResetError)

    loop.run_until_complete(main())


def test_random_resets_cut_anywhere() -> None:
    cuts = set()
    for seed in range(100):
        loop = SimLoop(Random(seed))
        loop.network.set_conditions(Conditions(reset_chance=0.5))

        async def main(loop: SimLoop = loop) -> None:
            client, server = await pair(loop)
            client.transport.write(b"0123456789")
            await asyncio.sleep(5)
            if server.lost != "not yet":
                cuts.add(len(server.data))

        loop.run_until_complete(main())
        loop.close()
    assert cuts == set(range(11))


def test_abort_resets_the_other_end(loop: SimLoop) -> None:
    async def main() -> None:
        client, server = await pair(loop)
        client.transport.abort()
        client.transport.write(b"ignored")
        await asyncio.sleep(1)
        assert client.lost is None
        assert isinstance(server.lost, ConnectionResetError)
        assert loop.network.endpoints == {}

    loop.run_until_complete(main())


def test_half_close_keeps_the_other_direction(loop: SimLoop) -> None:
    async def main() -> None:
        client, server = await pair(loop)
        server.keep_open = True
        client.transport.write_eof()
        with pytest.raises(RuntimeError):
            client.transport.write(b"x")
        await asyncio.sleep(1)
        server.transport.write(b"still here")
        await asyncio.sleep(1)
        assert bytes(client.data) == b"still here"
        server.transport.close()
        await asyncio.sleep(1)
        assert client.events == ["made", "eof", "lost"]

    loop.run_until_complete(main())


def test_writing_to_a_closed_peer_is_reset(loop: SimLoop) -> None:
    async def main() -> None:
        client, server = await pair(loop)
        client.keep_open = True
        server.transport.close()
        await asyncio.sleep(1)
        assert client.lost == "not yet"
        client.transport.write(b"too late")
        await asyncio.sleep(1)
        assert isinstance(client.lost, ConnectionResetError)

    loop.run_until_complete(main())


def test_killed_process_says_goodbye_powerless_host_does_not(loop: SimLoop) -> None:
    async def main() -> None:
        client, server = await pair(loop)
        process = next(end.owner for end in loop.network.connections("s"))
        assert process is not None
        loop.kill(process)
        loop.network.release(process)
        await asyncio.sleep(1)
        assert client.events == ["made", "eof", "lost"]
        assert server.lost == "not yet"

        client, _ = await pair(loop)
        process = next(end.owner for end in loop.network.connections("s"))
        assert process is not None
        loop.kill(process)
        loop.network.power_off(process)
        await asyncio.sleep(1000)
        assert client.lost == "not yet"
        client.transport.write(b"x" * 500_000)
        await asyncio.sleep(1000)
        assert client.lost == "not yet"
        assert client.transport.get_write_buffer_size() > 0  # nothing acknowledges it
        loop.network.power_on("s")
        await asyncio.sleep(1)
        assert isinstance(client.lost, ConnectionResetError)

    loop.run_until_complete(main())


def test_connecting_to_a_host_that_comes_back(loop: SimLoop) -> None:
    async def main() -> None:
        loop.network.down.add("s")
        waiting = asyncio.ensure_future(loop.create_connection(Recorder, "s", 9092))
        await asyncio.sleep(10)
        loop.network.power_on("s")
        await on(loop, Process("s", "s"), loop.create_server(Recorder, "s", 9092))
        await waiting

    loop.run_until_complete(main())


def test_frozen_process_receives_when_it_thaws(loop: SimLoop) -> None:
    async def main() -> None:
        client, server = await pair(loop)
        process = next(end.owner for end in loop.network.connections("s"))
        assert process is not None
        loop.pause(process)
        client.transport.write(b"hello")
        late, _ = await loop.create_connection(Recorder, "s", 9092)  # the kernel still accepts
        late.write(b"x")
        await asyncio.sleep(5)
        assert bytes(server.data) == b""
        loop.resume(process)
        await asyncio.sleep(1)
        assert bytes(server.data) == b"hello"

    loop.run_until_complete(main())


def test_protocol_that_raises_loses_its_connection_only(loop: SimLoop) -> None:
    class Bad(Recorder):
        def data_received(self, data: bytes) -> None:
            raise ValueError("bug")

    async def main() -> None:
        client, server = await pair(loop, Bad)
        client.transport.write(b"x")
        await asyncio.sleep(1)
        assert isinstance(server.lost, ValueError)
        assert isinstance(client.lost, ConnectionResetError)

    loop.run_until_complete(main())
    assert isinstance(loop.errors.pop()["exception"], ValueError)


def test_cancelled_connect_leaves_nothing_behind(loop: SimLoop) -> None:
    async def main() -> None:
        _client, _ = await pair(loop)
        before = len(loop.network.endpoints)
        for delay_s in (0.0, 0.0001, 0.0002, 0.0005, 0.001):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await loop.create_connection(Recorder, "s", 9092)
                    await asyncio.sleep(1)  # a connection that was made counts too
        await asyncio.sleep(5)
        assert len(loop.network.endpoints) - before <= 4

    loop.run_until_complete(main())


def test_same_seed_same_history() -> None:
    def history(seed: int) -> list[tuple[float, int]]:
        loop = SimLoop(Random(seed))
        loop.network.set_conditions(Conditions(chunk_bytes=(1, 9)))
        seen: list[tuple[float, int]] = []

        class Timed(Recorder):
            def data_received(self, data: bytes) -> None:
                seen.append((loop.time(), len(data)))

        async def main() -> None:
            client, _ = await pair(loop, Timed)
            client.transport.write(bytes(100))
            await asyncio.sleep(5)

        loop.run_until_complete(main())
        loop.close()
        return seen

    assert history(5) == history(5) != history(6)


def test_loopback_is_calm(loop: SimLoop) -> None:
    assert loop.network.link("a", "a").conditions is CALM
    loop.network.set_conditions(Conditions(reset_chance=1.0))
    assert loop.network.link("a", "a").conditions is CALM
