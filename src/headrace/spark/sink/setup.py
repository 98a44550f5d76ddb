"""What driver and tasks of one write share: checked options and the meaning of columns."""

import uuid
from collections.abc import Mapping

from pyspark.sql.types import StructType

from headrace.client.admin.admin import Admin
from headrace.client.errors import ClientError, RequestFailed
from headrace.client.net.background import LoopThread
from headrace.client.net.cluster import Cluster
from headrace.client.produce.producer import ProducerCore
from headrace.client.produce.transactions import ProducerTransactions
from headrace.errors import Err
from headrace.spark.options import OptionError
from headrace.spark.sink.exactly_once.decision_log import ensure_topic
from headrace.spark.sink.options import OVERWRITE, SinkOptions
from headrace.spark.sink.rows import Layout, layout_of


class WriteSetup:
    """Made and checked on the driver. Picklable."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool, *, is_stream: bool) -> None:
        if overwrite:
            raise OptionError(OVERWRITE)
        self.options = SinkOptions.read(options)
        self.is_stream = is_stream
        self.layout = layout_of(
            schema,
            topic=self.options.topic,
            timestamp_column=self.options.timestamp_column,
            typed=self.options.value_format is not None,
        )
        self.encoder = None
        if self.options.value_format is not None:
            from headrace.spark.formats import encoder_for

            self.encoder = encoder_for(self.options.values, _value_type(schema, self.layout))
        self.run_id = str(uuid.uuid4())

    def cluster(self) -> Cluster:
        return cluster_of(self.options)

    def producer(self, cluster: Cluster, transactions: ProducerTransactions | None) -> ProducerCore:
        options = self.options
        return ProducerCore(
            cluster,
            in_flight_max=options.in_flight_max,
            request_bytes_max=options.request_bytes,
            buffer_bytes_max=options.buffer_bytes,
            delivery_timeout_s=options.delivery_timeout_ms / 1000,
            produce_timeout_ms=options.request_timeout_ms,
            transactions=transactions,
        )

    def check_topics(self) -> None:
        """Ask, before any task runs, whether the topics are there (or are made by the broker when asked for)."""
        names = [name for name in (self.options.topic, self.options.dead_letter_topic) if name is not None]

        async def ask() -> None:
            options = self.options
            async with Cluster(options.bootstrap, client_id=options.client_id, security=options.security) as cluster:
                producer = ProducerCore(cluster)
                for name in names:
                    await producer.partition_count(name)
                if options.exactly_once:
                    await ensure_topic(Admin(cluster=cluster))

        with LoopThread() as loop:
            try:
                loop.run(ask())
            except RequestFailed as error:
                raise missing_topic(error) from None


def cluster_of(options: SinkOptions) -> Cluster:
    """Connections as patient as the options say."""
    return Cluster(
        options.bootstrap,
        client_id=options.client_id,
        security=options.security,
        request_timeout_s=options.request_timeout_ms / 1000,
        retry_timeout_s=options.delivery_timeout_ms / 1000,
    )


def _value_type(schema: StructType, layout: Layout) -> StructType:
    """The struct that a typed value is made of."""
    if layout.value is not None:
        found: StructType = schema[layout.value].dataType
        return found
    return StructType([schema[index] for index in layout.fields])


def missing_topic(error: RequestFailed) -> ClientError:
    if error.error is not Err.UNKNOWN_TOPIC_OR_PARTITION:
        return error
    return RequestFailed(
        error.what,
        error.error,
        "it does not exist, and the broker makes none by itself: create it (headrace topic create)",
    )
