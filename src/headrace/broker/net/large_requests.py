"""Requests that name thousands of things: handled in portions, so that other requests get their turn in between.

They are decoded, divided and encoded in a thread, since that is pure. Handlers run on the loop: they get one portion
after the other, as if each were a request of its own, and the answers are joined. What cannot be divided and names more
than any client does is refused. Nothing here is used by a request of usual size.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from inspect import isawaitable
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from headrace.broker.net.pauses import Pauses
from headrace.broker.net.request import Request
from headrace.broker.runtime import Runtime
from headrace.protocol.api import ApiKey
from headrace.protocol.primitives import ProtocolError

LARGE_BYTES = 8 * 1024
"""From here on a request is handled in portions; a few milliseconds' worth of the smallest elements."""
LONG_BYTES = 64 * 1024
"""From here on one that cannot be divided is at least decoded in a thread."""
LENT_AFTER_S = 0.02
"""A portion that waits longer for others does so without keeping requests from their turn."""
AT_ONCE = 2
"""So many large requests are in work at a time: what they are decoded to may take many times their bytes."""
ROWS_MAX = 25_000
"""What a handler may get in one piece: 1 to 2 microseconds for each."""
MORE_ROWS = {
    # Each partition may name its replicas. What is too much for one change is refused with an answer.
    ApiKey.CREATE_TOPICS: 100_000,
    ApiKey.CREATE_PARTITIONS: 100_000,
    ApiKey.LIST_OFFSETS: 100_000,  # its handler pauses by itself
    # Of one member for all partitions that it is given, or of tools for many groups.
    ApiKey.OFFSET_FETCH: 100_000,
    # Of leaders, about the transactions that have just begun: many batches may be behind one question.
    ApiKey.ADD_PARTITIONS_TO_TXN: 100_000,
    # Of brokers: as many partitions as they lead. Refused, they would be sent again for ever.
    ApiKey.WRITE_TXN_MARKERS: 1_000_000,
    ApiKey.ALTER_PARTITION: 1_000_000,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: 1_000_000,
}


class Portions(NamedTuple):
    """How the requests of one API are divided."""

    field: str
    """The request's array."""
    answer: str
    """The array in the answer, with one row for each."""
    inner: str = ""
    """Where rows have rows of their own: their array in the request."""
    inner_answer: str = ""
    size: int = 200
    from_bytes: int = LARGE_BYTES
    unique: bool = False
    """What is asked twice in the same words is answered once."""
    waits: bool = False
    """The handler does its work at once, and its answer waits for other brokers: all portions wait together."""

    def split(self, message: Any) -> Iterator[Any]:
        """Messages of at most `size` rows. A message without rows is one portion: it may ask for everything."""
        rows = getattr(message, self.field)
        if not rows:
            yield message
            return
        if self.unique:
            rows = list({_name(row): row for row in rows}.values())
        for part in self._inner_parts(rows) if self.inner else self._parts(rows):
            yield replace(message, **{self.field: part})

    def _parts(self, rows: list[Any]) -> Iterator[list[Any]]:
        for start in range(0, len(rows), self.size):
            yield rows[start : start + self.size]

    def _inner_parts(self, rows: list[Any]) -> Iterator[list[Any]]:
        part: list[Any] = []
        room = self.size
        for row in rows:
            inner = getattr(row, self.inner) or ()
            start = 0
            while True:
                piece = inner[start : start + room]
                whole = len(piece) == len(inner)
                part.append(row if whole else replace(row, **{self.inner: piece}))
                start += len(piece)
                room -= max(1, len(piece))
                if room <= 0:
                    yield part
                    part, room = [], self.size
                if start >= len(inner):
                    break
        if part:
            yield part

    def joined(self, answer: Any, more: Any) -> Any:
        """The answer so far, None at first, with the answer to the next portion."""
        if answer is None:
            return more
        self.join(answer, more)
        return answer

    def join(self, answer: Any, more: Any) -> None:
        """Add the answer to the next portion. A row that was divided becomes one again."""
        if getattr(more, "error_code", 0) and not answer.error_code:
            answer.error_code = more.error_code
            if hasattr(more, "error_message"):
                answer.error_message = more.error_message
        rows, added = getattr(answer, self.answer), getattr(more, self.answer)
        if self.inner and rows and added and _name(rows[-1]) == _name(added[0]):
            getattr(rows[-1], self.inner_answer).extend(getattr(added[0], self.inner_answer))
            added = added[1:]
        rows.extend(added)


