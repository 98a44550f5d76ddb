"""Addresses as people write them: `host:port`, several of them, IPv6 in brackets."""

import re
from collections.abc import Iterable

from headrace.client.errors import ClientError

DEFAULT_PORT = 9092
DEFAULT_BOOTSTRAP = f"127.0.0.1:{DEFAULT_PORT}"

_PROTOCOL = re.compile(r"(SASL_)?(PLAINTEXT|SSL)://")
"""As listeners are written. security.protocol alone decides, as with Kafka's clients."""

Address = tuple[str, int]


def parse_address(text: str) -> Address:
    """`host`, `host:port`, `[v6]:port`, a protocol before them is passed over. Raises ClientError naming what is
    wrong."""
    text = _PROTOCOL.sub("", text.strip(), count=1)
    if "://" in text:
        raise ClientError(f"{text!r} is not an address: brokers do not speak {text.partition(':')[0]}, write host:port")
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ClientError(f"{text!r} is not an address: write [IPv6 address]:port")
        port = rest[1:]
    elif text.count(":") > 1:
        raise ClientError(f"{text!r} is not an address: put an IPv6 address in brackets, [{text}]:{DEFAULT_PORT}")
    else:
        host, _, port = text.partition(":")
    if not host:
        raise ClientError(f"{text!r} is not an address: write host:port, such as {DEFAULT_BOOTSTRAP}")
    if not port:
        return host, DEFAULT_PORT
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ClientError(f"{text!r} is not an address: {port!r} is not a port between 1 and 65535")
    return host, int(port)


def parse_bootstrap(addresses: str | Iterable[str]) -> list[Address]:
    """A comma-separated text or several texts, without repetition."""
    parts = addresses.split(",") if isinstance(addresses, str) else list(addresses)
    found = list(dict.fromkeys(parse_address(part) for part in parts if part.strip()))
    if not found:
        raise ClientError(f"no broker address given: write host:port, such as {DEFAULT_BOOTSTRAP}")
    return found


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
