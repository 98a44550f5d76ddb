"""Opens a connection to a name that may have several addresses, and says by its error why there is none.

An event loop tries all addresses, too. But where several fail, it raises one error that only lists the words of the
others, and whether nobody listens there could be read from words alone.
"""

import asyncio
import ssl
from collections.abc import Callable
from ipaddress import ip_address
from socket import SOCK_STREAM
from typing import Any


async def connect(
    protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **options: Any
) -> asyncio.Transport:
    """A connection to the first address of `host` that answers; `options` are those of `create_connection`.

    Raises ConnectionRefusedError if every address refuses it, else the OSError of one that fails otherwise.
    """
    loop = asyncio.get_running_loop()
    error: OSError | None = None
    for address in await _addresses(loop, host, port):
        try:
            transport, _ = await loop.create_connection(protocol_factory, address, port, **options)
            return transport
        except (ssl.SSLError, ConnectionResetError, ConnectionAbortedError):
            raise  # somebody is there, and does not want this connection
        except OSError as failed:
            if error is None or isinstance(error, ConnectionRefusedError):
                error = failed
    raise error or OSError(f"{host} has no address")


async def _addresses(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[str]:
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        found = await loop.getaddrinfo(host, port, type=SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))
    return [host]
