"""What must come out of the pipeline, computed in plain Python from what was sent: nothing here knows Spark."""

from collections import defaultdict
from collections.abc import Iterable

import msgspec

from headrace.demo.events import DUPLICATE, MALFORMED, STALE, Event

WINDOW_MS = 5_000
WATERMARK_MS = 5_000
"""How long the pipeline waits for late events: for the latest that the shop sends, and for a partition that is behind
the others by as much as the feed sends at once, and by what it sends while a client looks for a new leader."""
STALE_AFTER_MS = 60_000

Window = tuple[int, str]
"""(start in ms, category)"""


KeyValue = tuple[bytes | None, bytes | None]


class Totals(msgspec.Struct, gc=False):
    """One window of one category."""

    events: int = 0
    orders: int = 0
    cents: int = 0


class Expected(msgspec.Struct):
    windows: dict[Window, Totals]
    rejected: list[KeyValue]
    duplicates: int = 0
    stale: int = 0


def window_of(event_time_ms: int) -> int:
    return event_time_ms - event_time_ms % WINDOW_MS


def expect(events: Iterable[Event]) -> Expected:
    """Broken events are rejected, stale ones left out, one sent twice counts once; all others fall into their
    windows."""
    windows: defaultdict[Window, Totals] = defaultdict(Totals)
    rejected: list[KeyValue] = []
    duplicates = stale = 0
    for event in events:
        if event.kind == MALFORMED:
            rejected.append((event.key, event.value))
        elif event.kind == STALE:
            stale += 1
        elif event.kind == DUPLICATE:
            duplicates += 1
        else:
            row = windows[window_of(event.event_time_ms), event.category]
            row.events += 1
            row.orders += event.action == "order"
            row.cents += event.cents
    return Expected(dict(windows), rejected, duplicates, stale)
