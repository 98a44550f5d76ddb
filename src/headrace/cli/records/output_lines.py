"""Records as text: plain lines, JSON lines, or a format of the user's, with kcat's letters."""

import base64
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.cli.records.input_lines import ESCAPES
from headrace.client.api.types import Record
from headrace.client.errors import ClientError

Write = Callable[[Record], bytes]
Decode = Callable[[bytes], Any]
FORMATS = ("text", "json", "msgpack", "hex", "base64")

_LETTERS: dict[str, str] = {
    "t": "topic", "p": "partition", "o": "offset", "T": "timestamp in ms", "k": "key", "K": "length of the key",
    "s": "value", "S": "length of the value", "h": "headers as a=b,c=d", "%": "a percent sign",
}  # fmt: skip
LETTERS_HELP = ", ".join(f"%{letter} {meaning}" for letter, meaning in _LETTERS.items())


def plain_lines(show_keys: bool, show_headers: bool, show_value: Decode) -> Write:
    """The value and, as asked for, key and headers before it, with tabs between."""

    def write(record: Record) -> bytes:
        parts = [_headers_text(record)] if show_headers else []
        if show_keys:
            parts.append(record.key or b"")
        parts.append(shown_bytes(record.value, show_value))
        return b"\t".join(parts) + b"\n"

    return write


def json_lines(show_key: Decode, show_value: Decode) -> Write:
    """An object each. What is not UTF-8 is {"base64": ...}, so that `headrace produce --json-lines` restores it."""

    def write(record: Record) -> bytes:
        fields = {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": None if record.key is None else show_key(record.key),
            "value": None if record.value is None else show_value(record.value),
            "headers": [[name, None if content is None else as_text(content)] for name, content in record.headers],
        }
        return msgspec.json.encode(fields) + b"\n"

    return write


def formatted(template: str, show_value: Decode) -> Write:
    r"""A format such as `%t-%p %o: %k = %s\n`. Raises ClientError for a letter that has no meaning."""
    pieces = re.split(r"(%.|\\x[0-9a-fA-F]{2}|\\.)", template, flags=re.DOTALL)
    parts: list[bytes | Callable[[Record], bytes]] = []
    for piece in pieces:
        if piece.startswith("%") and len(piece) == 2:
            parts.append(_letter(piece[1], show_value))
        elif piece.startswith("\\") and len(piece) > 1:
            parts.append(_escape(piece))
        elif piece:
            parts.append(piece.encode())
    return lambda record: b"".join(part if isinstance(part, bytes) else part(record) for part in parts)


def decoder_of(name: str, option: str, known: Sequence[str] = FORMATS) -> Decode:
    """How bytes are shown. Raises ClientError for a format that is not known."""
    decoders: dict[str, Decode] = {
        "text": as_text,
        "json": lambda data: _or_base64(msgspec.json.decode, data),
        "msgpack": lambda data: _or_base64(msgspec.msgpack.decode, data),
        "hex": bytes.hex,
        "base64": lambda data: base64.b64encode(data).decode(),
    }
    if name not in decoders:
        raise ClientError(f"{option} {name}: write one of {', '.join(known)}")
    return decoders[name]


def as_text(data: bytes) -> Any:
    """A text, or what stands for bytes that are none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def shown_bytes(data: bytes | None, show: Decode) -> bytes:
    """For a line of text: the bytes themselves where they are shown as text, JSON where they become more than that."""
    if data is None:
        return b""
    if show is as_text:
        return data
    value = show(data)
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _or_base64(decode: Decode, data: bytes) -> Any:
    """A record that somebody else wrote in another format must not end the reading of all others."""
    try:
        return decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return as_text(data)


def _letter(letter: str, show_value: Decode) -> Callable[[Record], bytes]:
    writers: dict[str, Callable[[Record], bytes]] = {
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "T": lambda record: b"%d" % record.timestamp,
        "k": lambda record: record.key or b"",
        "K": lambda record: b"%d" % (-1 if record.key is None else len(record.key)),
        "s": lambda record: shown_bytes(record.value, show_value),
        "S": lambda record: b"%d" % (-1 if record.value is None else len(record.value)),
        "h": _headers_text,
        "%": lambda record: b"%",
    }
    if letter not in writers:
        raise ClientError(f"--format: %{letter} has no meaning. There are {LETTERS_HELP}")
    return writers[letter]


def _escape(piece: str) -> bytes:
    code = piece[1:].encode()
    if len(code) == 3:
        return bytes([int(code[1:], 16)])
    if code not in ESCAPES:
        raise ClientError(f"--format: {piece} is not known; write \\n, \\t, \\r, \\0, \\\\ or \\x1e")
    return ESCAPES[code]


def _headers_text(record: Record) -> bytes:
    return b",".join(name.encode() + (b"" if content is None else b"=" + content) for name, content in record.headers)
