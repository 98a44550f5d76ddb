"""Java's own key stores (JKS), the default of Kafka's time with ZooKeeper: certificates, and keys under a password.

u32 magic, version, count; entries; SHA-1 of the password, a constant and all of that. An entry is u32 kind, its alias,
u64 when; then a certificate, or an encrypted key with its chain. A password protects a key by the sum of a chain of
SHA-1s, each of the password and the one before.
"""

import base64
import hashlib
import hmac
import struct
from typing import NamedTuple

MAGIC = b"\xfe\xed\xfe\xed"
KEY, TRUSTED = 1, 2
DIGEST = 20
SALT = b"Mighty Aphrodite"


class JksError(Exception):
    """Why a store cannot be read, in a few words."""


class Jks(NamedTuple):
    """Certificates as PEM."""

    trusted: list[str]
    chain: list[str]
    """Of the first key."""
    closed_key: bytes


def read_jks(data: bytes, password: str | None) -> Jks:
    """Raises JksError. Without a password a store is not checked for damage, as in Java."""
    if password is not None:
        found = hashlib.sha1(_bytes(password) + SALT + data[:-DIGEST]).digest()
        if not hmac.compare_digest(found, data[-DIGEST:]):
            raise JksError("its password is another, or it is damaged")
    try:
        return _entries(_Reader(data[:-DIGEST]))
    except (struct.error, IndexError, ValueError):
        raise JksError("it is damaged") from None


def _entries(reader: "_Reader") -> Jks:
    _, version, count = (reader.number() for _ in range(3))
    trusted: list[str] = []
    chain: list[str] = []
    key = b""
    for _ in range(count):
        kind = reader.number()
        reader.text()
        reader.take(8)
        if kind == TRUSTED:
            trusted.append(_certificate(reader, version))
        elif kind == KEY:
            closed = reader.take(reader.number())
            certificates = [_certificate(reader, version) for _ in range(reader.number())]
            if not key:
                key, chain = closed, certificates
        else:
            raise JksError("it holds something that is neither a key nor a certificate")
    return Jks(trusted, chain, key)


def _certificate(reader: "_Reader", version: int) -> str:
    if version >= 2:
        reader.text()  # X.509
    return _pem("CERTIFICATE", reader.take(reader.number()))


def open_key(closed: bytes, password: str) -> str:
    """As PEM. `closed` names how it is encrypted, of which there is one way, and holds salt, key and a digest to check
    it. Raises JksError."""
    try:
        (_, sequence), *_ = _der(closed)
        _, (_, sealed) = _der(sequence)
    except (IndexError, ValueError):
        raise JksError("its key is damaged") from None
    salt, body, check = sealed[:DIGEST], sealed[DIGEST:-DIGEST], sealed[-DIGEST:]
    secret, stream, last = _bytes(password), b"", salt
    while len(stream) < len(body):
        last = hashlib.sha1(secret + last).digest()
        stream += last
    key = bytes(one ^ other for one, other in zip(body, stream))
    if not hmac.compare_digest(hashlib.sha1(secret + key).digest(), check):
        raise JksError("the password of its key is another")
    return _pem("PRIVATE KEY", key)


def _der(data: bytes) -> list[tuple[int, bytes]]:
    """What stands in a sequence: tags and contents."""
    found, pos = [], 0
    while pos < len(data):
        tag, size, pos = data[pos], data[pos + 1], pos + 2
        if size & 0x80:
            wide = size & 0x7F
            size, pos = int.from_bytes(data[pos : pos + wide], "big"), pos + wide
        found.append((tag, data[pos : pos + size]))
        pos += size
    return found


def _bytes(password: str) -> bytes:
    return password.encode("utf-16-be")


def _pem(label: str, der: bytes) -> str:
    text = base64.b64encode(der).decode()
    lines = "\n".join(text[at : at + 64] for at in range(0, len(text), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._pos = 0

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self._pos:
            raise IndexError("the end")
        self._pos += size
        return self._data[self._pos - size : self._pos]

    def number(self) -> int:
        return int(struct.unpack(">I", self.take(4))[0])

    def text(self) -> bytes:
        return self.take(int(struct.unpack(">H", self.take(2))[0]))
