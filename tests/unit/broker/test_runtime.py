"""The machine itself, as brokers see it."""

import asyncio
import errno
import socket
import threading

import pytest
import uvloop

from headrace.broker.runtime import SocketOptions, SystemRuntime
from headrace.config import BrokerConfig


def test_a_bound_port_refuses_until_it_serves_and_watches_its_peers() -> None:
    options: dict[str, int] = {}
    made = asyncio.Event()

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            twin = socket.socket(fileno=transport.get_extra_info("socket").fileno())
            options["keepalive"] = twin.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            options["idle"] = twin.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
            options["nodelay"] = twin.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            twin.detach()
            made.set()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        runtime = SystemRuntime(loop)
        server, port = await runtime.listen(Accepted, "127.0.0.1", 0)
        try:
            await asyncio.open_connection("127.0.0.1", port)
            raise AssertionError("served before it said so")
        except ConnectionRefusedError:
            pass
        await server.start_serving()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.wait_for(made.wait(), 10)
        writer.close()
        server.close()
        runtime.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    assert options["keepalive"] and options["idle"] <= 300, "a client that vanishes while it waits must be noticed"
    assert options["nodelay"], "small answers do not wait for each other"


def test_buffers_are_the_kernels_unless_somebody_says_otherwise() -> None:
    assert SocketOptions.of(BrokerConfig.load({}, {}, {})) == SocketOptions(1024, None, None)
    given = {
        "socket.listen.backlog.size": "7",
        "socket.send.buffer.bytes": "102400",
        "socket.receive.buffer.bytes": "-1",
    }
    assert SocketOptions.of(BrokerConfig.load({}, {}, given)) == SocketOptions(7, 102400, None)


def test_accepted_sockets_have_the_buffers_of_their_listener() -> None:
    sizes: asyncio.Queue[tuple[int, int]] = asyncio.Queue()

    class Accepted(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            twin = socket.socket(fileno=transport.get_extra_info("socket").fileno())
            found = [twin.getsockopt(socket.SOL_SOCKET, name) for name in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
            sizes.put_nowait((found[0], found[1]))
            twin.detach()

    async def size_with(options: SocketOptions) -> tuple[int, int]:
        runtime = SystemRuntime(asyncio.get_running_loop())
        server, port = await runtime.listen(Accepted, "127.0.0.1", 0, options)
        await server.start_serving()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            return await asyncio.wait_for(sizes.get(), 10)
        finally:
            writer.close()
            server.close()
            runtime.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        plain = runner.run(size_with(SocketOptions()))
        small = runner.run(size_with(SocketOptions(5, 8 << 10, 16 << 10)))
    assert small == (16 << 10, 32 << 10), "the kernel doubles what it is given"
    assert plain != small


def test_syncs_run_in_threads_and_report_on_the_loop() -> None:
    async def main() -> list[tuple[bool, bool]]:
        loop = asyncio.get_running_loop()
        runtime = SystemRuntime(loop)
        main_thread = threading.get_ident()
        seen: list[tuple[bool, bool]] = []
        finished = asyncio.Event()
        count = 100

        def start(number: int) -> None:
            worked: list[bool] = []

            def done() -> None:
                seen.append((worked[0], threading.get_ident() == main_thread))
                if len(seen) == count:
                    finished.set()

            runtime.sync(lambda: worked.append(threading.get_ident() != main_thread), done)

        for number in range(count):
            start(number)
        await asyncio.wait_for(finished.wait(), 30)
        runtime.close()
        return seen

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == [(True, True)] * 100


def test_every_address_means_ipv4_where_there_is_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.socket

    def without_ipv6(family: int = socket.AF_INET, *more: int, **options: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return real(family, *more, **options)

    async def main() -> None:
        runtime = SystemRuntime(asyncio.get_running_loop())
        monkeypatch.setattr(socket, "socket", without_ipv6)
        server, port = await runtime.listen(asyncio.Protocol, "::", 0)
        monkeypatch.setattr(socket, "socket", real)
        await server.start_serving()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        server.close()
        runtime.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
