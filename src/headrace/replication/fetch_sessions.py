"""Fetch sessions (KIP-227): a consumer names its partitions once, then only what changes.

Pure: the broker asks `open` what a request means and `Session.must_tell` which partitions its answer has to contain.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from headrace.errors import Err

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 0x7FFFFFFF
EVICTION_MS = 120_000
REFUSAL_MS = 1000
"""How long a full cache is not searched again for those it has just refused: with more consumers than slots, every
Fetch without a session would search it."""

Topic = str | bytes
"""A topic's name (Fetch up to v12) or its id (v13 on)."""


class Target:
    """One partition to fetch, and what its session was last told about it."""

    __slots__ = (
        "index", "last_fetched_epoch", "leader_epoch", "log_start_offset", "max_bytes", "offset",
        "told_high_watermark", "told_log_start", "topic",
    )  # fmt: skip

    def __init__(
        self, topic: Topic, index: int, offset: int, max_bytes: int, leader_epoch: int = -1,
        last_fetched_epoch: int = -1, log_start_offset: int = -1,
    ) -> None:  # fmt: skip
        self.topic = topic
        self.index = index
        self.offset = offset
        self.max_bytes = max_bytes
        self.leader_epoch = leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.log_start_offset = log_start_offset
        self.told_high_watermark = -1
        self.told_log_start = -1

    def at(self, offset: int) -> "Target":
        """The same is asked for, from another offset on."""
        return Target(
            self.topic,
            self.index,
            offset,
            self.max_bytes,
            self.leader_epoch,
            self.last_fetched_epoch,
            self.log_start_offset,
        )

    def update(self, other: "Target") -> None:
        """The client asks for something else of the same partition."""
        self.offset = other.offset
        self.max_bytes = other.max_bytes
        self.leader_epoch = other.leader_epoch
        self.last_fetched_epoch = other.last_fetched_epoch
        self.log_start_offset = other.log_start_offset


class News(Protocol):
    """Who keeps an eye on a session's targets, where they are too many to go over them every time."""

    def named(self, target: Target) -> None:
        """A request says something of it."""
        ...

    def forgotten(self, target: Target) -> None: ...

    def close(self) -> None:
        """The session has ended."""
        ...


class Session:
    """What one client fetches, in the order in which it is next served."""

    __slots__ = ("by_id", "created_ms", "epoch", "id", "news", "privileged", "targets", "used_ms")

    def __init__(self, session_id: int, privileged: bool, by_id: bool, now_ms: int) -> None:
        self.id = session_id
        self.epoch = 1
        self.privileged = privileged
        self.by_id = by_id
        self.created_ms = self.used_ms = now_ms
        self.targets: dict[tuple[Topic, int], Target] = {}
        self.news: News | None = None

    def name(self, targets: list[Target], forgotten: Iterable[tuple[Topic, int]]) -> None:
        """What a request says of its targets."""
        news = self.news
        for target in targets:
            key = (target.topic, target.index)
            known = self.targets.get(key)
            if known is None:
                known = self.targets[key] = target
            else:
                known.update(target)
            if news is not None:
                news.named(known)
        for key in forgotten:
            gone = self.targets.pop(key, None)
            if gone is not None and news is not None:
                news.forgotten(gone)

    def end(self) -> None:
        if self.news is not None:
            self.news.close()
            self.news = None

    def must_tell(
        self, target: Target, error: int, high_watermark: int, log_start: int, length: int, special: bool
    ) -> bool:
        """Does an incremental answer have to contain this partition? Remembers what it is told.

        `special`: something beside records that the client must hear of (diverging epoch, a closer replica).
        """
        tell = length > 0 or special or error != 0
        if target.told_high_watermark != high_watermark:
            target.told_high_watermark = high_watermark
            tell = True
        if target.told_log_start != log_start and not error:
            target.told_log_start = log_start
            tell = True
        if error or special:
            target.told_high_watermark = -1  # so that the recovery is told as well
        if length > 0:
            # Served now, last in line next time: a busy partition cannot starve the others.
            key = (target.topic, target.index)
            if self.targets.pop(key, None) is not None:
                self.targets[key] = target
        return tell


