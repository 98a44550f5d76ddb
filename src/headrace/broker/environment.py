"""What all partitions of a broker share: its clock, its threads, its syncer, and what others are to be told."""

from asyncio import Future
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.config import LogConfig
from headrace.errors import KafkaError
from headrace.records.validation import Prepared
from headrace.replication.partition import Eligible, always_eligible
from headrace.storage.log import Log

if TYPE_CHECKING:
    from headrace.broker.partition import Partition
    from headrace.broker.syncer import Syncer


Findings = dict[tuple["Partition", int], tuple[LogConfig, tuple[Prepared, bytearray] | KafkaError]]
"""By partition, and where the batch begins in the bytes of its request."""


class Environment:
    """Given to each of them. The last group is for a cluster, and set by `Replicas`."""

    __slots__ = (
        "checks_records", "dir_failed", "durable_acks", "eligible", "fetchable", "lag_ms_max", "monotonic_ms", "no_room",
        "node_id", "prepared", "run_in_thread", "syncer", "validate_records", "wall_ms",
    )  # fmt: skip

    def __init__(
        self,
        node_id: int,
        wall_ms: Callable[[], int],
        syncer: "Syncer",
        durable_acks: bool,
        validate_records: bool,
        fetchable: Callable[["Partition"], None],
        dir_failed: Callable[[Log, OSError], None],
        run_in_thread: Callable[..., "Future[None]"],
    ) -> None:
        self.node_id = node_id
        self.wall_ms = wall_ms
        self.syncer = syncer
        self.durable_acks = durable_acks
        self.validate_records = validate_records
        self.fetchable = fetchable
        self.dir_failed = dir_failed
        self.run_in_thread = run_in_thread
        self.monotonic_ms: Callable[[], int] = wall_ms
        self.eligible: Eligible = always_eligible
        self.lag_ms_max = 10_000
        self.no_room: Callable[[Partition], None] = lambda partition: None
        self.checks_records = False
        """Some topic is not `plain`, or was."""
        self.prepared: Findings = {}
        """What a thread found of the batches of the one request that is being handled now. Empty between two requests."""
