"""Consumers that pause because they were given too much too soon (decision 0012).

librdkafka stops fetching for a second, by default, whenever it holds 100,000 records that its application has not taken
yet, and does not look again before, though they are gone in a tenth of that. One that is seen to do so while there is
more to read is given no more at a time, but less often: about as fast as applications are, and never later than it is
ready to wait.
"""

PAUSE_S = 0.95, 1.3
"""`fetch.queue.backoff.ms`, and some time to notice."""
BURST = 4
"""As many full answers in a row, each asked for at once, come before a pause that is meant."""
AT_ONCE_S = 0.05
FASTEST, SLOWEST = 100e6, 25e6
"""Bytes per second: what is tried first, and where slowing down ends. A pause costs more than either."""
EASED_S = 30.0
"""After so long without a pause it goes twice as fast again."""


def may_pause(software: str) -> bool:
    """Whether a client is librdkafka, by the name it gives in ApiVersions; its bindings have names of their own."""
    name = software.lower()
    return "rdkafka" in name or name.startswith("confluent")


class FetchPacing:
    """How soon one reader is given its next full answer."""

    __slots__ = ("_answered", "_burst", "_changed", "rate")

    def __init__(self) -> None:
        self.rate = 0.0
        """Bytes per second; 0: as fast as can be."""
        self._changed = 0.0
        self._answered = 0.0
        self._burst = 0

    def hold_s(self, length: int, now: float) -> float:
        """For how long an answer of so many bytes, as many as were asked for, is to be held back; it leaves then."""
        silence = now - self._answered
        if silence < AT_ONCE_S:
            self._burst += 1
        else:
            if self._burst >= BURST and PAUSE_S[0] <= silence <= PAUSE_S[1]:
                self._set(max(self.rate / 2, SLOWEST) if self.rate else FASTEST, now)
            self._burst = 0
        hold_s = 0.0
        if self.rate:
            if now - self._changed > EASED_S:
                self._set(2 * self.rate if self.rate < FASTEST else 0.0, now)
            hold_s = max(length / self.rate - silence, 0.0) if self.rate else 0.0
        self._answered = now + hold_s
        return hold_s

    def _set(self, rate: float, now: float) -> None:
        self.rate = rate
        self._changed = now
