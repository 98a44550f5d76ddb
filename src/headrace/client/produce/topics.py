"""The partitions of topics that a producer sends to, and their leaders, asked for in few requests.

Topics that are wanted at the same time are asked for together, as Kafka's clients do. One who wants one after the other
would wait for an answer each time: after a few in a row, all topics of the cluster are asked for once.
"""

import asyncio
from collections import deque
from collections.abc import Iterable

from headrace.client.errors import ClientError, RequestFailed
from headrace.client.net.cluster import NO_TOPIC, UNKNOWN_TOPIC_WAIT_S, Cluster, Topic, may_pass, topic_from
from headrace.errors import Err, KafkaError
from headrace.metadata.names import check_topic_name
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

NAMES_AT_ONCE = 1_000
"""Topics in one request: many enough to save round trips, few enough that a broker is soon free for others."""
IN_A_ROW = 16
"""So many looks, each within `ROW_S` of the one before: whoever wants so many topics wants more of them."""
ROW_S = 1.0
CLOSED = "the producer is closed"
LISTED_S = 60.0
"""How long what was learnt of all topics is used, and at least the time between two such looks. What is older than the
truth is told so by the first broker it sends to, as with any metadata."""


class Question:
    """Names that go into one request, and who waits for its answer."""

    __slots__ = ("answered", "creates", "names")

    def __init__(self, creates: bool) -> None:
        self.creates = creates
        """Whether topics that are missing are to be made."""
        self.names: dict[str, None] = {}
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answered.add_done_callback(_look_at)


class TopicFinder:
    """`await finder.find(topic)` leaves the topic in `cluster.topics`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._queue: deque[Question] = deque()
        self._open: dict[bool, Question] = {}
        """The last in the queue of each kind: they take more names."""
        self._asking: asyncio.Task[None] | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._in_a_row = 0
        self._last_s = 0.0
        self._listed: dict[str, m.MetadataResponse.MetadataResponseTopic] = {}
        self._forgetting: asyncio.TimerHandle | None = None
        """Runs while all topics were listed a moment ago."""

    def close(self) -> None:
        for task in (self._asking, self._refreshing):
            if task is not None:
                task.cancel()
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._forget()

    async def find(self, topic: str) -> Topic:
        """A topic as it is now. One that is missing is made if the broker makes topics by itself."""
        listed = self._listed.pop(topic, None)
        if listed is not None:
            found = self._cluster.topics[topic] = topic_from(listed)
            return found
        return await self._cluster.retrying(
            lambda: self._find(topic), can_retry=may_pass, unknown_topic_wait_s=UNKNOWN_TOPIC_WAIT_S
        )

    async def refresh(self, topics: Iterable[str]) -> None:
        """Look again at who leads what, once for all who wait to know."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._cluster.refresh({*topics}), name="leaders of a producer")
        await asyncio.shield(self._refreshing)

    async def _find(self, topic: str) -> Topic:
        try:
            check_topic_name(topic)
        except KafkaError as error:
            raise RequestFailed(f"topic {topic!r}", error.error, error.message) from None
        await self._ask(topic)
        if topic not in self._cluster.topics:
            await self._ask(topic, creates=True)
            await self._ask(topic)
        found = self._cluster.topics.get(topic)
        if found is None:
            raise RequestFailed(f"topic {topic!r}", Err.UNKNOWN_TOPIC_OR_PARTITION, NO_TOPIC)
        return found

    async def _ask(self, topic: str, *, creates: bool = False) -> None:
        """Have a topic in the next request, which leaves when the one before it is answered."""
        question = self._open.get(creates)
        if question is None or len(question.names) >= NAMES_AT_ONCE:
            question = self._open[creates] = Question(creates)
            self._queue.append(question)
        question.names[topic] = None
        if self._asking is None:
            self._asking = asyncio.create_task(self._work(), name="topics of a producer")
        # One who gives up must not take the answer from the others.
        await asyncio.shield(question.answered)

    async def _work(self) -> None:
        try:
            while self._queue:
                await asyncio.sleep(0)  # for those who come in the same turn
                question = self._queue.popleft()
                if self._open.get(question.creates) is question:
                    del self._open[question.creates]
                try:
                    await self._look(question.names, question.creates)
                    question.answered.set_result(None)
                except Exception as error:
                    question.answered.set_exception(error)
                except BaseException:
                    question.answered.set_exception(ClientError(CLOSED))
                    raise
        finally:
            self._asking = None
            for question in self._queue:
                question.answered.set_exception(ClientError(CLOSED))
            self._queue.clear()
            self._open.clear()

    async def _look(self, names: Iterable[str], creates: bool) -> None:
        if creates:
            rows = [m.MetadataRequest.MetadataRequestTopic(name=name) for name in names]
            await self._cluster.to_any(ApiKey.METADATA, m.MetadataRequest(topics=rows, allow_auto_topic_creation=True))
            return
        await self._cluster.refresh(names)
        now = asyncio.get_running_loop().time()
        self._in_a_row = self._in_a_row + 1 if now - self._last_s < ROW_S else 1
        self._last_s = now
        if self._in_a_row >= IN_A_ROW and self._forgetting is None:
            await self._list()

    async def _list(self) -> None:
        answer = await self._cluster.metadata(None)
        known = self._cluster.topics
        self._listed = {
            row.name: row for row in answer.topics if row.error_code == 0 and row.name and row.name not in known
        }
        self._forgetting = asyncio.get_running_loop().call_later(LISTED_S, self._forget)

    def _forget(self) -> None:
        self._listed, self._forgetting = {}, None


def _look_at(answered: "asyncio.Future[None]") -> None:
    """Whoever asked may have given up: then nobody else looks at what went wrong, and asyncio would complain."""
    if not answered.cancelled():
        answered.exception()
