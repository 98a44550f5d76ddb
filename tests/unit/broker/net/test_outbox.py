"""The outbox on real sockets: byte-exact order of bytes and file slices whatever the socket takes, files let go of."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import uvloop

from headrace.broker.net import outbox as subject
from headrace.broker.net.outbox import LEAD_BYTES, LED_BYTES, Chunk, SocketOutbox, TransportOutbox
from headrace.platform import CAN_SENDFILE, send_unpaced
from headrace.storage.files import RealDisk
from headrace.storage.log import Slice
from headrace.storage.pool import FilePool, Handle

FILE_BYTES = 3 << 20


class Owner:
    """Of a file in the pool."""

    def is_dirty(self) -> bool:
        return False

    def evicted(self) -> None: ...


class Store:
    """One file of random bytes, and slices of it that must all come back."""

    def __init__(self, path: Path) -> None:
        self.data = Random(7).randbytes(FILE_BYTES)
        path.write_bytes(self.data)
        self.handle = Handle(FilePool(RealDisk()), str(path), Owner())

    def slice(self, position: int, length: int) -> Slice:
        return Slice(self.handle, self.handle.pin(), position, length)

    def bytes_of(self, chunks: list[Chunk]) -> bytes:
        return b"".join(
            chunk if isinstance(chunk, bytes) else self.data[chunk.position : chunk.position + chunk.length]
            for chunk in chunks
        )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "file")
    yield made
    assert made.handle.pins == 0, "a slice was not released"
    made.handle.close()


class Sender(asyncio.Protocol):
    """The broker's end."""

    outbox: SocketOutbox | TransportOutbox
    transport: asyncio.Transport

    def __init__(self, kind: type[SocketOutbox] | type[TransportOutbox]) -> None:
        self.kind = kind
        self.lost = False
        self.resumed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.outbox = self.kind(self.transport, asyncio.get_running_loop(), self.resume_writing)

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None:
        self.resumed += 1
        self.outbox.resume()

    def connection_lost(self, error: Exception | None) -> None:
        self.lost = True
        self.outbox.close()


Scenario = Callable[[Sender, socket.socket], Awaitable[None]]


def run(
    scenario: Scenario, kind: type[SocketOutbox] | type[TransportOutbox] = SocketOutbox, buffer_bytes: int = 4096
) -> None:
    """A pair of connected TCP sockets with small buffers; the scenario plays the peer on a blocking-free socket."""
    if kind is SocketOutbox and not CAN_SENDFILE:
        pytest.skip("where there is no sendfile, everything goes through the transport")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        listener = socket.create_server(("127.0.0.1", 0))
        peer = socket.socket()
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        peer.setblocking(False)
        try:
            await loop.sock_connect(peer, listener.getsockname())
            accepted, _ = listener.accept()
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
            transport, sender = await loop.connect_accepted_socket(lambda: Sender(kind), accepted)
            await asyncio.wait_for(scenario(sender, peer), 60)
            transport.abort()
            await until(lambda: sender.lost)
        finally:
            peer.close()
            listener.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def receive(peer: socket.socket, count: int, dice: Random | None = None) -> bytes:
    """Exactly `count` bytes; with dice in pieces of all sizes, sometimes after a pause."""
    loop = asyncio.get_running_loop()
    got = bytearray()
    while len(got) < count:
        if dice is not None and dice.random() < 0.1:
            await asyncio.sleep(dice.choice([0, 0, 0.001]))
        most = count - len(got) if dice is None else min(count - len(got), dice.choice([1, 3000, 20_000, 100_000]))
        piece = await loop.sock_recv(peer, min(most, 1 << 20))
        if not piece:
            break
        got += piece
    return bytes(got)


