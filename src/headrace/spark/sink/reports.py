"""What a task reports to the driver: which piece of which write it is, and what it has written."""

from dataclasses import dataclass
from uuid import UUID

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.taskcontext import TaskContext

from headrace.spark.plain_errors import UserError
from headrace.spark.sink.exactly_once.decisions import TaskTransaction


@dataclass(frozen=True)
class PartitionWritten:
    """What one task has put into one partition."""

    topic: str
    partition: int
    records: int
    size_bytes: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True)
class TaskIdentity:
    """Which piece of which write a task is: equal when Spark runs it again, but for the attempt and the run."""

    query_id: str
    batch_id: int
    partition_id: int
    attempt: int
    run: str

    @classmethod
    def current(cls, run_id: str) -> "TaskIdentity":
        """Within a stream, the query's; a batch write goes by the id that the driver gave it."""
        context = TaskContext.get()
        if context is None:
            return cls(run_id, 0, 0, 0, run_id)
        query_id = context.getLocalProperty("sql.streaming.queryId")
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        return cls(
            query_id or run_id,
            int(batch_id) if batch_id else 0,
            context.partitionId(),
            context.attemptNumber(),
            _run_of(context, run_id) if query_id else run_id,
        )


def _run_of(context: TaskContext, run_id: str) -> str:
    """The run of a stream, which is the job group that Spark sets for it.

    A function of foreachBatch may have set another, with a name that is the same in every run: transactional ids must
    not be.
    """
    group = context.getLocalProperty("spark.jobGroup.id") or ""
    try:
        return str(UUID(group))
    except ValueError:
        return run_id


def write_identity(task: TaskIdentity, run_id: str, write_id: str | None, *, is_stream: bool) -> str:
    """Whose decision a batch's transactions wait for: a stream's, or that of a batch write that has a name."""
    if is_stream:
        return task.query_id
    in_stream = task.query_id != run_id
    if write_id is None:
        why = (
            "foreachBatch may write more than once for a batch, and each write has to be known again"
            if in_stream
            else "nothing else tells that a batch write is the same one when the job is run again"
        )
        raise UserError(
            "delivery=exactly-once needs option 'writeId' here",
            f"{why}: set it to a name that this write alone has, the same every time",
            option="writeId",
        )
    return f"{task.query_id}:{write_id}" if in_stream else named_write(write_id)


def named_write(write_id: str) -> str:
    """Whose decision a batch write outside of any stream waits for."""
    return f"write:{write_id}"


@dataclass(frozen=True)
class TaskWritten(WriterCommitMessage):
    """A task's report to the driver."""

    identity: TaskIdentity
    producer_id: int
    producer_epoch: int
    partitions: tuple[PartitionWritten, ...]
    dead_letters: int = 0
    exactly_once: str | None = None
    """Whose decision it waits for, with delivery=exactly-once."""
    transaction: TaskTransaction | None = None
    """Left open for the driver to commit; None where nothing was written."""

    @property
    def records(self) -> int:
        return sum(one.records for one in self.partitions)
