"""How listeners do, for people and load balancers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ListenerHealth:
    """How one listener does."""

    name: str
    state: str
    """starting, running, restarting, stopping, stopped or failed."""
    error: str | None
    partitions: list[tuple[str, int]]
    polled_s_ago: float | None
    waiting: int
    """Records that were read and are not finished."""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether every listener runs. Web frameworks make JSON objects of it, with these names."""

    ok: bool
    listeners: list[ListenerHealth]
