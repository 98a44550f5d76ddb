"""How listeners do, for people and load balancers."""

from typing import NamedTuple


class ListenerHealth(NamedTuple):
    """How one listener does."""

    name: str
    state: str
    """starting, running, restarting, stopping, stopped or failed."""
    error: str | None
    partitions: list[tuple[str, int]]
    polled_s_ago: float | None
    waiting: int
    """Records that were read and are not finished."""


class Health(NamedTuple):
    """Whether every listener runs."""

    ok: bool
    listeners: list[ListenerHealth]
