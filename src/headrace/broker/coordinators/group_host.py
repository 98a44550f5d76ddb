"""One shard of groups at work: what only groups do, commits that repeat themselves, and offsets within transactions."""

from collections.abc import Callable, Sequence
from typing import Any

from headrace.broker.coordinators.host import Asker, Batch, Requester, ShardHost, State
from headrace.broker.replicas.transactional import append_in_transaction, append_marker
from headrace.coordinator.offsets import RepeatedCommit
from headrace.coordinator.outcome import Context, Outcome
from headrace.coordinator.records import batch_bytes
from headrace.coordinator.shard import GroupShard
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.records.builder import BatchBuilder
from headrace.records.control import Marker
from headrace.replication.verification import Verification

Decision = Callable[[GroupShard, Any, Context, int], Outcome]


class GroupHost(ShardHost[GroupShard]):
    """One partition of `__consumer_offsets` that this broker leads."""

    def run(self, decision: Decision, message: Any, requester: Requester) -> Any:
        """Decide on a request: its response, or None, and the requester is answered later."""
        try:
            outcome = decision(self.shard, message, requester, self._wall_ms())
        except Exception:
            self._broken(getattr(decision, "__name__", "a request"))
            return requester.refusal(Err.UNKNOWN_SERVER_ERROR)
        return self._settle(outcome, requester)

    def commit_again(self, commit: RepeatedCommit, places: Sequence[Any], asker: Asker) -> Any:
        """Like `run`, for a commit that its member has made before."""
        try:
            outcome = self.shard.offset_commit_again(commit, places, self._wall_ms())
        except Exception:
            self._broken("a commit")
            return asker.refusal(Err.UNKNOWN_SERVER_ERROR)
        return self._settle(outcome, asker)

    # ---- transactions

    def commit_in_transaction(
        self, message: m.TxnOffsetCommitRequest, requester: Requester, guard: Verification | None
    ) -> Any:
        """TxnOffsetCommit, in a batch of its producer: it counts when the transaction is committed. The response, or
        None, and the requester is answered later."""
        try:
            outcome = self.shard.txn_offset_commit(message, requester, self._wall_ms())
        except Exception:
            self._broken("a commit within a transaction")
            return requester.refusal(Err.UNKNOWN_SERVER_ERROR)
        records = outcome.records
        if not records:
            return self._settle(outcome, requester)
        if batch_bytes(records) > self.partition.log.config.max_message_bytes:
            return requester.refusal(Err.MESSAGE_TOO_LARGE)
        who = message.producer_id, message.producer_epoch
        builder = BatchBuilder(
            compression=self.coordinator.compression, producer_id=who[0], producer_epoch=who[1], transactional=True
        )
        now_ms = self._wall_ms()
        for record in records:
            builder.append(now_ms, record.key, record.value)
        try:
            offset = self._next_offset()
            end_offset = append_in_transaction(
                self.partition, bytearray(builder.build()), len(records), now_ms, *who, guard
            )
        except KafkaError as error:
            return requester.refusal(error.error)
        for at, record in enumerate(records):
            self.shard.apply(offset + at, *who, record)
        self._appended(Batch(self, builder, now_ms), end_offset)
        return self.when_committed(outcome.response, requester)

    def write_marker(self, producer_id: int, epoch: int, marker: Marker, transaction_version: int) -> int:
        """The end of a transaction: what was committed within it counts, or is forgotten. Returns its end offset;
        raises KafkaError."""
        offset = self._next_offset()
        end_offset = append_marker(self.partition, producer_id, epoch, marker, transaction_version)
        self.shard.replay_marker(offset, producer_id, epoch, marker.committed)
        self._appended(Batch(self, BatchBuilder(), self._wall_ms()), end_offset)
        return end_offset

    def _next_offset(self) -> int:
        """Where something comes that is not written with the rest of this turn; all of that is written before it."""
        self._flush()
        if self.state is not State.ACTIVE:
            raise KafkaError(Err.NOT_LEADER_OR_FOLLOWER)
        if self.partition.log.end_offset != self._written_end:
            self._reload(Err.COORDINATOR_NOT_AVAILABLE)
            raise KafkaError(Err.NOT_LEADER_OR_FOLLOWER, "something else was written to the partition")
        return self._written_end

    def _appended(self, batch: Batch, end_offset: int) -> None:
        self._written_end = end_offset
        self._in_flight_until(batch, end_offset)
