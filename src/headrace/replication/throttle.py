"""How much may be copied of replicas that are being moved, so that moving them does not starve everybody else.

Pure: a bucket that fills with the rate and holds one second of it. What is taken may overdraw it, since records are
only counted when they are there; then nothing more is given until it has filled up again.
"""

from collections.abc import Sequence

EVERY = "*"


class Throttle:
    """One direction of one broker. The rate is bytes per second and may change at any time."""

    __slots__ = ("_at_ms", "_left")

    def __init__(self) -> None:
        self._at_ms = 0
        self._left = 0.0

    def wait_ms(self, rate: int, now_ms: int) -> int:
        """How long nothing more may be copied; 0: go on."""
        self._fill(rate, now_ms)
        if self._left > 0:
            return 0
        return int(-self._left * 1000 / rate) + 1 if rate else 1000

    def take(self, count: int, rate: int, now_ms: int) -> None:
        self._fill(rate, now_ms)
        self._left -= count

    def _fill(self, rate: int, now_ms: int) -> None:
        passed_ms = now_ms - self._at_ms
        self._at_ms = now_ms
        self._left = min(float(rate), self._left + rate * max(0, passed_ms) / 1000)


def is_throttled(replicas: Sequence[str], partition: int, broker_id: int) -> bool:
    """Whether a topic's list of throttled replicas (partition:broker, or *) names this one."""
    return bool(replicas) and (replicas[0] == EVERY or f"{partition}:{broker_id}" in replicas)
