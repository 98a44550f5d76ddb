"""Where the dump's lines go, and a count of the damage that was found on the way."""

import base64
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any


class Report:
    """Lines for people; `damage` says what is wrong and where. What a line says in `facts` is for `JsonReport`."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._path = ""
        self.damaged: list[str] = []

    def title(self, path: str, kind: str) -> None:
        self._path = path
        self._write(f"{path}  ({kind})")

    def line(self, text: str, /, **facts: object) -> None:
        self._write(f"  {text}")

    def detail(self, text: str, /, **facts: object) -> None:
        """Something inside of what the last line was about."""
        self._write(f"      {text}")

    def damage(self, path: str, text: str) -> None:
        self.damaged.append(f"{path}: {text}")
        self._write(f"  !! {text}" if path == self._path else f"  !! {os.path.basename(path)}: {text}")


class JsonReport(Report):
    """The same as one JSON array with an object for each file, written file by file.

    `entries` has what the file holds, `notes` what is said in words alone.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        super().__init__(write)
        self._file: dict[str, Any] | None = None
        self._files = 0

    def title(self, path: str, kind: str) -> None:
        self._end_file()
        self._path = path
        self._file = {"path": path, "kind": kind, "entries": [], "notes": [], "damage": []}

    def line(self, text: str, /, **facts: object) -> None:
        assert self._file is not None
        self._file["entries" if facts else "notes"].append(facts or text)

    def detail(self, text: str, /, **facts: object) -> None:
        assert self._file is not None
        self._file["entries"][-1].setdefault("records", []).append(facts or {"text": text})

    def damage(self, path: str, text: str) -> None:
        assert self._file is not None
        self.damaged.append(f"{path}: {text}")
        self._file["damage"].append({"path": path, "text": text})

    def close(self) -> None:
        self._end_file()
        self._write("]" if self._files else "[]")

    def _end_file(self) -> None:
        if self._file is not None:
            self._write(("," if self._files else "[") + json.dumps(self._file))
            self._files += 1
            self._file = None


def plain(data: bytes | memoryview | None) -> object:
    """Bytes for JSON: as text where they are text, else in base64."""
    if data is None:
        return None
    raw = bytes(data)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


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
