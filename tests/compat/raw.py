"""A client with no manners, for tests: any request, any version, any bytes, on one blocking connection.
Requests and answers are Headrace's own message classes; record batches are built here, valid or broken on purpose."""

import socket
import struct
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import crc32c

from headrace.protocol.codec import CODECS
from headrace.protocol.schema import StructSpec

ANSWER_LIMIT_S = 30.0


class Closed(Exception):
    """The broker closed the connection instead of answering."""


def build(spec: StructSpec, values: Mapping[str, Any]) -> Any:
    """A message object from plain dicts and lists; a name the message does not have is an error of the test."""
    structs = {field.name: field.struct for field in spec.fields if field.struct is not None}
    known = {field.name for field in spec.fields}
    if unknown := values.keys() - known:
        raise TypeError(f"{spec.name} has no {', '.join(sorted(unknown))}")

    def convert(name: str, value: Any) -> Any:
        if (inner := structs.get(name)) is None or value is None:
            return value
        return [build(inner, v) for v in value] if isinstance(value, list) else build(inner, value)

    return spec.cls(**{name: convert(name, value) for name, value in values.items()})


def encode_request(api: str, version: int, fields: Mapping[str, Any], correlation_id: int = 7) -> bytes:
    """A request without its length prefix."""
    codec = CODECS[f"{api}Request"]
    return request_header(codec.key, version, correlation_id, flexible=codec.is_flexible(version)) + codec.encode(
        build(codec.root, fields), version
    )


def request_header(
    key: int, version: int, correlation_id: int = 7, *, flexible: bool = False, client_id: str | None = "raw"
) -> bytes:
    name = b"\xff\xff" if client_id is None else struct.pack(">h", len(client_id)) + client_id.encode()
    return struct.pack(">hhi", key, version, correlation_id) + name + (b"\0" if flexible else b"")


def decode_response(api: str, version: int, frame: bytes, correlation_id: int | None = 7) -> Any:
    """The answer in a frame, which must hold it exactly. None for the correlation id skips that check."""
    codec = CODECS[f"{api}Response"]
    (echoed,) = struct.unpack_from(">i", frame)
    assert correlation_id in (None, echoed), f"{api} v{version}: asked as {correlation_id}, answered as {echoed}"
    # ApiVersions answers keep the old header, so that a client that knows nothing yet can read them.
    has_tags = codec.is_flexible(version) and api != "ApiVersions"
    assert not has_tags or frame[4] == 0, "tagged fields in a response header"
    return codec.decode(frame, version, 5 if has_tags else 4)


class Connection:
    """One connection; use as a context manager."""

    def __init__(self, port: int, timeout_s: float = ANSWER_LIMIT_S) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream = self.socket.makefile("rb")

    def send_bytes(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # Closed already; reading says so.

    def send(self, request: bytes) -> None:
        self.send_bytes(struct.pack(">i", len(request)) + request)

    def receive(self) -> bytes:
        """The next frame without its length."""
        try:
            head = self.stream.read(4)
            if len(head) == 4:
                (length,) = struct.unpack(">i", head)
                body = self.stream.read(length)
                if len(body) == length:
                    return body
        except ConnectionResetError:
            pass
        raise Closed

    def ask(self, api: str, version: int, fields: Mapping[str, Any], correlation_id: int = 7) -> Any:
        self.send(encode_request(api, version, fields, correlation_id))
        return decode_response(api, version, self.receive(), correlation_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stream.close()
        self.socket.close()


# Record batches

FIXED_MS = 1_600_000_000_000  # a timestamp that never changes, so that answers and CRCs never do


class Rec(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    timestamp_delta: int = 0
    headers: Sequence[tuple[bytes, bytes | None]] = ()


def varint(number: int) -> bytes:
    rest, out = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def encode_records(records: Sequence[Rec]) -> bytes:
    out = bytearray()
    for delta, r in enumerate(records):
        headers = b"".join(sized(key) + sized(value) for key, value in r.headers)
        body = b"\0" + varint(r.timestamp_delta) + varint(delta) + sized(r.key) + sized(r.value)
        out += sized(body + varint(len(r.headers)) + headers)
    return bytes(out)


def batch(
    *records: Rec | bytes,
    base_offset: int = 0,
    leader_epoch: int = -1,
    magic: int = 2,
    attributes: int = 0,
    base_timestamp: int = FIXED_MS,
    max_timestamp: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    count: int | None = None,
    last_delta: int | None = None,
    payload: bytes | None = None,
    length_error: int = 0,
    crc_error: int = 0,
) -> bytes:
    """A v2 batch; every keyword overrides what a correct client would write. `payload` replaces the encoded records
    (compressed ones, say); `producer` is (id, epoch, base sequence)."""
    recs = [r if isinstance(r, Rec) else Rec(r) for r in records]
    if max_timestamp is None:
        max_timestamp = base_timestamp + max((r.timestamp_delta for r in recs), default=0)
    payload = encode_records(recs) if payload is None else payload
    count = len(recs) if count is None else count
    last_delta = count - 1 if last_delta is None else last_delta
    tail = struct.pack(">hiqqqhii", attributes, last_delta, base_timestamp, max_timestamp, *producer, count) + payload
    crc = crc32c.crc32c(tail) ^ crc_error
    return struct.pack(">qiibI", base_offset, len(tail) + 9 + length_error, leader_epoch, magic, crc) + tail
