"""Tells brokers how far each query is, as soon as Spark reports a batch, so that lag tools see the last batch too.

A run hears of batches by asking, since that works over Spark Connect as well; listeners do not.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.spark.offsets import from_json
from headrace.spark.pipelines.graph import needed_for
from headrace.spark.pipelines.spec import Pipeline, Sink
from headrace.spark.pipelines.topics import source_options
from headrace.spark.plan import Plan, read_plan
from headrace.spark.progress import Publisher, reads


class Committer:
    """One per run. `reported` never blocks."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._publisher = Publisher()
        self._plans: dict[str, list[Plan]] = {}

    def reported(self, sink: Sink, sources: Sequence[Mapping[str, Any]]) -> None:
        """A batch of this sink's query is done, up to the end offsets of its sources."""
        for report in sources:
            end = report.get("endOffset")
            if not isinstance(end, Mapping) or not all(isinstance(one, Mapping) for one in end.values()):
                continue
            offsets = from_json(end)
            for plan in self._plans_of(sink):
                if reads(plan, offsets):
                    self._publisher.publish(plan, offsets)

    def close(self) -> None:
        self._publisher.close()

    def _plans_of(self, sink: Sink) -> list[Plan]:
        if sink.name not in self._plans:
            sources = [self._pipeline.sources.get(name) for name in sorted(needed_for(self._pipeline, sink.input))]
            self._plans[sink.name] = [
                read_plan(source_options(self._pipeline, source, sink), streaming=True)
                for source in sources
                if source is not None and source.is_topic
            ]
        return self._plans[sink.name]
