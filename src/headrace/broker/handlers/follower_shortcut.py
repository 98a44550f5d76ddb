"""The short way for a follower that asks for what comes next in the same partition, and nothing else."""

from typing import TYPE_CHECKING

from headrace.broker.connection import FETCH, Answer, Connection, Request
from headrace.protocol.follower_shape import FollowerShape
from headrace.protocol.headers import CLIENT_ID_AT
from headrace.protocol.hot import FetchQuery

if TYPE_CHECKING:
    from headrace.broker.handlers.follower_fetch import FollowerFetches, FollowerSession, Row


class FollowerShortcut:
    """Serves requests of one shape in one session. Whatever is unusual is left to the long way."""

    __slots__ = ("_find", "_followers", "_key", "_leader_epoch", "_max_bytes", "_query", "_row", "_session", "said", "version")

    def __init__(
        self,
        followers: "FollowerFetches",
        shape: FollowerShape,
        query: FetchQuery,
        session: "FollowerSession",
        row: "Row",
    ) -> None:
        self.version = shape.version
        self.said = shape.said
        self._find = shape.find
        self._followers = followers
        self._query = query
        self._session = session
        self._row = row
        self._key = row.topic, row.index
        self._leader_epoch = row.leader_epoch
        self._max_bytes = row.max_bytes

    def take(
        self, connection: Connection, pos: int, end: int, correlation_id: int, started: float
    ) -> Answer | Request | None:
        """The answer to the frame at `pos`, or its place in the queue if it has to wait; None: nothing was done."""
        found = self._find(connection.buf, pos, end)
        session, row = self._session, self._row
        # A session that was closed has no rows any more; one may have gone on under another registration.
        if (
            found is None
            or found[0] != session.epoch
            or session.rows.get(self._key) is not row
            or session.replica_epoch != self._query.replica_epoch
        ):
            return None
        session.advance()
        _, offset, last_epoch, log_start = found
        row.ask(self._leader_epoch, offset, last_epoch, log_start, self._max_bytes)
        request = Request(connection, FETCH, self.version, correlation_id, -1, pos + CLIENT_ID_AT, end, started)
        request.let_go()
        return self._followers.serve(request, self._query, session) or request
