"""`--from`: where reading begins. `earliest`, `latest`, an offset, so many records before the end (`-100`), a time
(`2026-11-01T12:00:00`), or so long ago (`2h`)."""

import re
from datetime import datetime
from typing import NamedTuple

from headrace.cli.group_reset import parse_duration
from headrace.client.errors import ClientError


class Start(NamedTuple):
    """One way to say it; exactly one field is set."""

    word: str | None = None
    """earliest or latest."""
    offset: int | None = None
    before_end: int | None = None
    time_ms: int | None = None


def start_of(text: str, now_ms: int) -> Start:
    """What --from says. Raises ClientError."""
    if text in ("earliest", "latest"):
        return Start(word=text)
    if re.fullmatch(r"\d+", text):
        return Start(offset=int(text))
    if re.fullmatch(r"-\d+", text):
        return Start(before_end=int(text[1:]))
    try:
        # Without a zone it is the clock of the one who asks.
        return Start(time_ms=int(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):
        pass
    try:
        return Start(time_ms=max(0, now_ms - parse_duration(text, "--from")))
    except ClientError:
        raise ClientError(
            f"--from {text}: write earliest, latest, an offset, -N for the last N of each partition, a time such as"
            " 2026-11-01T12:00:00, or 2h for so long ago"
        ) from None


def first_offset(start: Start, low: int, high: int, by_time: int | None) -> int:
    """Where to begin in a partition that has the offsets from `low` up to `high`; `by_time` is the first offset at
    `start.time_ms` or later, if there is one."""
    if start.word is not None:
        wanted = low if start.word == "earliest" else high
    elif start.offset is not None:
        wanted = start.offset
    elif start.before_end is not None:
        wanted = high - start.before_end
    else:
        wanted = high if by_time is None or by_time < 0 else by_time
    return max(low, min(wanted, high))
