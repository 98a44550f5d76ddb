"""Where a consumer begins in a partition of which it has read nothing, or whose position is gone."""

import re
from typing import NamedTuple

from headrace.client.admin.admin import EARLIEST, LATEST
from headrace.client.errors import ClientError

_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?", re.I
)


class ResetPolicy(NamedTuple):
    """`auto_offset_reset`: a timestamp for ListOffsets, or an age in milliseconds, or neither (it is an error)."""

    timestamp: int | None = None
    age_ms: int | None = None

    @property
    def is_none(self) -> bool:
        return self.timestamp is None and self.age_ms is None

    def timestamp_at(self, now_ms: int) -> int:
        """What to ask a broker for. Raises ClientError under the policy none."""
        if self.timestamp is not None:
            return self.timestamp
        if self.age_ms is None:
            raise ClientError("there is no policy to reset by")
        return max(0, now_ms - self.age_ms)


def read_reset(given: str) -> ResetPolicy:
    """earliest, latest, none, or by_duration: and a duration as ISO 8601 writes it (KIP-1106). Raises ClientError."""
    word = given.strip().lower()
    if word == "earliest":
        return ResetPolicy(EARLIEST)
    if word == "latest":
        return ResetPolicy(LATEST)
    if word == "none":
        return ResetPolicy()
    kind, _, rest = given.partition(":")
    found = _DURATION.fullmatch(rest.strip()) if kind.strip().lower() == "by_duration" else None
    if found is None or not any(found.groups()):
        raise ClientError(
            f"option auto_offset_reset is {given!r}: write earliest, latest, none, or by_duration:PT1H (ISO 8601)"
        )
    days, hours, minutes, seconds = (float(found[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
    return ResetPolicy(age_ms=int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000))
