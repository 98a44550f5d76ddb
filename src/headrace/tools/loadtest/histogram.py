"""Times counted in buckets whose width grows with them: any range, a fixed error, little memory. Pure."""

from collections.abc import Iterator

SUB_BITS = 7
"""2 ** 7 buckets for each power of two: a value is told within 1 per cent."""
_SUB = 1 << SUB_BITS
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9}


class Histogram:
    """Whole numbers from 0 on, such as nanoseconds."""

    __slots__ = ("_counts", "count", "maximum", "minimum", "total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total = 0
        self.minimum = 0
        self.maximum = 0

    def add(self, value: int) -> None:
        """A negative value counts as 0: clocks of two processes may differ by that much."""
        if value < 0:
            value = 0
        shift = max(0, value.bit_length() - SUB_BITS - 1)
        bucket = (shift << SUB_BITS) + (value >> shift)
        counts = self._counts
        counts[bucket] = counts.get(bucket, 0) + 1
        if not self.count or value < self.minimum:
            self.minimum = value
        if value > self.maximum:
            self.maximum = value
        self.count += 1
        self.total += value

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def percentile(self, percent: float) -> int:
        """The value that so many per cent do not exceed, at most 1 per cent too high and never above the maximum."""
        if not self.count:
            return 0
        wanted = max(1, -(-self.count * percent // 100))
        passed = 0
        for bucket in sorted(self._counts):
            passed += self._counts[bucket]
            if passed >= wanted:
                return min(_highest(bucket), self.maximum)
        return self.maximum

    def rows(self, lines: int) -> Iterator[tuple[int, int, int]]:
        """(from, below, count) in at most `lines` steps of equal ratio."""
        if not self.count:
            return
        low, high = max(1, self.minimum), max(2, self.maximum + 1)
        ratio = max(1.01, (high / low) ** (1 / lines))
        edges = [0, *(int(low * ratio**step) for step in range(1, lines)), high]
        edges = sorted(set(edges))
        counts = [0] * (len(edges) - 1)
        at = 0
        for bucket in sorted(self._counts):
            value = min(_highest(bucket), self.maximum)
            while at < len(counts) - 1 and value >= edges[at + 1]:
                at += 1
            counts[at] += self._counts[bucket]
        yield from zip(edges, edges[1:], counts)

    def summary(self, unit: float) -> dict[str, float]:
        """Percentiles, divided by `unit`."""
        found = {name: self.percentile(percent) / unit for name, percent in PERCENTILES.items()}
        return {**found, "max": self.maximum / unit, "mean": self.mean / unit}


def _highest(bucket: int) -> int:
    """The largest value that a bucket counts."""
    shift = max(0, (bucket >> SUB_BITS) - 1)
    return (((bucket - (shift << SUB_BITS)) + 1) << shift) - 1
