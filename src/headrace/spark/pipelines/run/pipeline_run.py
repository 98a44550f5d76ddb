"""Running a pipeline: starts a query per sink, watches them, starts failed ones again, ends them in order.

The loop asks Spark a few times a second; nothing here runs per row. A run stops at its own end (bounded), when asked
(the registry, a signal), or when a query has failed for good.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.spark.launch.session import is_connect
from headrace.spark.pipelines.dataframes.build import build
from headrace.spark.pipelines.dataframes.sinks import Print, check_all, start_sink
from headrace.spark.pipelines.dataframes.spark_errors import cause_of, is_hopeless
from headrace.spark.pipelines.run.committer import Committer
from headrace.spark.pipelines.run.estimate import WorkEstimate, end_offsets, tasks_done
from headrace.spark.pipelines.run.progress import QueryProgress, eta_s, overall
from headrace.spark.pipelines.run.registry import RunEntry, now_ms
from headrace.spark.pipelines.spec.model import Pipeline, Sink
from headrace.spark.pipelines.spec.problems import Problem, SpecInvalid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

POLL_S = 0.1
WRITE_EVERY_S = 0.5
STOP_LIMIT_S = 30.0
Snapshot = dict[str, Any]


@dataclass(slots=True)
class Running:
    """One sink: its query while there is one, how often it failed, and when to start it again."""

    sink: Sink
    progress: QueryProgress
    work: WorkEstimate | None = None
    query: "StreamingQuery | None" = None
    failures: int = 0
    started_s: float = 0.0
    retry_at_s: float | None = None
    is_done: bool = False
    stop_after: int | None = None
    reported_at: str = ""
    """The time of the last report that was taken."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended: done, stopped or failed, and why it failed."""

    state: str
    error: str = ""
    snapshot: Snapshot = field(default_factory=dict)


