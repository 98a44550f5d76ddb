"""Request and response headers: the few bytes before every message that say how to read the rest."""

from struct import Struct

from headrace.protocol.api import API, ApiKey
from headrace.protocol.primitives import Buffer, ProtocolError, read_tags

# API key, version, correlation id, and the length of the client id, which is never written compactly.
_REQUEST = Struct(">hhih")
_read_request = _REQUEST.unpack_from
_REQUEST_BYTES = _REQUEST.size
_CORRELATION = Struct(">i")
_FLEXIBLE_FROM = {key: api.flexible_from for key, api in API.items()}

PREFIX_AT = 12
"""In a frame, what stands behind its length, the API, the version and the correlation id: all that may be said
again."""
CLIENT_ID_AT = 14

RequestHeader = tuple[int, int, int, str | None, int]


def decode_request_header(buf: Buffer, pos: int, end: int) -> RequestHeader:
    """(API key, version, correlation id, client id, position of the body) of the request in buf[pos:end].

    The version is not judged here: an ApiVersions request of the future must be answered, not refused.
    """
    if end - pos < _REQUEST_BYTES or end > len(buf):
        raise ProtocolError("a request is cut short in its header")
    key, version, correlation_id, length = _read_request(buf, pos)
    pos += _REQUEST_BYTES
    if length < 0:
        client_id = None
    else:
        start = pos
        pos += length
        if pos > end:
            raise ProtocolError("the client id runs past the request's end")
        client_id = str(buf[start:pos], "utf-8", "replace")
    flexible_from = _FLEXIBLE_FROM.get(key)
    if flexible_from is None:
        raise ProtocolError(f"unknown API key {key}")
    if version >= flexible_from:
        if pos >= end:
            raise ProtocolError("a request is cut short in its header")
        tags = buf[pos]
        pos += 1
        if tags:
            try:
                _, pos = read_tags(buf, pos, end, tags)
            except IndexError:
                raise ProtocolError("a request is cut short in its header") from None
    return key, version, correlation_id, client_id, pos


def encode_request_header(key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    client = b"" if client_id is None else client_id.encode()
    if len(client) > 0x7FFF:
        raise ProtocolError("the client id is too long")
    head = _REQUEST.pack(key, version, correlation_id, -1 if client_id is None else len(client)) + client
    return head + b"\0" if version >= _FLEXIBLE_FROM[key] else head


def encode_response_header(key: int, version: int, correlation_id: int) -> bytes:
    """Five bytes for flexible versions, except that ApiVersions always answers with four."""
    head = _CORRELATION.pack(correlation_id)
    return head + b"\0" if version >= _FLEXIBLE_FROM[key] and key != ApiKey.API_VERSIONS else head


def decode_response_header(buf: Buffer, pos: int, end: int, key: int, version: int) -> tuple[int, int]:
    """(correlation id, position of the body)."""
    flexible = version >= _FLEXIBLE_FROM[key] and key != ApiKey.API_VERSIONS
    if end - pos < 4 + flexible or end > len(buf):
        raise ProtocolError("a response is cut short in its header")
    (correlation_id,) = _CORRELATION.unpack_from(buf, pos)
    pos += 4
    if flexible:
        tags = buf[pos]
        pos += 1
        if tags:
            try:
                _, pos = read_tags(buf, pos, end, tags)
            except IndexError:
                raise ProtocolError("a response is cut short in its header") from None
    return correlation_id, pos
