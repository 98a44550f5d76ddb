"""Fetch sessions (KIP-227) from a consumer's side: a broker is told only what has changed. Pure."""

from typing import NamedTuple

FIRST_EPOCH, NO_SESSION = 0, 0
EPOCH_MAX = 0x7FFFFFFF


class Wanted(NamedTuple):
    """What is asked of one partition."""

    topic_id: bytes
    offset: int
    leader_epoch: int
    last_epoch: int


TopicPartition = tuple[str, int]


class Question(NamedTuple):
    """What a request has to say."""

    session_id: int
    epoch: int
    asked: dict[TopicPartition, Wanted]
    """New and changed partitions; all of them in the first request."""
    forgotten: dict[TopicPartition, Wanted]


class FetchSession:
    """One broker's session. After an error it begins again."""

    __slots__ = ("_epoch", "_known", "_session_id")

    def __init__(self) -> None:
        self._session_id = NO_SESSION
        self._epoch = FIRST_EPOCH
        self._known: dict[TopicPartition, Wanted] = {}

    def ask(self, wanted: dict[TopicPartition, Wanted]) -> Question:
        """The next request, for these partitions. Exactly one of `answered` and `reset` has to follow."""
        known = self._known
        if self._session_id == NO_SESSION:
            question = Question(NO_SESSION, FIRST_EPOCH, wanted, {})
        else:
            # Another topic under the same name is forgotten and named anew: the broker knows partitions by their ids.
            asked = {at: one for at, one in wanted.items() if known.get(at) != one}
            forgotten = {at: one for at, one in known.items() if at not in wanted or wanted[at][0] != one[0]}
            question = Question(self._session_id, self._epoch, asked, forgotten)
        self._known = wanted
        return question

    def answered(self, session_id: int) -> None:
        """The broker keeps the session under this id, or keeps none."""
        if session_id == NO_SESSION:
            self.reset()
            return
        self._session_id = session_id
        self._epoch = 1 if self._epoch == EPOCH_MAX else self._epoch + 1

    def reset(self) -> None:
        self._session_id, self._epoch, self._known = NO_SESSION, FIRST_EPOCH, {}
