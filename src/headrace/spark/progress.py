"""What a stream tells the brokers: how far it is, in a consumer group, for lag tools.

It is news for people. Spark's checkpoint alone decides where a query goes on; a broker that takes no commit stops no query,
and what was not told is told with the next batch. Only what Spark has committed is told, never what it is at.
"""

import logging
import queue
import re
import threading

from headrace.client.errors import ClientError
from headrace.spark.lookup import Lookup
from headrace.spark.offsets import Offsets
from headrace.spark.plan import Plan

log = logging.getLogger(__name__)

GROUP_NAME_MAX = 200
END_LIMIT_S = 5.0


def group_of(plan: Plan) -> str:
    """The group that a query's progress goes to: the user's, or one named after what is read."""
    given = plan.values.get("kafka.group.id")
    return str(given) if given is not None else f"{plan.values['groupIdPrefix']}-{_subject(plan)}"[:GROUP_NAME_MAX]


def _subject(plan: Plan) -> str:
    if plan.pattern is not None:
        return plan.pattern
    return ",".join(plan.topics or (f"{topic}-{index}" for topic, index in plan.assigned))


def reads(plan: Plan, end: Offsets) -> bool:
    """Whether offsets may be those of this read."""
    topics = {topic for topic, _ in end}
    if plan.pattern is not None:
        return all(re.fullmatch(plan.pattern, topic) for topic in topics)
    return topics <= set(plan.topics or (topic for topic, _ in plan.assigned))


class Progress:
    """One stream's commits."""

    def __init__(self, plan: Plan, lookup: Lookup) -> None:
        self._lookup = lookup
        self.group = group_of(plan)
        self._on = bool(plan.values["commitProgress"])
        self._committed: Offsets | None = None

    def done(self, end: Offsets) -> None:
        """Everything before `end` is processed for good."""
        if not self._on or end == self._committed:
            return
        try:
            self._lookup.commit(self.group, end)
        except ClientError as error:
            log.warning("progress was not committed to group %r: %s", self.group, error)
        self._committed = end


class Publisher:
    """The same for whoever must not wait for brokers: a thread of its own commits what it is told."""

    def __init__(self) -> None:
        self._queue: queue.Queue[tuple[Plan, Offsets] | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def publish(self, plan: Plan, end: Offsets) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="headrace-progress", daemon=True)
            self._thread.start()
        self._queue.put((plan, end))

    def close(self) -> None:
        """Waits, but not for long, until the last news is out."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(END_LIMIT_S)
            self._thread = None

    def _work(self) -> None:
        known: dict[tuple[str, str], tuple[Lookup, Progress]] = {}
        while (news := self._queue.get()) is not None:
            plan, end = news
            place = plan.bootstrap, group_of(plan)
            if place not in known:
                lookup = Lookup(plan)
                known[place] = lookup, Progress(plan, lookup)
            known[place][1].done(end)
        for lookup, _ in known.values():
            lookup.close()
