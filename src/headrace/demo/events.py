"""A shop's clickstream, the same for the same seed: orders and clicks with all the dirt of a real feed.

Some events come late, some twice, some are broken, and some are so old that a pipeline must refuse them. Each says
what it is in `kind`, so that a checker need not look at what comes back to know what should.
"""

import json
import math
import random
from collections.abc import Iterator

import msgspec

TICK_MS = 50
"""Events are made in ticks: a tick's events are one batch per partition."""

CATEGORIES = ("books", "coffee", "garden", "music", "toys")
ACTIONS = ("view", "view", "view", "view", "view", "view", "view", "view", "view", "view", "cart", "cart", "order")
COUNTRIES = ("DE", "FR", "GB", "IN", "JP", "US")
CUSTOMERS = 5_000

LATE_MS_MAX = 2_000
STALE_MS_MIN = 10 * 60_000
DUPLICATE_AFTER_TICKS_MAX = 60

WAVE_S = 40.0
"""The feed swells and ebbs, so that its picture shows something."""

GOOD, LATE, DUPLICATE, STALE, MALFORMED = "good", "late", "duplicate", "stale", "malformed"
KINDS = (GOOD, LATE, DUPLICATE, STALE, MALFORMED)
SHARES = {LATE: 0.06, DUPLICATE: 0.02, STALE: 0.004, MALFORMED: 0.01}


class Event(msgspec.Struct, frozen=True, gc=False):
    """One record of the feed. What follows `kind` is the truth about it, whatever its value looks like."""

    number: int
    key: bytes
    value: bytes
    timestamp_ms: int
    """When it was sent: the record's timestamp."""
    kind: str
    event_id: str
    event_time_ms: int
    """When it happened: before `timestamp_ms` for a late one."""
    category: str
    action: str
    cents: int


class Shop:
    """`events_of(tick)` in order of ticks, from 0 on. Everything follows from the seed and the start."""

    def __init__(self, seed: int, start_ms: int, rate: float) -> None:
        self.start_ms = start_ms
        self.rate = rate
        self._random = random.Random(seed)
        self._seed = seed
        self._next = 0
        self._due = 0.0
        self._again: dict[int, list[Event]] = {}
        self._tick = 0

    def events_of(self, tick: int) -> list[Event]:
        """The events of the next tick; those sent for the second time come last."""
        assert tick == self._tick, "ticks are made in order"
        self._tick += 1
        self._due += self._rate_at(tick * TICK_MS / 1000) * TICK_MS / 1000
        count, self._due = int(self._due), self._due % 1
        made = [self._make(tick, place / max(count, 1)) for place in range(count)]
        return made + [self._repeat(event, tick) for event in self._again.pop(tick, ())]

    def closing(self, event_time_ms: int) -> Event:
        """The last event, as of a later time: it moves a pipeline's watermark on, so that every window ends."""
        return self._event(GOOD, event_time_ms, event_time_ms)

    def _rate_at(self, second: float) -> float:
        wave = 1 + 0.35 * math.sin(2 * math.pi * second / WAVE_S)
        burst = 1.6 if int(second) % 17 == 11 else 1.0
        return self.rate * wave * burst

    def _make(self, tick: int, place: float) -> Event:
        dice = self._random
        now_ms = self.start_ms + tick * TICK_MS + int(place * TICK_MS)
        kind = self._kind()
        event_time_ms = now_ms
        if kind == LATE:
            event_time_ms -= dice.randint(500, LATE_MS_MAX)
        elif kind == STALE:
            event_time_ms -= dice.randint(STALE_MS_MIN, 10 * STALE_MS_MIN)
        event = self._event(MALFORMED if kind == MALFORMED else kind, event_time_ms, now_ms)
        if kind == DUPLICATE:
            event = msgspec.structs.replace(event, kind=GOOD)
            self._again.setdefault(tick + dice.randint(0, DUPLICATE_AFTER_TICKS_MAX) + 1, []).append(event)
        return event

    def _kind(self) -> str:
        throw = self._random.random()
        for kind, share in SHARES.items():
            if throw < share:
                return kind
            throw -= share
        return GOOD

    def _event(self, kind: str, event_time_ms: int, now_ms: int) -> Event:
        dice = self._random
        number, self._next = self._next, self._next + 1
        # A few customers are busy and most are not, as in any shop.
        customer = int(CUSTOMERS * dice.random() ** 3)
        category, action = dice.choice(CATEGORIES), dice.choice(ACTIONS)
        cents = dice.randint(199, 19_999) if action == "order" else 0
        event_id = f"{self._seed:x}-{number}"
        fields: dict[str, object] = {
            "event_id": event_id,
            "event_time": event_time_ms,
            "customer": customer,
            "action": action,
            "category": category,
            "country": dice.choice(COUNTRIES),
            "cents": cents,
        }
        value = json.dumps(fields).encode() if kind != MALFORMED else self._break(fields)
        return Event(
            number, b"customer-%d" % customer, value, now_ms, kind, event_id, event_time_ms, category, action, cents
        )

    def _break(self, fields: dict[str, object]) -> bytes:
        """A value as broken clients send them."""
        dice = self._random
        way = dice.randrange(4)
        if way == 0:
            text = json.dumps(fields)
            return text[: dice.randint(1, len(text) - 1)].encode()
        if way == 1:
            del fields[dice.choice(("event_id", "event_time", "category", "cents"))]
        elif way == 2:
            fields["cents"] = "twelve ninety-nine"
        else:
            return b"\xff\xfe" + dice.randbytes(12)
        return json.dumps(fields).encode()

    def _repeat(self, event: Event, tick: int) -> Event:
        """The same event once more, as a client sends it that has not heard of its success."""
        number, self._next = self._next, self._next + 1
        now_ms = self.start_ms + (tick + 1) * TICK_MS - 1
        return msgspec.structs.replace(event, number=number, kind=DUPLICATE, timestamp_ms=now_ms)


def replay(seed: int, start_ms: int, rate: float, ticks: int) -> Iterator[Event]:
    """The feed again, from its beginning through `ticks` ticks."""
    shop = Shop(seed, start_ms, rate)
    for tick in range(ticks):
        yield from shop.events_of(tick)