class FetchContext:
    """What a Fetch request asks for, once its session is taken into account."""

    __slots__ = ("epoch", "error", "session", "targets", "wants_session")

    def __init__(
        self,
        targets: Iterable[Target],
        session: Session | None = None,
        wants_session: bool = False,
        error: Err = Err.NONE,
    ) -> None:
        self.targets = list(targets)
        """What is to be looked at; nothing of a session with `news`, which know better."""
        self.session = session
        self.wants_session = wants_session
        self.error = error
        self.epoch = session.epoch if session is not None else 0

    @property
    def superseded(self) -> bool:
        """Another request of the same session came while this one waited."""
        return self.session is not None and self.session.epoch != self.epoch


class SessionCache:
    """All sessions of a broker, at most `slots`."""

    def __init__(self, slots: int, new_id: Callable[[], int]) -> None:
        self.slots = slots
        self._new_id = new_id
        self._sessions: dict[int, Session] = {}  # least recently used first
        self.evictions = 0
        self._refused: tuple[bool, int] = (False, 0)
        self._refused_ms = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def partitions(self) -> int:
        return sum(len(session.targets) for session in self._sessions.values())

    def open(
        self, session_id: int, epoch: int, targets: list[Target], forgotten: Iterable[tuple[Topic, int]],
        by_id: bool, now_ms: int,
    ) -> FetchContext:  # fmt: skip
        """Interpret session id and epoch of a request."""
        if epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self._drop(session_id)
            return FetchContext(targets, wants_session=epoch == INITIAL_EPOCH)
        session = self._sessions.get(session_id)
        if session is None:
            return FetchContext((), error=Err.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return FetchContext((), error=Err.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            return FetchContext((), error=Err.FETCH_SESSION_TOPIC_ID_ERROR)
        session.name(targets, forgotten)
        if not session.targets:
            self._drop(session_id)
            return FetchContext(targets)
        session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        session.used_ms = now_ms
        self._sessions[session_id] = self._sessions.pop(session_id)
        return FetchContext(session.targets.values() if session.news is None else (), session)

    def reads_only(self, session_id: int, epoch: int, key: tuple[Topic, int]) -> bool:
        """Is this the next request of a session that reads this partition and no other?"""
        session = self._sessions.get(session_id)
        if session is None or session.epoch != epoch or session.news is not None:
            return False
        return len(session.targets) == 1 and key in session.targets

    def create(self, targets: Iterable[Target], privileged: bool, by_id: bool, now_ms: int) -> Session | None:
        """A session for a full fetch, or None when the cache is full of better ones."""
        targets = list(targets)
        if len(self._sessions) >= self.slots and not self._evict(privileged, len(targets), now_ms):
            return None
        session_id = self._new_id()
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._new_id()
        session = Session(session_id, privileged, by_id, now_ms)
        session.targets = {(target.topic, target.index): target for target in targets}
        self._sessions[session_id] = session
        return session

    def _evict(self, privileged: bool, size: int, now_ms: int) -> bool:
        """Make room: a session long unused, or one that is worth less than the newcomer.

        Of equals the one that is there stays: or they would drive each other out for ever.
        """
        worth = privileged, size
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        victim: Session | None = oldest
        if now_ms - oldest.used_ms <= EVICTION_MS:
            if worth <= self._refused and now_ms - self._refused_ms < REFUSAL_MS:
                return False
            candidates = [
                session
                for session in self._sessions.values()
                if now_ms - session.created_ms > EVICTION_MS or (privileged and not session.privileged)
            ]
            victim = min(candidates, key=lambda s: (s.privileged, len(s.targets)), default=None)
            if victim is None or worth <= (victim.privileged, len(victim.targets)):
                self._refused, self._refused_ms = worth, now_ms
                return False
        assert victim is not None
        self._drop(victim.id)
        self.evictions += 1
        return True

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.end()
