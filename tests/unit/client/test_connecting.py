"""Which error a name with several addresses ends with: whether nobody listens there is told by its type."""

import asyncio
import socket
from typing import Any

import pytest

from headrace.client.net.connecting import connect

UNREACHABLE = "255.255.255.255"
"""TCP to the broadcast address fails at once, and not by a refusal."""


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


async def connect_to(monkeypatch: pytest.MonkeyPatch, addresses: list[str], port: int) -> asyncio.Transport:
    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        assert host == "several"
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    return await connect(asyncio.Protocol, "several", port)


def test_the_first_address_that_answers_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        transport = await connect_to(monkeypatch, [UNREACHABLE, "127.0.0.2", "127.0.0.1"], port)
        assert transport.get_extra_info("peername") == ("127.0.0.1", port)
        transport.abort()
        server.close()

    asyncio.run(main())


def test_it_is_refused_only_where_every_address_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    port = closed_port()
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(connect_to(monkeypatch, ["127.0.0.1", "127.0.0.2"], port))
    for addresses in ([UNREACHABLE, "127.0.0.1"], ["127.0.0.1", UNREACHABLE]):
        with pytest.raises(OSError) as raised:
            asyncio.run(connect_to(monkeypatch, addresses, port))
        assert not isinstance(raised.value, ConnectionRefusedError)


def test_an_address_needs_no_resolver(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async def getaddrinfo(*_: Any, **__: Any) -> list[Any]:
            raise AssertionError

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        await connect(asyncio.Protocol, "127.0.0.1", closed_port())

    with pytest.raises(ConnectionRefusedError):
        asyncio.run(main())
