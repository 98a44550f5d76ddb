"""Tells brokers how far each query is, as soon as Spark reports a batch, so that lag tools see the last batch too.

A run hears of batches by asking, since that works over Spark Connect as well; listeners do not.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.spark.pipelines.spec.graph import needed_for
from headrace.spark.pipelines.spec.model import Pipeline, Sink
from headrace.spark.pipelines.spec.topic_options import source_options
from headrace.spark.source.offsets import from_json
from headrace.spark.source.options import SourceOptions
from headrace.spark.source.progress import BackgroundCommitter, reads


class Committer:
    """One per run. `reported` never blocks."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._committer = BackgroundCommitter()
        self._options: dict[str, list[SourceOptions]] = {}

    def reported(self, sink: Sink, sources: Sequence[Mapping[str, Any]]) -> None:
        """A batch of this sink's query is done, up to the end offsets of its sources."""
        for report in sources:
            end = report.get("endOffset")
            if not isinstance(end, Mapping) or not all(isinstance(one, Mapping) for one in end.values()):
                continue
            offsets = from_json(end)
            for options in self._options_of(sink):
                if reads(options, offsets):
                    self._committer.commit(options, offsets)

    def close(self) -> None:
        self._committer.close()

    def _options_of(self, sink: Sink) -> list[SourceOptions]:
        if sink.name not in self._options:
            sources = [self._pipeline.sources.get(name) for name in sorted(needed_for(self._pipeline, sink.input))]
            self._options[sink.name] = [
                SourceOptions.read(source_options(self._pipeline, source, sink), streaming=True)
                for source in sources
                if source is not None and source.is_topic
            ]
        return self._options[sink.name]