class PipelineRun:
    """One run in one session. `on_update` is called with each snapshot; `show` prints rows of console sinks."""

    def __init__(
        self,
        pipeline: Pipeline,
        spark: "SparkSession",
        *,
        bounded: bool,
        entry: RunEntry | None = None,
        on_update: Callable[[Snapshot], None] | None = None,
        show: Print | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.spark = spark.newSession()
        self.bounded = bounded
        self.entry = entry
        self.on_update = on_update
        self.show = show
        self.connect = is_connect(pipeline.spark.master)
        self.stopping: str | None = None
        self._stop_deadline_s = 0.0
        self._started_s = time.monotonic()
        self._written_s = 0.0
        self._ends: Any = {}
        self._committer = Committer(pipeline)
        self.sinks = [Running(sink, QueryProgress(sink.name, sink.target)) for sink in pipeline.sinks.values()]

    def stop(self, how: str = "graceful") -> None:
        """May be called at any time, also from a signal handler. `graceful` lets batches that run finish."""
        if self.stopping != "now":
            self.stopping = how

    def go(self) -> Outcome:
        """Run until the end. Raises SpecInvalid if Spark refuses the pipeline before anything starts."""
        for name, value in _session_settings(self.pipeline).items():
            self.spark.conf.set(name, value)
        frames = self._frames()
        if self.bounded:
            self._ends = end_offsets(self.pipeline)
        error = ""
        try:
            for running in self.sinks:
                running.work = WorkEstimate(self.pipeline, running.sink) if self.bounded else None
                self._start(running, frames[running.sink.name])
            error = self._watch()
        except RunFailed as failure:
            error = str(failure)
        finally:
            self._end_all()
            self._committer.close()
        state = "failed" if error else "stopped" if self.stopping else "done"
        return Outcome(state, error, self._publish(state, error))

    def _frames(self) -> dict[str, Any]:
        """What each sink writes, checked. Built for each anew, since each reads topics under a group of its own."""
        frames: dict[str, Any] = {}
        problems: dict[Problem, None] = {}
        for running in self.sinks:
            try:
                frames[running.sink.name] = build(self.spark, self.pipeline, only=running.sink).counted(running.sink)
            except SpecInvalid as error:
                problems |= dict.fromkeys(error.problems)
        if problems:
            raise SpecInvalid(list(problems))
        check_all(self.pipeline, lambda sink: frames[sink.name], connect=self.connect)
        return frames

    def _watch(self) -> str:
        """Until nothing runs any more; returns the error of a query that failed for good."""
        while True:
            self._look_for_requests()
            for running in self.sinks:
                error = self._tend(running)
                if error:
                    return error
            if all(running.is_done for running in self.sinks):
                return ""
            if time.monotonic() - self._written_s >= WRITE_EVERY_S:
                self._publish("stopping" if self.stopping else "running")
            time.sleep(POLL_S / 5 if self.stopping else POLL_S)

    def _look_for_requests(self) -> None:
        asked = self.entry.stop_requested() if self.entry is not None else None
        if asked is not None and asked != self.stopping:
            self.stop(asked)
        if self.stopping and not self._stop_deadline_s:
            self._stop_deadline_s = time.monotonic() + STOP_LIMIT_S

    def _tend(self, running: Running) -> str:
        if running.is_done:
            return ""
        query = running.query
        if query is None:
            if self.stopping:
                running.is_done = True
            elif running.retry_at_s is not None and time.monotonic() >= running.retry_at_s:
                return self._retry(running)
            return ""
        self._take_reports(running, query)
        if query.isActive:
            if self.stopping:
                self._stop_between_batches(running, query)
            return ""
        failure = query.exception()
        self._take_reports(running, query)
        running.query = None
        if failure is None or self.stopping:
            running.is_done = True
            running.progress.state = "stopped" if self.stopping else "done"
            running.progress.fraction = 1.0 if self.bounded and not self.stopping else running.progress.fraction
            return ""
        return self._failed(running, str(failure))

    def _take_reports(self, running: Running, query: "StreamingQuery") -> None:
        reports = self._new_reports(running, query)
        for report in reports:
            if running.progress.take(report):
                running.progress.error = ""
                self._committer.reported(running.sink, running.progress.sources)
        if running.progress.state in ("starting", "retrying") and (reports or running.progress.batches):
            running.progress.state = "running"
        calm_s = self.pipeline.retries.reset_after_ms / 1000
        if running.failures and time.monotonic() - running.started_s > calm_s:
            running.failures = running.progress.attempts = 0

    def _new_reports(self, running: Running, query: "StreamingQuery") -> list[Any]:
        """The last one, or all that Spark still has where some were missed: asking for all each time costs much."""
        last = query.lastProgress
        if last is None or last["timestamp"] == running.reported_at:
            return []
        running.reported_at = last["timestamp"]
        is_next = last["batchId"] <= running.progress.batch + 1 and running.progress.batch >= 0
        return [last] if is_next else list(query.recentProgress)

    # -- starting and failing

    def _start(self, running: Running, frame: Any) -> None:
        running.retry_at_s = None
        running.started_s = time.monotonic()
        try:
            running.query = start_sink(
                self.pipeline, running.sink, frame, bounded=self.bounded, connect=self.connect, show=self.show
            )
        except Exception as error:
            message = self._failed(running, str(error))
            if message:
                raise RunFailed(message) from error

    def _retry(self, running: Running) -> str:
        running.progress.state = "retrying"
        try:
            self._start(running, build(self.spark, self.pipeline, only=running.sink).counted(running.sink))
        except RunFailed as error:
            return str(error)
        except SpecInvalid as error:
            # It was fine when the run began, so what it reads may be away, and come back.
            return self._failed(running, error.problems[0].message)
        return ""

    def _failed(self, running: Running, text: str) -> str:
        """Plan the next attempt, or say why there is none."""
        retries = self.pipeline.retries
        running.failures += 1
        running.progress.error = cause = cause_of(text)
        self._written_s = 0.0  # told in this turn: by the next one it may have been tried again, and be forgotten
        if is_hopeless(text) or running.failures > retries.attempts:
            running.progress.state = "failed"
            running.is_done = True
            tried = "" if is_hopeless(text) or not retries.attempts else f" (tried {running.failures} times)"
            return f"sink {running.sink.name}: {cause}{tried}{_hint(text, self.pipeline.checkpoint(running.sink.name))}"
        wait_ms = min(retries.backoff_ms * 2 ** (running.failures - 1), retries.backoff_max_ms)
        running.retry_at_s = time.monotonic() + wait_ms / 1000
        running.progress.state = "waiting"
        running.progress.attempts = running.failures
        running.progress.retry_at_ms = now_ms() + wait_ms
        return ""

    # -- ending

    def _stop_between_batches(self, running: Running, query: "StreamingQuery") -> None:
        """A batch that runs may finish, so that sinks which write at least once do not write it twice."""
        if running.stop_after is None:
            running.stop_after = running.progress.batch
        status = query.status
        is_between = (
            not status["isTriggerActive"]
            or not status["isDataAvailable"]
            or running.progress.batch > running.stop_after
        )
        if self.stopping == "now" or is_between or time.monotonic() > self._stop_deadline_s:
            query.stop()

    def _end_all(self) -> None:
        """Whatever still runs ends now; this run's own queries only."""
        for running in self.sinks:
            if running.query is not None:
                try:
                    running.query.stop()
                    self._take_reports(running, running.query)
                except Exception as error:  # the driver may be gone already, and the first error is the one that counts
                    running.progress.error = running.progress.error or cause_of(str(error))
                running.query = None
                if running.progress.state != "failed":
                    running.progress.state = "stopped"

    # -- telling

    def _publish(self, state: str, error: str = "") -> Snapshot:
        elapsed_s = time.monotonic() - self._started_s
        for running in self.sinks:
            if running.work is not None and running.query is not None:
                in_batch = 0.0 if self.connect else tasks_done(self.spark, running.query)
                fraction = running.work.fraction(running.progress, self._ends, in_batch)
                # An estimate that goes backwards helps nobody.
                running.progress.fraction = (
                    fraction if running.progress.fraction is None else max(fraction or 0.0, running.progress.fraction)
                )
        fraction = overall([running.progress.fraction for running in self.sinks]) if self.bounded else None
        snapshot: Snapshot = {
            "pipeline": self.pipeline.name,
            "state": state,
            "mode": "bounded" if self.bounded else "continuous",
            "elapsed_s": round(elapsed_s, 3),
            "fraction": fraction,
            "eta_s": eta_s(elapsed_s, fraction) if self.bounded else None,
            "error": error,
            "queries": [running.progress.plain() for running in self.sinks],
        }
        self._written_s = time.monotonic()
        if self.entry is not None:
            self.entry.write_progress(snapshot)
        if self.on_update is not None:
            self.on_update(snapshot)
        return snapshot


class RunFailed(RuntimeError):
    """A query failed for good."""


def _session_settings(pipeline: Pipeline) -> dict[str, str]:
    """Settings of the spec that may still be set in a session; the rest was given when the driver started."""
    return {
        name: value
        for name, value in pipeline.spark.conf.items()
        if name.startswith("spark.sql.") and ".catalog." not in name and name not in STATIC
    }


STATIC = frozenset({"spark.sql.extensions", "spark.sql.warehouse.dir", "spark.sql.catalogImplementation"})


def _hint(text: str, checkpoint: str) -> str:
    if "checkpoint" in text and ("does not match" in text or "incompatible" in text.lower() or "STATE_STORE" in text):
        return (
            f". The checkpoint {checkpoint} was made by another form of this pipeline: undo the change, or remove that"
            " folder to start over"
        )
    return ""


@contextmanager
def failures_told(entry: RunEntry) -> Iterator[None]:
    """A run that ends by an exception must not look as if it were running."""
    try:
        yield
    except BaseException as error:
        text = str(error) or type(error).__name__
        entry.write_progress({"state": "failed", "error": text[:2000], "queries": []})
        raise
