"""Where the dump's lines go, and a count of the damage that was found on the way."""

import os
from collections.abc import Callable
from datetime import UTC, datetime


class Report:
    """Lines for people; `damage` says what is wrong and where."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._path = ""
        self.damaged: list[str] = []

    def title(self, path: str, kind: str) -> None:
        self._path = path
        self._write(f"{path}  ({kind})")

    def line(self, text: str) -> None:
        self._write(f"  {text}")

    def detail(self, text: str) -> None:
        self._write(f"      {text}")

    def damage(self, path: str, text: str) -> None:
        self.damaged.append(f"{path}: {text}")
        self._write(f"  !! {text}" if path == self._path else f"  !! {os.path.basename(path)}: {text}")


def when(timestamp_ms: int) -> str:
    """A timestamp with its meaning; out of the calendar's range it stays a number."""
    if timestamp_ms < 0:
        return "none" if timestamp_ms == -1 else str(timestamp_ms)
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return f"{timestamp_ms} ({moment:%Y-%m-%d %H:%M:%S}.{timestamp_ms % 1000:03d}Z)"


def short(data: bytes | memoryview | None, limit: int) -> str:
    """Bytes as text where they are text, in hex where they are not, at most `limit` of them."""
    if data is None:
        return "null"
    raw = bytes(data[:limit])
    try:
        text = repr(raw.decode())
    except UnicodeDecodeError:
        text = "0x" + raw.hex()
    return text if len(data) <= limit else f"{text}... ({len(data):,} bytes)"


def counted(count: int, noun: str, plural: str = "") -> str:
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
