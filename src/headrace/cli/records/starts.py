"""`--from`: where reading begins. `earliest`, `latest`, an offset, so many records before the end (`-100`), a time
(`2026-11-01T12:00:00`), or so long ago (`2h`)."""

import re
from datetime import datetime

from headrace.cli.group_reset import parse_duration
from headrace.client.errors import ClientError
from headrace.tools.ranges import Start


def start_of(text: str, now_ms: int, option: str = "--from") -> Start:
    """What --from, or another option, says. Raises ClientError."""
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
        return Start(time_ms=max(0, now_ms - parse_duration(text, option)))
    except ClientError:
        raise ClientError(
            f"{option} {text}: write earliest, latest, an offset, -N for the last N of each partition, a time such as"
            " 2026-11-01T12:00:00, or 2h for so long ago"
        ) from None
