"""Which brokers are in touch with the active controller. Kept in memory only: a new controller starts afresh.

Sessions stand in order of last contact, so that the next one to run out is always the first: a heartbeat costs the same
with one broker as with a thousand.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping

NO_OFFSET = -1


class Session:
    """One incarnation of a broker."""

    __slots__ = ("broker_id", "epoch", "last_contact_ms", "metadata_offset", "shutdown_offset")

    def __init__(self, broker_id: int, epoch: int, last_contact_ms: int) -> None:
        self.broker_id = broker_id
        self.epoch = epoch
        self.last_contact_ms = last_contact_ms
        self.metadata_offset = NO_OFFSET
        """How far the broker has read the metadata log."""
        self.shutdown_offset = NO_OFFSET
        """Others that have read up to here no longer take it for a leader: then it may stop."""


class Sessions:
    """All times are of one monotonic clock, which never goes back."""

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self._sessions: OrderedDict[int, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def restart(self, epochs: Mapping[int, int], now_ms: int, silent_ms: Mapping[int, int]) -> None:
        """A new controller knows nobody: all brokers get a whole session, but for those known to be silent for some
        time."""
        order = sorted(epochs, key=lambda broker_id: (-silent_ms.get(broker_id, 0), broker_id))
        self._sessions = OrderedDict(
            (broker_id, Session(broker_id, epochs[broker_id], now_ms - silent_ms.get(broker_id, 0)))
            for broker_id in order
        )

    def touch(self, broker_id: int, epoch: int, now_ms: int, metadata_offset: int | None = None) -> Session:
        """A broker has been heard of. Another epoch is another incarnation: nothing of the last one holds for it."""
        session = self._sessions.get(broker_id)
        if session is None or session.epoch != epoch:
            session = self._sessions[broker_id] = Session(broker_id, epoch, now_ms)
        session.last_contact_ms = now_ms
        if metadata_offset is not None:
            session.metadata_offset = metadata_offset
        self._sessions.move_to_end(broker_id)
        return session

    def get(self, broker_id: int) -> Session | None:
        return self._sessions.get(broker_id)

    def forget(self, broker_id: int) -> None:
        self._sessions.pop(broker_id, None)

    def alive(self, broker_id: int, epoch: int, now_ms: int) -> bool:
        session = self._sessions.get(broker_id)
        return session is not None and session.epoch == epoch and now_ms < session.last_contact_ms + self.timeout_ms

    def next_expiry_ms(self) -> int | None:
        for session in self._sessions.values():
            return session.last_contact_ms + self.timeout_ms
        return None

    def expired(self, now_ms: int) -> Session | None:
        """The session that has run out first, if any has."""
        for session in self._sessions.values():
            return session if now_ms >= session.last_contact_ms + self.timeout_ms else None
        return None

    def forgive(self, late_ms: int, now_ms: int) -> None:
        """This node slept for at least `late_ms`: heartbeats that came meanwhile wait unread, and nobody may be blamed.

        For how long before that it slept is not known: as long again, at most.
        """
        for session in self._sessions.values():
            session.last_contact_ms = min(now_ms, session.last_contact_ms + 2 * late_ms)

    def lowest_offset(self, broker_ids: Iterable[int]) -> int | None:
        """How far the slowest of some brokers has read the metadata log; None if there are none."""
        found = [self._sessions[broker_id].metadata_offset for broker_id in broker_ids if broker_id in self._sessions]
        return min(found, default=None)