@pytest.mark.parametrize("kind", [SocketOutbox, TransportOutbox])
@pytest.mark.parametrize("seed", range(8))
def test_bytes_and_slices_arrive_exactly_in_order(
    store: Store, kind: type[SocketOutbox] | type[TransportOutbox], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small socket buffers meet every chunk at every point: EAGAIN before, in the middle of and after each."""
    dice = Random(seed)
    monkeypatch.setattr(subject, "TURN_BYTES", dice.choice([3_000, 50_000, 4 << 20]))
    monkeypatch.setattr(subject, "SLICE_COPY_BYTES", dice.choice([1000, 65_536]))
    monkeypatch.setattr(subject, "SMALL_SLICE_BYTES", dice.choice([1, 3000, 80_000]))
    monkeypatch.setattr(subject, "GATHER_BYTES", dice.choice([1, 3000, 250_000]))
    monkeypatch.setattr(subject, "LED_BYTES", dice.choice([5000, 150_000, 1 << 20]))

    async def scenario(sender: Sender, peer: socket.socket) -> None:
        for _ in range(dice.randint(3, 8)):
            answer: list[Chunk] = []
            for _ in range(dice.randint(1, 6)):
                length = dice.choice([1, 50, 3000, 70_000, 200_000])
                if dice.random() < 0.5:
                    answer.append(dice.randbytes(length))
                else:
                    answer.append(store.slice(dice.randrange(FILE_BYTES - length), length))
            expected = store.bytes_of(answer)
            follow = [dice.randbytes(dice.choice([4, 9000])) for _ in range(dice.randint(0, 3))]
            sender.outbox.send(answer)
            for more in follow:
                sender.outbox.send([more])
            expected += b"".join(follow)
            assert await receive(peer, len(expected), dice) == expected

    run(scenario, kind, dice.choice([2048, 16_384, 262_144]))


def test_a_large_slice_leaves_with_what_stands_before_it(store: Store) -> None:
    """One call brings the peer more than the head, wherever in a page the slice begins."""

    async def scenario(sender: Sender, peer: socket.socket) -> None:
        for position in (0, 1, 4095, 4096, 70_001):
            sent: list[int] = []
            assert isinstance(sender.outbox, SocketOutbox)
            counted: Any = Counted(sender.outbox._socket, sent)
            sender.outbox._socket = counted
            large, small = store.slice(position, LED_BYTES), store.slice(position, LED_BYTES - 1)
            answer: list[Chunk] = [b"head", large, b"between", small]
            expected = store.bytes_of(answer)
            sender.outbox.send(answer)
            assert await receive(peer, len(expected)) == expected
            assert sent[0] == 4 + LEAD_BYTES and 7 in sent
            assert isinstance(sender.outbox, SocketOutbox)
            sender.outbox._socket = counted.inner

    run(scenario, buffer_bytes=4 << 20)


class Counted:
    """A socket that writes down how much it was given at a time."""

    def __init__(self, inner: socket.socket, sent: list[int]) -> None:
        self.inner = inner
        self._sent = sent

    def send(self, data: bytes, flags: int) -> int:
        self._sent.append(len(data))
        return self.inner.send(data, flags)


def test_a_turn_that_ends_is_taken_up_again_and_reported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection must hear of it: requests behind a large answer wait for exactly this call."""
    monkeypatch.setattr(subject, "TURN_BYTES", 10_000)

    async def scenario(sender: Sender, peer: socket.socket) -> None:
        sender.outbox.send([b"head", store.slice(0, 300_000)])
        assert sender.outbox.blocked
        before = sender.resumed
        assert await receive(peer, 300_004) == b"head" + store.data[:300_000]
        await until(lambda: not sender.outbox.blocked)
        assert sender.resumed > before

    run(scenario, buffer_bytes=1 << 20)


def test_a_socket_that_drains_at_the_last_moment_does_not_stop_the_sender(store: Store) -> None:
    """Between a full socket and the transport's own attempt the peer may read: then nobody calls resume_writing."""

    class Draining:
        """Makes that moment certain: the transport's write finds the socket empty."""

        def __init__(self, transport: asyncio.Transport, peer: socket.socket) -> None:
            self.transport = transport
            self.peer = peer
            self.got = bytearray()
            self.reads = True

        def __getattr__(self, name: str) -> object:
            return getattr(self.transport, name)

        def write(self, data: bytes) -> None:
            while self.reads:
                try:
                    piece = self.peer.recv(1 << 20)
                except BlockingIOError:
                    break
                self.got += piece
            self.transport.write(data)

    async def scenario(sender: Sender, peer: socket.socket) -> None:
        draining = Draining(sender.transport, peer)
        sender.outbox._transport = draining  # type: ignore[assignment]
        expected = b""
        for number in range(200):
            data = bytes([number]) * 3000
            if number % 3:
                sender.outbox.send([data])
                expected += data
            else:
                sender.outbox.send([data, store.slice(number, 4000)])
                expected += data + store.data[number : number + 4000]
        draining.reads = False
        draining.got += await receive(peer, len(expected) - len(draining.got))
        assert draining.got == expected

    run(scenario)


def test_nobody_is_starved_by_a_reader_that_keeps_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One slice may be larger than a turn: the loop comes round in the middle of it."""
    monkeypatch.setattr(subject, "TURN_BYTES", 64 * 1024)
    turns = 0

    async def scenario(sender: Sender, peer: socket.socket) -> None:
        nonlocal turns
        sender.outbox.send([store.slice(0, FILE_BYTES)])

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(others())
        assert await receive(peer, FILE_BYTES) == store.data
        task.cancel()

    run(scenario, buffer_bytes=4 << 20)
    assert turns > 10


@pytest.mark.parametrize("cut", [(50_000, 100_000), (99_000, 2_000)], ids=["long", "short"])
@pytest.mark.parametrize("kind", [SocketOutbox, TransportOutbox])
def test_a_file_cut_short_closes_the_connection(
    tmp_path: Path, kind: type[SocketOutbox] | type[TransportOutbox], cut: tuple[int, int]
) -> None:
    store = Store(tmp_path / "cut")
    os.truncate(tmp_path / "cut", 100_000)

    async def scenario(sender: Sender, peer: socket.socket) -> None:
        sender.outbox.send([b"head", store.slice(*cut), b"tail"])
        sender.outbox.send([b"another answer"])
        sender.outbox.send([b"another answer", store.slice(0, 10)])
        got = await receive(peer, 10**9)
        assert got == (b"head" + store.data[cut[0] : 100_000])[: len(got)], "bytes after the hole"
        await until(lambda: sender.lost)

    try:
        run(scenario, kind, 1 << 20)
    except ConnectionResetError:
        pass  # an abort is a reset, where bytes were left unread
    assert store.handle.pins == 0


@pytest.mark.parametrize("kind", [SocketOutbox, TransportOutbox])
def test_slices_are_released_when_the_peer_goes_away(
    store: Store, kind: type[SocketOutbox] | type[TransportOutbox]
) -> None:
    async def scenario(sender: Sender, peer: socket.socket) -> None:
        for _ in range(5):
            sender.outbox.send([b"head", store.slice(0, 1 << 20), store.slice(5, 100)])
        assert sender.outbox.blocked and store.handle.pins > 0
        await receive(peer, 3000)
        peer.close()
        await until(lambda: sender.lost)
        assert store.handle.pins == 0
        sender.outbox.send([store.slice(0, 10)])
        sender.outbox.resume()

    run(scenario, kind)


def test_the_descriptor_is_closed_once(store: Store) -> None:
    """Two objects share it: a second close could hit a file that was opened meanwhile."""

    async def scenario(sender: Sender, peer: socket.socket) -> None:
        fd = sender.transport.get_extra_info("socket").fileno()
        sender.outbox.send([b"x"])
        sender.transport.abort()
        while True:
            try:
                os.fstat(fd)
            except OSError:
                break
            await asyncio.sleep(0.001)
        taken = os.dup2(peer.fileno(), fd)  # somebody else gets the number
        assert sender.lost and taken == fd
        outbox = sender.outbox
        assert isinstance(outbox, SocketOutbox)
        outbox.close()
        assert outbox._socket.fileno() == -1
        del outbox._socket
        os.fstat(fd)
        os.close(fd)

    run(scenario)


def congestion_control(sock: socket.socket) -> bytes:
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="Linux only")
def test_a_peer_on_this_host_is_sent_to_unpaced() -> None:
    with socket.socket() as probe:
        send_unpaced(probe)
        possible = congestion_control(probe)  # the system may not have it, or not allow it

    async def scenario(sender: Sender, peer: socket.socket) -> None:
        before = congestion_control(peer)
        assert subject.is_on_this_host(sender.transport)
        assert congestion_control(sender.transport.get_extra_info("socket")) == possible
        assert possible in (b"cubic", before)

    run(scenario)


def test_what_has_come_is_read_past_the_transport() -> None:
    async def scenario(sender: Sender, peer: socket.socket) -> None:
        sender.transport.pause_reading()
        room = bytearray(10)
        assert sender.outbox.receive(memoryview(room)) == 0, "nothing is there"
        peer.send(b"abcdefghijklmno")
        assert sender.outbox.receive(memoryview(room)) == 10 and room == b"abcdefghij"
        assert sender.outbox.receive(memoryview(room)[5:]) == 5 and room == b"abcdeklmno"
        assert sender.outbox.receive(memoryview(room)[10:]) == 0, "no room"
        peer.shutdown(socket.SHUT_WR)
        assert sender.outbox.receive(memoryview(room)) == 0, "the end"
        sender.transport.resume_reading()
        await until(lambda: sender.lost)
        assert sender.outbox.receive(memoryview(room)) == 0, "closed"

    run(scenario)


def test_there_is_no_way_past_a_transport_that_encrypts() -> None:
    async def scenario(sender: Sender, peer: socket.socket) -> None:
        sender.transport.pause_reading()
        peer.send(b"abc")
        assert sender.outbox.receive(memoryview(bytearray(10))) == 0

    run(scenario, TransportOutbox)