def _name(row: Any) -> Any:
    """What tells rows of one array from each other."""
    if hasattr(row, "resource_name"):
        return row.resource_type, row.resource_name, tuple(getattr(row, "configuration_keys", None) or ())
    return getattr(row, "name", None) or getattr(row, "topic", None) or getattr(row, "topic_id", None)


PORTIONS: dict[int, Portions] = {
    ApiKey.METADATA: Portions("topics", "topics", unique=True),
    # One broker has 400 options: 3 ms, and 15 KB of answer.
    ApiKey.DESCRIBE_CONFIGS: Portions("resources", "results", size=1, from_bytes=48, unique=True),
    ApiKey.ALTER_CONFIGS: Portions("resources", "responses", size=50),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Portions("resources", "responses", size=50),
    ApiKey.FIND_COORDINATOR: Portions("coordinator_keys", "coordinators"),
    ApiKey.DESCRIBE_GROUPS: Portions("groups", "groups"),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Portions("group_ids", "groups"),
    ApiKey.DELETE_GROUPS: Portions("groups_names", "results"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Portions("topics", "topics", "partitions", "partitions", 1000),
    ApiKey.DESCRIBE_PRODUCERS: Portions("topics", "topics", "partition_indexes", "partitions", 1000),
    ApiKey.DELETE_RECORDS: Portions("topics", "topics", "partitions", "partitions", 500),
    ApiKey.OFFSET_COMMIT: Portions("topics", "topics", "partitions", "partitions", 1000),
    ApiKey.CREATE_PARTITIONS: Portions("topics", "results"),
    ApiKey.ELECT_LEADERS: Portions(
        "topic_partitions", "replica_election_results", "partitions", "partition_result", 500
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Portions("topics", "responses", "partitions", "partitions", 500),
    ApiKey.ALTER_CLIENT_QUOTAS: Portions("entries", "entries"),
    ApiKey.DESCRIBE_TRANSACTIONS: Portions("transactional_ids", "transaction_states"),
    ApiKey.WRITE_TXN_MARKERS: Portions("markers", "markers", waits=True),
    ApiKey.LEAVE_GROUP: Portions("members", "members"),
    ApiKey.OFFSET_DELETE: Portions("topics", "topics", "partitions", "partitions", 1000),
    ApiKey.TXN_OFFSET_COMMIT: Portions("topics", "topics", "partitions", "partitions", 1000),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Portions("topics", "topics", "partition_indexes", "partitions", 1000),
    # Before v4 of one transaction, in fields of their own: all or nothing.
    ApiKey.ADD_PARTITIONS_TO_TXN: Portions("transactions", "results_by_transaction", from_bytes=LONG_BYTES),
}
"""Those whose rows have nothing to do with each other. Topics are created and deleted in portions of their own."""
OFFSET_FETCH_TOPICS = Portions("topics", "topics", "partition_indexes", "partitions", 1000)
OFFSET_FETCH_GROUPS = Portions("groups", "groups", size=50)
GROUPS_SINCE = 8


def portions_of(api_key: int, version: int) -> Portions | None:
    """How to divide a request; None: not at all."""
    if api_key == ApiKey.OFFSET_FETCH:
        return OFFSET_FETCH_GROUPS if version >= GROUPS_SINCE else OFFSET_FETCH_TOPICS
    if api_key == ApiKey.FIND_COORDINATOR and version < 4:
        return None  # one key only
    return PORTIONS.get(api_key)


def large_from_bytes(api_key: int) -> int:
    """Requests of more bytes come here."""
    portions = PORTIONS.get(api_key)
    if portions is not None:
        return portions.from_bytes
    return LARGE_BYTES if api_key == ApiKey.OFFSET_FETCH else LONG_BYTES


class RequestPart(Request):
    """A request whose bytes are gone, or one portion of it. Its answer goes to whoever waits for it here."""

    __slots__ = ("_client_id", "answered")

    def __init__(self, request: Request, client_id: str | None, answered: "asyncio.Future[Any]") -> None:
        super().__init__(
            request.connection, request.api_key, request.version, request.correlation_id, request.client_id_length,
            request.pos, request.end, request.started,
        )  # fmt: skip
        self.let_go()
        self._client_id = client_id
        self.answered = answered

    @property
    def client_id(self) -> str | None:
        return self._client_id

    @property
    def is_whole(self) -> bool:
        return False

    def respond(self, message: Any) -> None:
        if not self.answered.done():
            self.answered.set_result(message)


def decoded(decode: Callable[[bytes], Any], body: bytes, portions: Portions | None, rows_max: int) -> list[Any]:
    """A request's message, in portions. Raises ProtocolError where one of them has more rows than any client's."""
    message = decode(body)
    parts = [message] if portions is None else list(portions.split(message))
    if any(_rows(part) > rows_max for part in parts):
        raise ProtocolError(f"{type(message).__name__} names more than {rows_max} things that belong together")
    return parts


def _rows(value: Any) -> int:
    """Whatever stands in its arrays, and in theirs."""
    if isinstance(value, list):
        return len(value) + (sum(map(_rows, value)) if value and isinstance(value[0], Struct) else 0)
    if isinstance(value, Struct):
        return sum(_rows(getattr(value, name)) for name in value.__struct_fields__)
    return 0


class _Turn:
    """One of the turns, for as long as there is something to do in it."""

    def __init__(self, turns: asyncio.Semaphore) -> None:
        self._turns = turns
        self._is_held = False

    async def take(self) -> None:
        await self._turns.acquire()
        self._is_held = True

    def give_back(self) -> None:
        if self._is_held:
            self._is_held = False
            self._turns.release()

    async def lent(self, result: Awaitable[Any]) -> Any:
        """The result. What waits for others for long, such as a slow follower or a controller that is being elected,
        leaves the turn to other requests meanwhile."""
        waiting = asyncio.ensure_future(result)
        try:
            await asyncio.wait((waiting,), timeout=LENT_AFTER_S)
            if not waiting.done():
                self.give_back()
                await asyncio.wait((waiting,))
                await self.take()
        finally:
            waiting.cancel()
        return waiting.result()


class LargeRequests:
    """Does the work of the router for them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def work(
        self, request: Request, decode: Callable[[bytes], Any], handler: Callable[..., Any], encode: Callable[[Any],
        bytes],
        body: bytes, client_id: str | None,
    ) -> bytes | None:  # fmt: skip
        """The answer's frame. None: nobody wants it any more. Raises what `decode` raises."""
        runtime, connection = self._runtime, request.connection
        portions = portions_of(request.api_key, request.version)

        def begin(message: Any) -> Any:
            answered: asyncio.Future[Any] = runtime.loop.create_future()
            result = handler(RequestPart(request, client_id, answered), message)
            return answered if result is None else result

        async def handle(message: Any) -> Any:
            result = begin(message)
            return await result if isawaitable(result) else result

        rows_max = MORE_ROWS.get(ApiKey(request.api_key), ROWS_MAX)
        begun: list[Any] = []
        turn = _Turn(self._turn)
        try:
            await turn.take()
            parts = await runtime.run_in_thread(decoded, decode, body, portions, rows_max)
            pauses = Pauses(runtime.perf_counter)
            answer: Any = None
            if portions is not None and len(parts) > 1:
                for part in parts:
                    if connection.closed:
                        return None
                    if portions.waits:
                        begun.append(begin(part))
                    else:
                        answer = portions.joined(answer, await turn.lent(handle(part)))
                    if pauses.due:
                        await pauses.take()
        finally:
            turn.give_back()
        # What waits for others, such as members of a group or followers that are slow, must not keep large requests
        # from their turn.
        if answer is None and not begun:
            if connection.closed:
                return None
            answer = await handle(parts.pop())
        for result in begun:
            assert portions is not None
            answer = portions.joined(answer, await result if isawaitable(result) else result)
        return None if connection.closed else await runtime.run_in_thread(encode, answer)
