"""How much space one log dir has left, and what may still be written to it. Pure: sizes and times are arguments."""

from collections import deque

from headrace.protocol.private_fields.disk_space import NO_RECORDS, NOTHING, Space

RESERVE_BYTES_MAX = 256 << 20
RESERVE_SHARE = 20
"""One part in so many of the file system, where `log.dir.reserve.bytes` says nothing."""
LITTLE_BYTES = 64 << 10
"""Too little to promise anybody anything, whatever the reserve is."""
STEP_BYTES = 1 << 20
FILL_BYTES_PER_S = 1 << 30
"""Faster than any broker fills a disk: how soon to look again."""
LOOK_S, LOOK_S_MIN, LOOK_FULL_S = 1.0, 0.05, 0.2
SAMPLE_MS = 60_000
SAMPLES_MAX = 61
"""An hour."""
MOMENT_MS = 60_000
"""No rate is told of less."""


class LogDirSpace:
    """One log dir.

    It is full below its reserve, and has room again some way above it, so that deleting one segment does not make it
    flap.
    """

    __slots__ = ("_samples", "_unexplained", "configured_bytes", "level", "total_bytes", "usable_bytes")

    def __init__(self, configured_bytes: int) -> None:
        self.configured_bytes = configured_bytes
        """`log.dir.reserve.bytes`; -1: by the size of the file system."""
        self.total_bytes = self.usable_bytes = 0
        self.level = 0
        """0, NO_RECORDS or NOTHING."""
        self._unexplained = False
        """A write found no room although the file system says that there is: a quota, or no more files can be made."""
        self._samples: deque[tuple[int, int]] = deque(maxlen=SAMPLES_MAX)
        """(milliseconds, usable bytes), one a minute."""

    @property
    def reserve_bytes(self) -> int:
        if self.configured_bytes >= 0:
            return self.configured_bytes
        return min(RESERVE_BYTES_MAX, self.total_bytes // RESERVE_SHARE)

    @property
    def resume_bytes(self) -> int:
        """From here on, one that was full has room again."""
        return self.reserve_bytes + max(self.reserve_bytes // 4, min(STEP_BYTES, self.total_bytes // 64))

    @property
    def must_be_tried(self) -> bool:
        """Whether only a write can tell if there is room again."""
        return self._unexplained and self.usable_bytes >= self.resume_bytes

    def look(self, total_bytes: int, usable_bytes: int, now_ms: int) -> bool:
        """What the file system says now. True when that changes the level."""
        self.total_bytes, self.usable_bytes = total_bytes, usable_bytes
        if not self._samples or now_ms - self._samples[-1][0] >= SAMPLE_MS:
            self._samples.append((now_ms, usable_bytes))
        before, self.level = self.level, self._judged()
        return self.level != before

    def _judged(self) -> int:
        usable_bytes, reserve_bytes = self.usable_bytes, self.reserve_bytes
        if self._unexplained:
            return self.level
        if usable_bytes < reserve_bytes // 8:
            return NOTHING
        if self.level == NOTHING and usable_bytes < max(reserve_bytes // 4, 2 * LITTLE_BYTES):
            return NOTHING
        is_full = usable_bytes < (self.resume_bytes if self.level else reserve_bytes)
        return NO_RECORDS if is_full else 0

    def write_failed(self, total_bytes: int, usable_bytes: int, now_ms: int, *, own: bool) -> bool:
        """There was no room for a write, `own`: one of those that the reserve is for. True when that changes the
        level."""
        before = self.level
        self.look(total_bytes, usable_bytes, now_ms)
        self._unexplained = usable_bytes >= self.resume_bytes
        is_nothing = own or self._unexplained or usable_bytes < LITTLE_BYTES
        self.level = max(self.level, NOTHING if is_nothing else NO_RECORDS)
        return self.level != before

    def write_succeeded(self) -> None:
        """What was tried for want of a better sign has found room."""
        self._unexplained = False

    def space(self, now_ms: int) -> Space:
        """How fast it fills, by the last hour."""
        filled_bytes = over_ms = 0
        if self._samples and now_ms - self._samples[0][0] >= MOMENT_MS:
            over_ms = now_ms - self._samples[0][0]
            filled_bytes = self._samples[0][1] - self.usable_bytes
        return Space(self.level, self.reserve_bytes, filled_bytes, over_ms)

    @property
    def look_again_s(self) -> float:
        if self.level:
            return LOOK_FULL_S
        return min(LOOK_S, max(LOOK_S_MIN, (self.usable_bytes - self.reserve_bytes) / FILL_BYTES_PER_S))
