"""`df.write.format("headrace")` and `df.writeStream.format("headrace")`: rows to topics, at least or exactly once.

At least once, each task writes with an idempotent producer of its own, so no retry of a request doubles a record, and
records are there when their task is done. A task that Spark runs again writes its rows again: option dedupHeaders marks
each so that readers can tell. Exactly once, each task leaves a transaction open, and the commit of the batch decides on
them (`exactly_once`).
"""

import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.client.admin.admin import Admin
from headrace.client.errors import ClientError, RequestFailed, SecurityFailed
from headrace.client.net.background import LoopThread
from headrace.client.net.cluster import may_pass
from headrace.errors import Err
from headrace.spark.plain_errors import plain_errors
from headrace.spark.sink.exactly_once.commit import Committer
from headrace.spark.sink.options import SinkOptions
from headrace.spark.sink.reports import TaskWritten, named_write
from headrace.spark.sink.setup import WriteSetup, cluster_of
from headrace.spark.sink.task import write_task

log = logging.getLogger(__name__)

COMMITTING = "pyspark.sql.worker.python_streaming_sink_runner"
"""What a process that commits has loaded: schemas are not compiled and brokers not asked once more for each batch."""

LATE_TASKS_S = 3.0
"""How long a task of a failed batch may go on: Spark gives its Python worker two seconds before it is killed."""

Messages = Sequence[WriterCommitMessage | None]


class HeadraceWriter(DataSourceArrowWriter):
    """A batch write. All checks are done here, on the driver."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        self._setup = WriteSetup(schema, options, overwrite, is_stream=False)
        self._setup.check_topics()

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        return write_task(self._setup, iterator)

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._setup.options, messages)

    @plain_errors
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        options = self._setup.options
        identity = None if options.write_id is None else named_write(options.write_id)
        _abort(options, messages, identity)


class HeadraceStreamWriter(DataSourceStreamArrowWriter):
    """A stream's sink. Spark makes it anew in each process that needs it: to plan, and for each batch's commit."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        self._given = dict(options)
        if COMMITTING in sys.modules:
            return
        # `overwrite` is how Spark spells outputMode("complete") here: every batch is the whole table again.
        self._setup = WriteSetup(schema, options, False, is_stream=True)
        try:
            self._setup.check_topics()
        except ClientError as error:
            if isinstance(error, SecurityFailed):
                raise
            if isinstance(error, RequestFailed) and error.error is Err.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            # Brokers may be away for a while without a stream having to end; tasks wait for them, and say so.

    @plain_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskWritten:
        return write_task(self._setup, iterator)

    @plain_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if _reports(messages):
            _commit(SinkOptions.read(self._given), messages)

    @plain_errors
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if _reports(messages):
            _abort(SinkOptions.read(self._given), messages)


# -- on the driver, with delivery=exactly-once


def _reports(messages: Messages) -> list[TaskWritten]:
    """Those of tasks that have succeeded and wait for a decision."""
    return [one for one in messages if isinstance(one, TaskWritten) and one.exactly_once is not None]


def _commit(options: SinkOptions, messages: Messages) -> None:
    reports = _reports(messages)
    if reports:
        _run(options, reports, commit=True)


def _abort(options: SinkOptions, messages: Messages, identity: str | None = None) -> None:
    """`identity` is for where no task has succeeded, so that none says what to sweep."""
    reports = _reports(messages)
    if not reports and identity is None:
        return
    try:
        _run(options, reports, commit=False, identity=identity)
        if None in messages:
            # Others were cancelled, and may only now have opened a transaction.
            time.sleep(LATE_TASKS_S)
            _run(options, reports, commit=False, identity=identity)
    except ClientError as error:
        # The batch has failed for another reason, which is what the user should read.
        log.warning("transactions of a failed batch stay open until the next one, or time out: %s", error)


def _run(options: SinkOptions, reports: Sequence[TaskWritten], *, commit: bool, identity: str | None = None) -> None:
    task = reports[0].identity if reports else None
    decided_by = reports[0].exactly_once if reports else identity
    assert decided_by is not None
    tasks = [one.transaction for one in reports if one.transaction is not None]

    async def work() -> None:
        cluster = cluster_of(options)
        try:
            await cluster.retrying(lambda: cluster.refresh(()), can_retry=may_pass)
            committer = Committer(Admin(cluster=cluster), decided_by)
            if commit and task is not None:
                await committer.commit(task.batch_id, task.run, tasks)
            else:
                await committer.abort(tasks)
        finally:
            cluster.close()

    with LoopThread("headrace-commit") as loop:
        loop.run(work())
