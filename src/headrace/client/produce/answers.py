"""The answer to one Produce request, taken in the very turn of the event loop that reads it.

A future and a task for each request would cost two more turns before whoever awaits a record goes on.
"""

import asyncio
from collections.abc import Iterator
from typing import Protocol

from headrace.client.errors import ClientError, RequestTimedOut
from headrace.client.net.connection import Connection
from headrace.client.produce.outgoing import Sender
from headrace.client.produce.partition_queue import PartitionQueue, QueuedBatch
from headrace.client.produce.request import Taken
from headrace.protocol import messages as m

Row = m.ProduceResponse.PartitionProduceResponse


class Requester(Protocol):
    """Who has sent the request."""

    def answered(self, request: "Posted", response: m.ProduceResponse) -> None: ...
    def lost(self, sender: Sender, taken: Taken, error: ClientError) -> None: ...
    def end(self, error: BaseException) -> None: ...


class Posted:
    """A request under way; the connection calls it when there is an answer, or will be none."""

    __slots__ = ("_is_done", "_requester", "_timer", "_under_way", "connection", "limit_s", "names", "sender", "taken")

    def __init__(
        self,
        requester: Requester,
        sender: Sender,
        taken: Taken,
        names: dict[bytes, str],
        connection: Connection,
        limit_s: float,
        under_way: "set[Posted]",
    ) -> None:
        self.sender = sender
        self.taken = taken
        self.names = names
        self.connection = connection
        self.limit_s = limit_s
        self._requester = requester
        self._is_done = False
        self._under_way = under_way
        under_way.add(self)
        self._timer = asyncio.get_running_loop().call_later(limit_s, self._time_is_up)

    def done(self) -> bool:
        return self._is_done

    def set_result(self, message: m.ProduceResponse, /) -> None:
        self._end()
        try:
            self._requester.answered(self, message)
        except Exception as error:
            # Our own mistake, or that of a callback: it is the producer's end, not the connection's.
            self._requester.end(error)

    def set_exception(self, error: ClientError, /) -> None:
        self._end()
        try:
            self._requester.lost(self.sender, self.taken, error)
        except Exception as failure:
            self._requester.end(failure)

    def rows(self, response: m.ProduceResponse) -> Iterator[tuple[PartitionQueue, QueuedBatch, Row | None]]:
        """What the answer says of each batch that was sent; None where it is silent."""
        left = dict(self.taken)
        for topic in response.responses:
            name = topic.name or self.names.get(topic.topic_id, "")
            for row in topic.partition_responses:
                found = left.pop((name, row.index), None)
                if found is not None:
                    yield *found, row
        for queue, batch in left.values():
            yield queue, batch, None

    def drop(self) -> None:
        """The producer has ended: whatever the answer is, nobody waits for it."""
        self._end()

    def _end(self) -> None:
        self._is_done = True
        self._timer.cancel()
        self._under_way.discard(self)

    def _time_is_up(self) -> None:
        # First, so that the connection's own end does not tell another reason.
        late = RequestTimedOut(f"{self.connection.peer} did not answer Produce within {self.limit_s:g} s")
        self.set_exception(late)
        self.connection.close()
