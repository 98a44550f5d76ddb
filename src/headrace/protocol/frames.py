"""Whole frames: a four-byte length, a header, a body. For clients, for brokers that talk to brokers, and for tests.

Frames come as lists of chunks so that records go out as the slices they came in as.
"""

from struct import Struct
from typing import Any

from headrace.protocol.api import API, Api
from headrace.protocol.headers import (
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)
from headrace.protocol.primitives import Buffer

LENGTH = Struct(">i")


def _framed(chunks: list[Any]) -> list[Any]:
    """Put the length of the chunks behind the first, which is empty, into it."""
    chunks[0] = LENGTH.pack(sum(map(len, chunks)))
    return chunks


def encode_request(api: Api, version: int, correlation_id: int, client_id: str | None, body: Any) -> list[Any]:
    chunks: list[Any] = [b"", encode_request_header(api.key, version, correlation_id, client_id)]
    api.request.encoder(version)(body, chunks.append)
    return _framed(chunks)


def encode_response(api: Api, version: int, correlation_id: int, body: Any) -> list[Any]:
    chunks: list[Any] = [b"", encode_response_header(api.key, version, correlation_id)]
    api.response.encoder(version)(body, chunks.append)
    return _framed(chunks)


def decode_request(buf: Buffer, pos: int = 0, end: int | None = None) -> tuple[Api, int, int, str | None, Any]:
    """(api, version, correlation id, client id, body) of a request without its length prefix."""
    if end is None:
        end = len(buf)
    key, version, correlation_id, client_id, pos = decode_request_header(buf, pos, end)
    api = API[key]
    return api, version, correlation_id, client_id, api.request.decode(buf, version, pos, end)


def decode_response(api: Api, version: int, buf: Buffer, pos: int = 0, end: int | None = None) -> tuple[int, Any]:
    """(correlation id, body) of a response without its length prefix."""
    if end is None:
        end = len(buf)
    correlation_id, pos = decode_response_header(buf, pos, end, api.key, version)
    return correlation_id, api.response.decode(buf, version, pos, end)
