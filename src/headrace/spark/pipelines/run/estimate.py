"""How much a bounded run has to do, and how much of it is done, as far as it can be known from outside of Spark.

For files: how many there are and how many a checkpoint has seen. For topics: offsets between where the query starts and
the end. Within a batch: the tasks of its jobs. Whatever fails here only costs the estimate.
"""

import glob
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.spark.pipelines.run.progress import QueryProgress
from headrace.spark.pipelines.spec.graph import needed_for
from headrace.spark.pipelines.spec.model import Pipeline, Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

Offsets = Mapping[str, Mapping[str, int]]
"""Topic to partition to offset, as progress reports have them."""


class WorkEstimate:
    """One sink's share. Files are counted where they can be listed: on this machine's file systems."""

    def __init__(self, pipeline: Pipeline, sink: Sink) -> None:
        self.checkpoint = Path(pipeline.checkpoint(sink.name))
        streams = [
            pipeline.sources[name] for name in sorted(needed_for(pipeline, sink.input)) if name in pipeline.sources
        ]
        streams = [source for source in streams if not source.static]
        self.patterns = [source.files for source in streams if source.files is not None and "://" not in source.files]
        self.has_topics = any(source.is_topic for source in streams)
        self.has_others = any(source.table is not None for source in streams)
        self._seen_before = self._seen_files()
        self._total = max(self._files() - self._seen_before, 0)
        self._first: Offsets | None = None

    def fraction(self, progress: QueryProgress, ends: Offsets, in_batch: float) -> float | None:
        """0 to 1, or None where nobody can tell."""
        parts: list[float] = []
        if self.patterns and self._total:
            seen = self._seen_files()
            done = self._seen_files(progress.sources) if progress.batches else self._seen_before
            parts.append(min((done - self._seen_before + in_batch * (seen - done)) / self._total, 1.0))
        if self.has_topics:
            share = self._topics(progress, ends)
            if share is not None:
                parts.append(share)
        if self.has_others or not parts:
            return in_batch or None
        return sum(parts) / len(parts)

    def _topics(self, progress: QueryProgress, ends: Offsets) -> float | None:
        total = done = 0
        for source in progress.sources:
            start, end = source.get("startOffset"), source.get("endOffset")
            if not isinstance(end, Mapping):
                continue
            if self._first is None and isinstance(start, Mapping):
                self._first = start
            first = self._first or {}
            for topic, partitions in end.items():
                if not isinstance(partitions, Mapping):
                    continue
                for partition, offset in partitions.items():
                    begin = int(first.get(topic, {}).get(partition, 0))
                    total += max(int(ends.get(topic, {}).get(partition, offset)) - begin, 0)
                    done += max(int(offset) - begin, 0)
        return min(done / total, 1.0) if total else None

    def _files(self) -> int:
        found: set[str] = set()
        for pattern in self.patterns:
            assert pattern is not None
            for name in glob.glob(pattern):  # noqa: PTH207  (the pattern may be absolute)
                path = Path(name)
                inside = [one for one in path.iterdir() if one.is_file()] if path.is_dir() else [path]
                found.update(str(one) for one in inside if not one.name.startswith((".", "_")))
        return len(found)

    def _seen_files(self, reports: Sequence[Mapping[str, Any]] = ()) -> int:
        """Spark notes the files of each batch, one JSON line each, when it plans it; with reports, only those it is
        done with."""
        count = 0
        try:
            for folder in self.checkpoint.glob("sources/*"):
                offset = (reports[int(folder.name)].get("endOffset") or {}) if int(folder.name) < len(reports) else {}
                last = offset.get("logOffset") if isinstance(offset, Mapping) else None
                seen = [
                    json.loads(line)
                    for log in folder.glob("[0-9]*")
                    for line in log.read_text().splitlines()
                    if line.startswith("{")
                ]
                count += len({one["path"] for one in seen if last is None or one["batchId"] <= last})
        except (OSError, ValueError, KeyError):
            return 0
        return count


def tasks_done(spark: "SparkSession", query: "StreamingQuery") -> float:
    """The share of the current batch's tasks that are done; Spark puts a query's jobs into a group of its run id."""
    try:
        tracker = spark.sparkContext.statusTracker()
        total = done = 0
        for job_id in tracker.getJobIdsForGroup(str(query.runId)):
            job = tracker.getJobInfo(job_id)
            if job is None or job.status != "RUNNING":
                continue
            stages: list[Any] = [tracker.getStageInfo(stage) for stage in job.stageIds]
            total += sum(stage.numTasks for stage in stages if stage is not None)
            done += sum(stage.numCompletedTasks for stage in stages if stage is not None)
    except Exception:
        return 0.0
    return done / total if total else 0.0


def end_offsets(pipeline: Pipeline) -> Offsets:
    """The ends of all topics that are read, as of now."""
    import asyncio

    from headrace.spark.pipelines.checks.topics import topic_ends

    try:
        return asyncio.run(topic_ends(pipeline))
    except Exception:
        return {}
