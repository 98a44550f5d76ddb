"""What a task does: fetch one range of offsets and turn it into Arrow batches of exactly the columns Spark expects."""

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from headrace.client.columnar.decode import Decoder
from headrace.client.columnar.decode_native import Memory
from headrace.client.consume.buffer_pool import BufferPool
from headrace.client.consume.range_fetcher import FETCH_BYTES, BlockingFetcher, OffsetsGone
from headrace.client.errors import RequestFailed
from headrace.client.raw import Fetched
from headrace.errors import Err, KafkaError
from headrace.spark.plain_errors import UserError, hang_up_quietly, plain_errors
from headrace.spark.source.options import SourceOptions

if TYPE_CHECKING:
    from headrace.spark.formats.bad_rows import TypedValues

log = logging.getLogger(__name__)

TOPIC_GONE = frozenset({Err.UNKNOWN_TOPIC_OR_PARTITION, Err.UNKNOWN_TOPIC_ID, Err.INCONSISTENT_TOPIC_ID})
FAIL_HINT = "Set failOnDataLoss to false to go on without what is lost"
GO_ON_HINT = "Set failOnDataLoss to true to stop at this instead"

FIRST_ROWS = 128
"""Of a task's first batch, sent ahead of the rest of it. Spark's worker holds back the end of whatever it writes until
more follows, which would be rows that are yet to be fetched."""


class _ReusedBuffers(threading.local):
    """Buffers that a worker's next task reads into. To allocate them anew would take as long as the reading itself."""

    BUFFER_BYTES_MAX = 4 * FETCH_BYTES
    COLUMN_BYTES_MAX = 2 * FETCH_BYTES

    def __init__(self) -> None:
        self.buffers = BufferPool()
        self.memory = Memory()

    def trim(self) -> None:
        """Give back what only an unusual task needs."""
        self.buffers.trim(self.BUFFER_BYTES_MAX)
        self.memory.trim(self.COLUMN_BYTES_MAX)


reused = _ReusedBuffers()


class DataLost(UserError, RuntimeError):
    """Offsets that the query wants are gone."""


class CorruptRecords(UserError, RuntimeError):
    """A batch that is damaged; the message says where it lies."""


@dataclass(frozen=True)
class RangePartition(InputPartition):
    """start_offset <= offset < end_offset of one partition, for one task."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int


@plain_errors
def read_range(
    options: SourceOptions, schema: StructType, wanted: InputPartition, typed: "TypedValues | None" = None
) -> Iterator[Any]:
    """Arrow batches of one task's records. Spark plans a task without a range for a query that has nothing to read."""
    if not isinstance(wanted, RangePartition):
        return
    hang_up_quietly()
    arrow = to_arrow_schema(schema, timezone="UTC")
    decoder = Decoder(
        wanted.topic,
        wanted.partition,
        arrow.names if typed is None else typed.raw_columns(arrow.names),
        read_committed=options.read_committed,
        check_crc=options.check_crc,
        rows_expected=wanted.end_offset - wanted.start_offset,
        memory=reused.memory,
    )
    fetcher = BlockingFetcher(
        options.bootstrap,
        wanted.topic,
        wanted.partition,
        wanted.start_offset,
        wanted.end_offset,
        client=dict(options.task_client),
        fetch_bytes=options.fetch_bytes,
        read_committed=options.read_committed,
        buffers=reused.buffers,
    )
    is_finished = typed is None and decoder.schema.equals(arrow)
    is_first = True
    try:
        while (got := _next(options, wanted, fetcher)) is not None:
            try:
                for batch in decoder.decode(got.records, fetcher.answer_start, wanted.end_offset, got.aborted):
                    if not is_finished:
                        columns = batch.columns
                        if typed is not None:
                            columns = typed.apply(batch, wanted.topic, wanted.partition, arrow.names)
                        batch = pa.RecordBatch.from_arrays(columns, schema=arrow)
                    if is_first and batch.num_rows > FIRST_ROWS:
                        yield batch.slice(0, FIRST_ROWS)
                        batch = batch.slice(FIRST_ROWS)
                    is_first = False
                    yield batch
            except KafkaError as error:
                raise CorruptRecords(
                    f"{wanted.topic}-{wanted.partition}, between offsets {fetcher.answer_start} and {fetcher.position}:"
                    f" {error}. Start behind it to read the rest, or restore the partition from a replica"
                ) from error
        if typed is not None:
            typed.close()
    finally:
        fetcher.close()
        reused.trim()


def _next(options: SourceOptions, wanted: RangePartition, fetcher: BlockingFetcher) -> Fetched | None:
    """The next answer; None at the end, or at the end of what is left when losses do not matter."""
    while True:
        try:
            return fetcher.next()
        except OffsetsGone as gone:
            report_loss(options.fail_on_data_loss, str(gone))
            if not gone.offset < gone.log_start < wanted.end_offset:
                return None
            fetcher.skip_to(gone.log_start)
        except RequestFailed as error:
            if error.error not in TOPIC_GONE:
                raise
            report_loss(options.fail_on_data_loss, f"{wanted.topic}-{wanted.partition} is gone ({error})")
            return None


def report_loss(fail: bool, message: str) -> None:
    if fail:
        raise DataLost(f"{message}. {FAIL_HINT}")
    log.warning("%s. %s", message, GO_ON_HINT)
