"""Fetch sessions (KIP-227) from a consumer's side: a broker is told only what has changed. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

from headrace.client.admin.groups import TopicPartition
from headrace.client.net.cluster import NO_TOPIC_ID

FIRST_EPOCH, NO_SESSION = 0, 0
EPOCH_MAX = 0x7FFFFFFF


class Wanted(NamedTuple):
    """What is asked of one partition."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    last_epoch: int


class Question(NamedTuple):
    """What a request has to say."""

    session_id: int
    epoch: int
    asked: dict[TopicPartition, Wanted]
    """New and changed partitions; all of them in the first request."""
    forgotten: dict[TopicPartition, Wanted]


class FetchSession:
    """One broker's session. After an error it begins again."""

    __slots__ = ("_epoch", "_session_id", "known", "nameless", "names")

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = FIRST_EPOCH
        self.known: dict[TopicPartition, Wanted] = {}
        self.names: dict[bytes, str] = {}
        """Behind the topic ids of all that was asked for."""
        self.nameless: set[TopicPartition] = set()
        """Of topics without an id: while there are any, topics are asked for by name."""

    @property
    def is_new(self) -> bool:
        """Whether the broker knows nothing: it has to be told everything, not only what has changed."""
        return self._session_id == NO_SESSION

    def ask(self, changes: Mapping[TopicPartition, Wanted | None]) -> Question:
        """The next request: what may have changed, with None where nothing is wanted any more. Exactly one of
        `answered` and `reset` has to follow."""
        asked: dict[TopicPartition, Wanted] = {}
        forgotten: dict[TopicPartition, Wanted] = {}
        if self.is_new:
            self.reset()
        for at, one in changes.items():
            before = self.known.get(at)
            if before == one:
                continue
            # Another topic under the same name is forgotten and named anew: the broker knows partitions by their ids.
            if before is not None and (one is None or one.topic_id != before.topic_id):
                forgotten[at] = before
                del self.known[at]
                self.nameless.discard(at)
            if one is not None:
                asked[at] = self.known[at] = one
                self.names[one.topic_id] = at[0]
                if one.topic_id == NO_TOPIC_ID:
                    self.nameless.add(at)
        return Question(self._session_id, self._epoch, asked, forgotten)

    def answered(self, session_id: int) -> None:
        """The broker keeps the session under this id, or keeps none."""
        if session_id == NO_SESSION:
            self.reset()
            return
        self._session_id = session_id
        self._epoch = 1 if self._epoch == EPOCH_MAX else self._epoch + 1

    def reset(self) -> None:
        self._session_id, self._epoch = NO_SESSION, FIRST_EPOCH
        # New ones, not emptied ones: who reads an answer goes on with what was asked.
        self.known, self.names, self.nameless = {}, {}, set()
