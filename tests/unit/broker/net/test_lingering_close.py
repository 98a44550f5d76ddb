"""A connection that this side ends, on real sockets: what was answered reaches a peer that is still sending."""

import asyncio
import socket
from types import SimpleNamespace

from headrace.broker.net.lingering_close import linger


class Server(asyncio.Protocol):
    """Answers, and ends the connection with requests unread."""

    def __init__(self, lost: "asyncio.Future[None]", polite: bool) -> None:
        self.lost = lost
        self.polite = polite

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.pause_reading()

    def end(self) -> None:
        self.transport.write(b"answer")
        if self.polite:
            linger(SimpleNamespace(transport=self.transport, connection_lost=self.connection_lost))  # type: ignore[arg-type]
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)


async def can_still_send(polite: bool) -> bool:
    """Whether a peer that sends before it reads gets that far; then it has to find the answer, and the end."""
    loop = asyncio.get_running_loop()
    listener = socket.create_server(("127.0.0.1", 0))
    peer = socket.create_connection(listener.getsockname())
    accepted, _ = listener.accept()
    listener.close()
    lost: asyncio.Future[None] = loop.create_future()
    _, server = await loop.connect_accepted_socket(lambda: Server(lost, polite), accepted)
    with peer:
        peer.sendall(b"request" * 100)
        server.end()
        await asyncio.sleep(0.02)
        try:
            for _ in range(10):
                peer.sendall(b"request" * 100)
                await asyncio.sleep(0.002)
        except (BrokenPipeError, ConnectionResetError):
            return False
        assert peer.recv(100) == b"answer" and peer.recv(100) == b""
    await asyncio.wait_for(lost, 10)
    return True


def test_a_peer_that_still_sends_finds_the_answers_and_the_end() -> None:
    assert asyncio.run(can_still_send(polite=True))


def test_a_plain_close_would_be_a_reset() -> None:
    assert not asyncio.run(can_still_send(polite=False))


def test_a_peer_that_never_looks_is_left_after_a_while() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        here, there = socket.socketpair()
        lost: asyncio.Future[None] = loop.create_future()
        _, server = await loop.connect_accepted_socket(lambda: Server(lost, True), here)
        server.end()
        await asyncio.wait_for(lost, 10)
        there.close()

    asyncio.run(scenario())
