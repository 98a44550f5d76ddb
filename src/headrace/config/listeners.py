"""Listeners: where a node listens, what it tells clients, and which of them belong to the controller."""

from collections.abc import Iterable, Mapping

import msgspec

from .options import ConfigError

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Listener(msgspec.Struct, frozen=True, gc=False):
    """One endpoint. An empty host means every interface."""

    name: str
    host: str
    port: int
    protocol: str

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"


def parse_protocol_map(text: str) -> dict[str, str]:
    """`NAME:PROTOCOL,...` -> protocols by upper-case listener name."""
    found: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, colon, protocol = item.rpartition(":")
        if not colon or protocol.strip() not in PROTOCOLS:
            raise ConfigError(f"listener.security.protocol.map: {item!r} is not NAME:PROTOCOL")
        key = name.strip().upper()
        if found.get(key, protocol.strip()) != protocol.strip():
            raise ConfigError(f"listener.security.protocol.map: {key} is mapped twice")
        found[key] = protocol.strip()
    return found


def parse_listeners(option: str, items: Iterable[str], protocols: Mapping[str, str]) -> tuple[Listener, ...]:
    """`NAME://host:port` each; names are distinct and known to the protocol map."""
    found: list[Listener] = []
    for item in items:
        name, separator, address = item.strip().partition("://")
        host, colon, port = address.rpartition(":")
        if not (separator and name and colon and port.isdecimal() and int(port) <= 65535):
            raise ConfigError(f"{option}: {item!r} is not NAME://host:port")
        name = name.upper()
        if name not in protocols:
            raise ConfigError(f"{option}: listener {name} has no entry in listener.security.protocol.map")
        if any(listener.name == name for listener in found):
            raise ConfigError(f"{option}: the listener name {name} is used twice")
        found.append(Listener(name, without_brackets(host), int(port), protocols[name]))
    return tuple(found)


def without_brackets(host: str) -> str:
    """Only in front of a port is an IPv6 address written in brackets."""
    return host.removeprefix("[").removesuffix("]")


def check_ports(listeners: Iterable[Listener]) -> None:
    """Two listeners may share a port only as one IPv4 and one IPv6 address; port 0 is always free."""
    seen: dict[int, list[Listener]] = {}
    for listener in listeners:
        if listener.port:
            seen.setdefault(listener.port, []).append(listener)
    for port, sharing in seen.items():
        families = sorted(":" in listener.host for listener in sharing)
        if len(sharing) > 1 and not (families == [False, True] and all(listener.host for listener in sharing)):
            raise ConfigError(f"listeners: port {port} is used by {' and '.join(str(x) for x in sharing)}")
