"""Tells brokers how far each query is, as soon as Spark reports a batch, so that lag tools see the last batch too.

It is news for people: a thread of its own does it, and whatever fails is left to the next batch.
"""

import logging
import queue
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.client.errors import ClientError
from headrace.spark.lookup import Lookup
from headrace.spark.offsets import from_json
from headrace.spark.options import OptionError
from headrace.spark.pipelines.graph import needed_for
from headrace.spark.pipelines.spec import Pipeline, Sink
from headrace.spark.pipelines.topics import source_options
from headrace.spark.plan import Plan, read_plan
from headrace.spark.progress import Progress

log = logging.getLogger(__name__)
END_LIMIT_S = 5.0


class Committer:
    """One per run. `reported` never blocks."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._queue: queue.Queue[tuple[Sink, Sequence[Mapping[str, Any]]] | None] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._open: dict[str, list[tuple[Plan, Lookup, Progress]]] = {}

    def reported(self, sink: Sink, sources: Sequence[Mapping[str, Any]]) -> None:
        """A batch of this sink's query is done, up to the end offsets of its sources."""
        if not any(source.is_topic for source in self._pipeline.sources.values()):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="headrace-committer", daemon=True)
            self._thread.start()
        self._queue.put((sink, sources))

    def close(self) -> None:
        """Waits, but not for long, until the last news is out."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(END_LIMIT_S)

    def _work(self) -> None:
        while (news := self._queue.get()) is not None:
            try:
                self._tell(*news)
            except (ClientError, OptionError) as error:
                log.warning("progress of %s was not committed: %s", news[0].name, error)
        for parts in self._open.values():
            for _, lookup, _ in parts:
                lookup.close()

    def _tell(self, sink: Sink, sources: Sequence[Mapping[str, Any]]) -> None:
        for report in sources:
            end = report.get("endOffset")
            if not isinstance(end, Mapping) or not all(isinstance(one, Mapping) for one in end.values()):
                continue
            for plan, _, progress in self._parts(sink):
                if plan.topics is None or set(end) <= set(plan.topics):
                    progress.done(from_json(end))

    def _parts(self, sink: Sink) -> list[tuple[Plan, Lookup, Progress]]:
        if sink.name not in self._open:
            self._open[sink.name] = parts = []
            for name in sorted(needed_for(self._pipeline, sink.input)):
                source = self._pipeline.sources.get(name)
                if source is not None and source.is_topic:
                    plan = read_plan(source_options(self._pipeline, source, sink), streaming=True)
                    lookup = Lookup(plan)
                    parts.append((plan, lookup, Progress(plan, lookup)))
        return self._open[sink.name]
