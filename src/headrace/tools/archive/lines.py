"""A record as a line of JSON and back, byte for byte. As `headrace consume --json` writes it: texts are texts, bytes
that are no UTF-8 are {"base64": ...}, and null is neither."""

import base64
import binascii
from typing import Any, NamedTuple

import msgspec

from headrace.client.consume.records import Record
from headrace.client.errors import ClientError
from headrace.records.reader import Headers

SHOWN_CHARACTERS = 60


class ArchivedRecord(NamedTuple):
    """A record as a file has it."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class _Line(msgspec.Struct):
    partition: int
    offset: int
    timestamp: int
    value: Any
    key: Any = None
    headers: list[tuple[Any, Any]] = []
    topic: str | None = None


_decoder = msgspec.json.Decoder(_Line)
_encode = msgspec.json.Encoder().encode


def line_of(record: Record) -> bytes:
    """With its end of line."""
    return (
        _encode(
            {
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": _shown(record.key),
                "value": _shown(record.value),
                "headers": [[_shown_name(name), _shown(content)] for name, content in record.headers],
            }
        )
        + b"\n"
    )


def record_of(line: bytes) -> tuple[ArchivedRecord, str | None]:
    """The record of a line, and its topic if the line names it. Raises ClientError."""
    try:
        read = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text = line.decode(errors="replace").strip()
        shown = text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
        raise ClientError(
            f"{shown!r} is no line of `headrace export`: {error}. Lines without partition, offset and timestamp are"
            " for `headrace produce --json-lines`"
        ) from None
    if read.partition < 0 or read.offset < 0:
        raise ClientError(f"partition {read.partition}, offset {read.offset}: neither can be negative")
    headers = tuple((_name(name), _content(content)) for name, content in read.headers)
    return (
        ArchivedRecord(read.partition, read.offset, read.timestamp, _content(read.key), _content(read.value), headers),
        read.topic,
    )


def _shown(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _shown_name(name: str) -> Any:
    """Names of headers are text, but not every client keeps to UTF-8: bytes beyond it came as surrogates."""
    if name.isascii():
        return name
    return _shown(name.encode("utf-8", "surrogateescape"))


def _content(value: Any) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise ClientError(f"{value['base64']!r} is not base64") from None
    raise ClientError(f'{value!r} is neither a text, null nor {{"base64": ...}}')


def _name(value: Any) -> str:
    content = _content(value)
    if content is None:
        raise ClientError("a header has no name")
    return content.decode("utf-8", "surrogateescape")
