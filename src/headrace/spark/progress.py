"""What a stream tells the brokers: where it started, until its first batch is safe, and how far it is, for lag tools.

Spark's checkpoint alone decides where a query goes on. But a checkpoint does not hold where a query *started*: Spark
asks the source again when it repeats a first batch that a crash cut short, and "latest" is somewhere else by then. So
the start is committed to a group of its own before Spark hears of it, and forgotten when the first batch is done.
"""

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming import StreamingQueryListener

from headrace.client.errors import ClientError, RequestFailed
from headrace.errors import Err
from headrace.spark.lookup import Lookup
from headrace.spark.offsets import Offsets, from_json
from headrace.spark.options import OptionError
from headrace.spark.plan import Plan, read_plan

log = logging.getLogger(__name__)

GROUP_NAME_MAX = 200


def group_of(plan: Plan) -> str:
    """The group that a query's progress goes to: the user's, or one named after what is read."""
    given = plan.values.get("kafka.group.id")
    return str(given) if given is not None else f"{plan.values['groupIdPrefix']}-{_subject(plan)}"[:GROUP_NAME_MAX]


def start_group_of(plan: Plan) -> str:
    """The group that keeps a start. Several sources may share a group of progress, but not this one: another topic, or
    another start in the same one, is another query."""
    kind, by_partition, *rest = plan.start
    digest = hashlib.sha256(repr((_subject(plan), kind, sorted(by_partition.items()), *rest)).encode()).hexdigest()[:8]
    return f"{group_of(plan)}.start-{digest}"


def _subject(plan: Plan) -> str:
    if plan.pattern is not None:
        return plan.pattern
    return ",".join(plan.topics or (f"{topic}-{index}" for topic, index in plan.assigned))


class Progress:
    """One stream's commits. They are news, not truth: a broker that takes none stops no query, except at the start."""

    def __init__(self, plan: Plan, lookup: Lookup) -> None:
        self._lookup = lookup
        self.group = group_of(plan)
        self._start_group = start_group_of(plan)
        self._on = bool(plan.values["commitProgress"])
        self._committed: Offsets | None = None
        # Unless shown otherwise: the process that pinned it may have died right behind the first batch.
        self._may_be_pinned = True

    def pinned_start(self) -> Offsets | None:
        """Where a query started whose first batch was never finished."""
        if not self._on:
            return None
        try:
            found = self._lookup.committed(self._start_group)
        except ClientError as error:
            raise OptionError(_start_failed(self._start_group, error)) from error
        return {one: committed.offset for one, committed in found.items()} or None

    def pin(self, start: Offsets) -> None:
        if not self._on:
            return
        try:
            self._lookup.commit(self._start_group, start)
        except ClientError as error:
            raise OptionError(_start_failed(self._start_group, error)) from error
        self._may_be_pinned = True

    def done(self, end: Offsets) -> None:
        """Everything before `end` is processed for good."""
        if not self._on:
            return
        if end != self._committed:
            try:
                self._lookup.commit(self.group, end)
            except ClientError as error:
                log.warning("progress was not committed to group %r: %s", self.group, error)
            self._committed = end
        if self._may_be_pinned:
            self._unpin()

    def _unpin(self) -> None:
        try:
            self._lookup.delete_group(self._start_group)
        except ClientError as error:
            if not (isinstance(error, RequestFailed) and error.error is Err.GROUP_ID_NOT_FOUND):
                log.warning("group %r could not be deleted: %s", self._start_group, error)
                return
        self._may_be_pinned = False


def _start_failed(group: str, error: ClientError) -> str:
    return (
        f"where the query starts could not be kept in group {group!r}: {error}. Set kafka.group.id to a group that may "
        "be used, or commitProgress to false to do without"
    )


class ProgressListener(StreamingQueryListener):
    """Commits a query's progress as soon as each batch ends: `spark.streams.addListener(ProgressListener(options))`.

    The source does so by itself, one batch later: when Spark plans the next. With this, lag tools see the last batch of
    a stopped query too. `options` are those of the read; `name` is the query's, where several run.
    """

    def __init__(self, options: Mapping[str, str], name: str | None = None) -> None:
        self._plan = read_plan(options, streaming=True)
        self._name = name

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        if self._name is not None and event.progress.name != self._name:
            return
        for source in event.progress.sources:
            end = _offsets(source.endOffset)
            if end and self._is_read({topic for topic, _ in end}):
                with Lookup(self._plan) as lookup:
                    Progress(self._plan, lookup).done(end)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        pass

    def _is_read(self, topics: set[str]) -> bool:
        plan = self._plan
        if plan.pattern is not None:
            return all(re.fullmatch(plan.pattern, topic) for topic in topics)
        return topics <= set(plan.topics or (topic for topic, _ in plan.assigned))


def _offsets(text: str | None) -> Offsets:
    """The offsets in a progress event; nothing where another kind of source wrote them."""
    try:
        return from_json(json.loads(text or "{}"))
    except (ValueError, TypeError, AttributeError):
        return {}
