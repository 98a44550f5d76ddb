"""Records from text: one per line, JSON objects as `headrace consume --json` writes them, or whole files."""

import base64
import binascii
import re
from typing import Any, NamedTuple

import msgspec

from headrace.client.errors import ClientError

LINE_BYTES_MAX = 64 << 20
SHOWN_CHARACTERS = 60


class InputRecord(NamedTuple):
    """A record to be produced. None for partition and timestamp leaves them to the producer."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp: int | None = None


class LineSplitter:
    """Pieces between delimiters, from chunks that end anywhere."""

    def __init__(self, delimiter: bytes) -> None:
        self._delimiter = delimiter
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """The lines that end in this chunk. Raises ClientError for one that has no end."""
        *whole, self._rest = (self._rest + chunk).split(self._delimiter)
        if len(self._rest) > LINE_BYTES_MAX:
            raise ClientError(f"a line has more than {LINE_BYTES_MAX >> 20} MiB: is --delimiter right?")
        return whole

    def end(self) -> list[bytes]:
        """The last line, if it was not ended."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


def from_line(line: bytes, key_separator: bytes | None, empty_is_null: bool) -> InputRecord:
    """`value`, or `key SEPARATOR value`. Raises ClientError where the separator is missing."""
    if key_separator is None:
        return InputRecord(None, None if empty_is_null and not line else line)
    key, found, value = line.partition(key_separator)
    if not found:
        raise ClientError(f"no {_text(key_separator)!r} between key and value in {_text(line)!r}")
    return InputRecord(
        None if empty_is_null and not key else key,
        None if empty_is_null and not value else value,
    )


def from_json(line: bytes) -> InputRecord:
    """An object with `value`, and perhaps `key`, `headers`, `partition` and `timestamp`.

    Texts are written as they are, {"base64": ...} as the bytes it stands for, anything else as JSON. Raises
    ClientError.
    """
    try:
        fields = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ClientError(f"{_text(line)!r} is not JSON: {error}") from None
    if not isinstance(fields, dict) or not ({"key", "value"} & fields.keys()):
        raise ClientError(f'{_text(line)!r} is no record: write {{"key": ..., "value": ...}}')
    return InputRecord(
        _content(fields.get("key")),
        _content(fields.get("value")),
        _headers(fields.get("headers")),
        _whole_number(fields, "partition"),
        _whole_number(fields, "timestamp"),
    )


def header_of(text: str) -> tuple[str, bytes | None]:
    """NAME=VALUE; without the equals sign, a header that has no value."""
    name, equals, value = text.partition("=")
    if not name:
        raise ClientError(f"--header {text}: write NAME=VALUE, such as --header source=web")
    return name, value.encode() if equals else None


def delimiter_of(text: str, option: str) -> bytes:
    r"""What the user wrote, with \n, \t, \0 and \x1e understood. Raises ClientError."""
    try:
        return re.sub(rb"\\(x[0-9a-fA-F]{2}|.)", _unescaped, text.encode())
    except KeyError as error:
        raise ClientError(
            f"{option} {text}: \\{error.args[0]} is not known; write \\n, \\t, \\r, \\0 or \\x1e"
        ) from None


ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}


def _unescaped(match: "re.Match[bytes]") -> bytes:
    code = match[1]
    if len(code) == 3:
        return bytes([int(code[1:], 16)])
    if code not in ESCAPES:
        raise KeyError(code.decode(errors="replace"))
    return ESCAPES[code]


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
    return msgspec.json.encode(value)


def _headers(given: Any) -> tuple[tuple[str, bytes | None], ...]:
    if given is None:
        return ()
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list):
        raise ClientError(f'headers are {given!r}: write {{"name": "value"}} or [["name", "value"]]')
    try:
        return tuple((str(name), _content(value)) for name, value in pairs)
    except (TypeError, ValueError):
        raise ClientError(f'headers are {given!r}: write {{"name": "value"}} or [["name", "value"]]') from None


def _whole_number(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
        raise ClientError(f"{name} is {value!r}: write a whole number that is not negative")
    return value


def _text(data: bytes) -> str:
    text = data.decode(errors="replace")
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
