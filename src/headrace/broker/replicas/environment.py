"""What all partitions of a broker share: its clock, its threads, its syncer, and what others are to be told."""

from asyncio import Future
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.broker.replicas.syncer import Syncer
from headrace.config import LogConfig
from headrace.errors import KafkaError
from headrace.records.validation import Prepared
from headrace.replication.partition import Eligible
from headrace.replication.verification import Verification
from headrace.storage.log import Log

if TYPE_CHECKING:
    from headrace.broker.replicas.partition import Partition


Findings = dict[tuple["Partition", int], tuple[LogConfig, tuple[Prepared, bytearray] | KafkaError]]
"""By partition, and where the batch begins in the bytes of its request."""
Guards = dict[tuple["Partition", int], Verification | KafkaError]
"""The same, of first batches of transactions: what the coordinator's answer allows to append them with, or why not."""


class Environment:
    """Given to each of them."""

    __slots__ = (
        "checks_records", "dir_failed", "durable_acks", "eligible", "fetchable", "guards", "lag_ms_max",
        "monotonic_ms", "no_space", "node_id", "prepared", "run_in_thread", "syncer", "validate_records", "wall_ms",
    )  # fmt: skip

    def __init__(
        self,
        *,
        node_id: int,
        wall_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
        syncer: Syncer,
        durable_acks: bool,
        validate_records: bool,
        eligible: Eligible,
        lag_ms_max: int,
        fetchable: Callable[["Partition"], None],
        dir_failed: Callable[[Log, OSError], None],
        no_space: Callable[["Partition"], None],
        run_in_thread: Callable[..., "Future[None]"],
    ) -> None:
        self.node_id = node_id
        self.wall_ms = wall_ms
        self.monotonic_ms = monotonic_ms
        self.syncer = syncer
        self.durable_acks = durable_acks
        self.validate_records = validate_records
        self.eligible = eligible
        """Whether a broker may stand in an ISR."""
        self.lag_ms_max = lag_ms_max
        """replica.lag.time.max.ms"""
        self.fetchable = fetchable
        """Readers of a partition can go on."""
        self.dir_failed = dir_failed
        self.no_space = no_space
        """There was no room for a record."""
        self.run_in_thread = run_in_thread
        self.checks_records = False
        """Some topic is not `plain`, or was."""
        self.prepared: Findings = {}
        """What a thread found of the batches of the one request that is being handled now. Empty between two
        requests."""
        self.guards: Guards = {}
        """What the coordinator said of its transaction; likewise."""
