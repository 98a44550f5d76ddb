"""What a stream tells the brokers: how far it is, in a consumer group, for lag tools.

It is news for people. Spark's checkpoint alone decides where a query goes on; a broker that takes no commit stops no
query, and what was not told is told with the next batch. Only what Spark has committed is told, never what it is at.
"""

import logging
import queue
import re
import threading

from headrace.client.errors import ClientError
from headrace.spark.source.lookup import Lookup
from headrace.spark.source.offsets import Offsets
from headrace.spark.source.options import SourceOptions

log = logging.getLogger(__name__)

GROUP_NAME_MAX = 200
END_LIMIT_S = 5.0


def group_of(options: SourceOptions) -> str:
    """The group that a query's progress goes to: the user's, or one named after what is read."""
    given = options.values.get("kafka.group.id")
    return (
        str(given) if given is not None else f"{options.values['groupIdPrefix']}-{_subject(options)}"[:GROUP_NAME_MAX]
    )


def _subject(options: SourceOptions) -> str:
    if options.pattern is not None:
        return options.pattern
    return ",".join(options.topics or (f"{topic}-{index}" for topic, index in options.assigned))


def reads(options: SourceOptions, end: Offsets) -> bool:
    """Whether these offsets can belong to a read with these options."""
    topics = {topic for topic, _ in end}
    if options.pattern is not None:
        return all(re.fullmatch(options.pattern, topic) for topic in topics)
    return topics <= set(options.topics or (topic for topic, _ in options.assigned))


class ProgressCommitter:
    """Commits one stream's progress to its group."""

    def __init__(self, options: SourceOptions, lookup: Lookup) -> None:
        self._lookup = lookup
        self.group = group_of(options)
        self._on = bool(options.values["commitProgress"])
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


class BackgroundCommitter:
    """The same without waiting for brokers: a thread of its own makes the commits."""

    def __init__(self) -> None:
        self._queue: queue.Queue[tuple[SourceOptions, Offsets] | None] = queue.Queue()
        self._thread: threading.Thread | None = None

    def commit(self, options: SourceOptions, end: Offsets) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="headrace-progress", daemon=True)
            self._thread.start()
        self._queue.put((options, end))

    def close(self) -> None:
        """Waits, but not for long, until the last news is out."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(END_LIMIT_S)
            self._thread = None

    def _work(self) -> None:
        known: dict[tuple[str, str], tuple[Lookup, ProgressCommitter]] = {}
        while (news := self._queue.get()) is not None:
            options, end = news
            place = options.bootstrap, group_of(options)
            if place not in known:
                lookup = Lookup(options)
                known[place] = lookup, ProgressCommitter(options, lookup)
            known[place][1].done(end)
        for lookup, _ in known.values():
            lookup.close()
