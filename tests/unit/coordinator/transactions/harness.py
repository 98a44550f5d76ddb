"""Drives a `TransactionShard` as a runtime does: applies what it decides, commits when told, fires due timers."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from headrace.coordinator.outcome import Cancel, Outcome, Promise
from headrace.coordinator.transactions.shard import Markers, TransactionConfig, TransactionShard
from headrace.coordinator.transactions.transaction import TopicPartition, Transaction

ID = "payments-1"


class Driver:
    """One shard with its log, its timers and its clock."""

    def __init__(self, transaction_version: int = 2, **config: Any) -> None:
        self.now_ms = 1_000_000
        self.log: list[tuple[bytes, bytes | None]] = []
        self.timers: dict[Hashable, int] = {}
        self.answers: dict[Promise, Any] = {}
        self.committed_end = 0
        self.next_id = 100
        self.has_ids = True
        self.config = TransactionConfig(**config)
        self.version = transaction_version
        self.shard = self.new_shard()

    def new_shard(self) -> TransactionShard:
        shard = TransactionShard(self.config, self.new_producer_id)
        shard.transaction_version = self.version
        return shard

    def new_producer_id(self) -> int:
        from headrace.errors import Err, KafkaError

        if not self.has_ids:
            raise KafkaError(Err.COORDINATOR_NOT_AVAILABLE)
        self.next_id += 1
        return self.next_id

    def settle(self, outcome: Outcome) -> Any:
        for record in outcome.records:
            self.shard.apply(len(self.log), -1, -1, record)
            self.log.append((record.key, record.value))
        for timer in outcome.timers:
            if isinstance(timer, Cancel):
                self.timers.pop(timer.key, None)
            else:
                self.timers[timer.key] = self.now_ms + timer.delay_ms
        for promise in outcome.completed:
            self.answers[promise] = promise.response
        return outcome.response

    def commit(self) -> list[Markers]:
        """The high watermark reaches the end of the log."""
        self.committed_end = len(self.log)
        self.shard.advance(self.committed_end)
        return self.shard.markers_due()

    def run_timers(self) -> None:
        """Everything that is due, until nothing is."""
        while due := [key for key, at_ms in self.timers.items() if at_ms <= self.now_ms]:
            del self.timers[due[0]]
            self.settle(self.shard.timeout(due[0], self.now_ms))

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.run_timers()

    def write_markers(self) -> list[Markers]:
        """Everything that was decided is committed, told to its partitions, and so ended."""
        told = []
        while markers := self.commit():
            for one in markers:
                told.append(one)
                self.settle(
                    self.shard.marker_written(
                        one.transactional_id, one.producer_id, one.producer_epoch, one.partitions, self.now_ms
                    )
                )
        self.run_timers()
        self.commit()
        return told

    def restart(self) -> None:
        """Another broker takes over: all it knows is the log."""
        self.shard = self.new_shard()
        self.timers.clear()
        self.shard.advance(len(self.log))
        for offset, (key, value) in enumerate(self.log):
            self.shard.replay(offset, -1, -1, key, value)
        self.shard.advance(len(self.log))
        self.settle(self.shard.loaded(self.now_ms))

    # ---- requests

    def init(self, id: str = ID, expected: tuple[int, int] | None = None, timeout_ms: int = 60_000, **more: Any) -> Any:
        return self.settle(self.shard.init_producer_id(id, timeout_ms, expected, self.now_ms, **more))

    def add(self, producer: Any, *partitions: TopicPartition, id: str = ID, version: int | None = None) -> Any:
        return self.settle(
            self.shard.add_partitions(
                id,
                producer.producer_id,
                producer.producer_epoch,
                partitions or [("orders", 0)],
                self.version if version is None else version,
                self.now_ms,
            )
        )

    def end(self, producer: Any, committed: bool, id: str = ID, version: int | None = None) -> Any:
        return self.settle(
            self.shard.end(
                id,
                producer.producer_id,
                producer.producer_epoch,
                committed,
                self.version if version is None else version,
                self.now_ms,
            )
        )

    def transaction(self, id: str = ID) -> Transaction:
        found = self.shard.transactions.get(id)
        assert found is not None
        return found

    def states(self) -> dict[str, Transaction]:
        return dict(self.shard.transactions.live)


def answered(driver: Driver, promises: Iterable[Promise]) -> list[Any]:
    return [driver.answers[promise] for promise in promises]


Step = Callable[[Driver], Any]
