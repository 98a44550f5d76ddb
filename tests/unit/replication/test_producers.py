"""Producer state by its rules; `test_producers_against_kafka` runs the same calls through Kafka's own class."""

import pytest
from hypothesis import given, settings, strategies as st

from headrace.errors import Err, KafkaError
from headrace.records.batch import BatchBuilder, Record, build_batch, read_header
from headrace.records.control import Marker, encode_marker
from headrace.replication.producers import AbortedTransaction, ProducerStates

P, Q = 7, 8
MAX = 0x7FFFFFFF
COMMIT, ABORT = Marker(True, 0), Marker(False, 0)


def refusal(states: ProducerStates, *args: int, **options: object) -> Err:
    with pytest.raises(KafkaError) as raised:
        states.check(*args, **options)  # type: ignore[arg-type]
    return raised.value.error


class Partition:
    """A log that only counts: checks, then records, as a partition's leader does."""

    def __init__(self) -> None:
        self.states = ProducerStates(verify_transactions=False)
        self.end_offset = 0
        self.now_ms = 1_000

    def send(self, pid: int, epoch: int, sequence: int, count: int = 1, transactional: bool = False) -> int:
        duplicate = self.states.check(pid, epoch, sequence, count - 1, transactional=transactional)
        if duplicate is not None:
            return duplicate.base_offset
        base_offset = self.end_offset
        self.states.record(pid, epoch, sequence, base_offset, count - 1, self.now_ms, transactional)
        self.end_offset += count
        return base_offset

    def end(self, pid: int, epoch: int, marker: Marker) -> AbortedTransaction | None:
        self.states.check_marker(pid, epoch, marker.coordinator_epoch)
        aborted = self.states.end_transaction(pid, epoch, marker, self.end_offset, self.now_ms)
        self.end_offset += 1
        return aborted


@pytest.fixture
def log() -> Partition:
    return Partition()


class TestSequences:
    def test_a_new_producer_may_begin_anywhere(self, log: Partition) -> None:
        assert log.send(P, 0, 41) == 0
        assert log.send(P, 0, 42) == 1
        assert refusal(log.states, P, 0, 44, 0) == Err.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_five_batches_are_recognised_and_a_sixth_is_not(self, log: Partition) -> None:
        offsets = [log.send(P, 0, 10 * n, 10) for n in range(6)]
        assert [log.send(P, 0, 10 * n, 10) for n in range(1, 6)] == offsets[1:]
        assert refusal(log.states, P, 0, 0, 9) == Err.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert log.end_offset == 60

    def test_a_duplicate_has_the_same_first_and_last_sequence(self, log: Partition) -> None:
        log.send(P, 0, 0, 10)
        assert refusal(log.states, P, 0, 0, 5) == Err.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert refusal(log.states, P, 0, 5, 4) == Err.OUT_OF_ORDER_SEQUENCE_NUMBER
        mark = log.states.check(P, 0, 0, 9)
        assert mark is not None
        assert (mark.base_offset, mark.last_offset, mark.timestamp) == (0, 9, 1_000)

    def test_sequences_wrap(self, log: Partition) -> None:
        log.send(P, 0, MAX - 1, 4)
        assert log.send(P, 0, 2) == 4
        assert log.send(P, 0, MAX - 1, 4) == 0
        log.send(Q, 0, MAX)
        assert log.send(Q, 0, 0) == 6

    def test_a_new_epoch_begins_at_zero(self, log: Partition) -> None:
        log.send(P, 0, 0)
        assert refusal(log.states, P, 1, 1, 0) == Err.OUT_OF_ORDER_SEQUENCE_NUMBER
        log.send(P, 1, 0)
        assert refusal(log.states, P, 0, 1, 0) == Err.INVALID_PRODUCER_EPOCH
        assert refusal(log.states, P, 0, 0, 0) == Err.INVALID_PRODUCER_EPOCH
        assert log.send(P, 1, 0) == 1

    def test_after_a_marker_of_a_new_epoch_sequences_begin_at_zero(self, log: Partition) -> None:
        log.send(P, 0, 0, 3, transactional=True)
        log.end(P, 1, ABORT)
        assert refusal(log.states, P, 1, 3, 0) == Err.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert refusal(log.states, P, 0, 3, 0) == Err.INVALID_PRODUCER_EPOCH
        log.send(P, 1, 0)

    def test_a_check_changes_nothing(self, log: Partition) -> None:
        log.send(P, 0, 0)
        before = log.states.snapshot()
        log.states.check(P, 0, 1, 0)
        log.states.check(Q, 3, 9, 0)
        for args in ((P, 0, 7, 0), (P, 1, 7, 0)):
            refusal(log.states, *args)
        assert log.states.snapshot() == before


class TestTransactions:
    def test_the_first_unstable_offset(self, log: Partition) -> None:
        states = log.states
        log.send(P, 0, 0, 5)
        assert states.first_unstable_offset is None
        log.send(P, 0, 5, 2, transactional=True)
        log.send(Q, 0, 0, 2, transactional=True)
        log.send(P, 0, 7, 1, transactional=True)
        assert states.first_unstable_offset == 5
        assert log.end(P, 0, COMMIT) is None
        # Q opened at 7; P's end at 10 is not yet replicated.
        assert states.first_unstable_offset == 5
        assert states.first_undecided_offset == 7
        states.committed(10)
        assert states.first_unstable_offset == 5
        states.committed(11)
        assert states.first_unstable_offset == 7
        assert log.end(Q, 0, ABORT) == AbortedTransaction(Q, 7, 11, 12)
        states.committed(12)
        assert states.first_unstable_offset is None

    def test_an_abort_knows_the_last_stable_offset(self, log: Partition) -> None:
        log.send(P, 0, 0, 1, transactional=True)
        log.send(Q, 0, 0, 1, transactional=True)
        assert log.end(Q, 0, ABORT) == AbortedTransaction(Q, 1, 2, 0)
        assert log.end(P, 0, ABORT) == AbortedTransaction(P, 0, 3, 4)

    def test_a_marker_without_a_transaction_aborts_nothing(self, log: Partition) -> None:
        assert log.end(P, 0, ABORT) is None
        assert log.states.first_unstable_offset is None
        assert P in log.states

    def test_ordinary_writes_may_not_enter_a_transaction(self, log: Partition) -> None:
        log.send(P, 0, 0, 1, transactional=True)
        assert refusal(log.states, P, 0, 1, 0) == Err.INVALID_TXN_STATE
        log.end(P, 0, COMMIT)
        log.send(P, 0, 1)

    def test_old_coordinators_are_fenced(self, log: Partition) -> None:
        log.end(P, 0, Marker(True, coordinator_epoch=5))
        with pytest.raises(KafkaError) as raised:
            log.end(P, 0, Marker(True, coordinator_epoch=4))
        assert raised.value.error == Err.TRANSACTION_COORDINATOR_FENCED

    @pytest.mark.parametrize(
        ("version", "open_now", "epoch", "ok"),
        [
            (1, True, 3, True),
            (1, True, 2, False),
            (2, True, 3, False),
            (2, True, 4, True),
            (2, False, 3, True),
            (2, False, 2, False),
        ],
    )
    def test_epochs_of_markers(self, log: Partition, version: int, open_now: bool, epoch: int, ok: bool) -> None:
        log.send(P, 3, 0, transactional=open_now)
        if ok:
            log.states.check_marker(P, epoch, 0, version)
        else:
            with pytest.raises(KafkaError) as raised:
                log.states.check_marker(P, epoch, 0, version)
            assert raised.value.error == Err.INVALID_PRODUCER_EPOCH

    def test_the_last_epoch_has_no_successor(self, log: Partition) -> None:
        log.send(P, 0x7FFF, 0, transactional=True)
        log.states.check_marker(P, 0x7FFF, 0, 2)

    @settings(max_examples=200)
    @given(st.data())
    def test_first_unstable_against_a_plain_model(self, data: st.DataObject) -> None:
        log = Partition()
        ongoing: dict[int, int] = {}
        ended: list[tuple[int, int]] = []
        high_watermark = 0
        sequences = dict.fromkeys(range(4), 0)
        for _ in range(data.draw(st.integers(1, 30))):
            pid = data.draw(st.integers(0, 3))
            action = data.draw(st.sampled_from(["write", "end", "commit"]))
            if action == "write":
                ongoing.setdefault(pid, log.end_offset)
                log.send(pid, 0, sequences[pid], transactional=True)
                sequences[pid] += 1
            elif action == "end":
                if pid in ongoing:
                    ended.append((ongoing.pop(pid), log.end_offset))
                log.end(pid, 0, COMMIT)
            else:
                high_watermark = data.draw(st.integers(high_watermark, log.end_offset))
                log.states.committed(high_watermark)
            unstable = list(ongoing.values()) + [first for first, last in ended if last >= high_watermark]
            assert log.states.first_unstable_offset == min(unstable, default=None)


class TestVerification:
    def test_a_first_write_needs_the_guard(self) -> None:
        states = ProducerStates()
        assert refusal(states, P, 0, 0, 0, transactional=True) == Err.INVALID_TXN_STATE
        guard = states.begin_verification(P, 0, 0, 1_000, supports_epoch_bump=True)
        assert refusal(states, P, 0, 0, 0, transactional=True) == Err.INVALID_TXN_STATE
        states.check(P, 0, 0, 0, transactional=True, guard=guard)
        states.record(P, 0, 0, 0, 0, 1, True)
        # Now the transaction is open here and needs none.
        assert states.begin_verification(P, 0, 1, 1_000, supports_epoch_bump=True) is None
        states.check(P, 0, 1, 0, transactional=True)

    def test_a_guard_does_not_outlive_its_transaction(self) -> None:
        states = ProducerStates()
        stale = states.begin_verification(P, 0, 0, 1_000, supports_epoch_bump=False)
        states.end_transaction(P, 0, ABORT, 0, 1)
        states.begin_verification(P, 0, 0, 1_000, supports_epoch_bump=False)
        assert refusal(states, P, 0, 0, 0, transactional=True, guard=stale) == Err.INVALID_TXN_STATE

    def test_a_guard_of_the_next_transaction_outlives_the_end_of_the_last_one(self) -> None:
        """With an epoch for each transaction, a producer may write before the markers of the last one are here."""
        states = ProducerStates()
        states.check(P, 0, 0, 0, True, states.begin_verification(P, 0, 0, 1_000, supports_epoch_bump=True))
        states.record(P, 0, 0, 0, 0, 1, True)
        guard = states.begin_verification(P, 1, 0, 1_000, supports_epoch_bump=True)
        states.end_transaction(P, 1, COMMIT, 1, 1, transaction_version=2)
        states.check(P, 1, 0, 0, transactional=True, guard=guard)
        states.end_transaction(P, 2, ABORT, 2, 1, transaction_version=2)
        assert refusal(states, P, 1, 0, 0, transactional=True, guard=guard) == Err.INVALID_PRODUCER_EPOCH
        assert refusal(states, P, 2, 0, 0, transactional=True, guard=guard) == Err.INVALID_TXN_STATE

    def test_a_classic_marker_leaves_no_guard_of_its_own_transaction(self) -> None:
        """A client may write by the newer protocol and give up by an EndTxn of the classic one."""
        states = ProducerStates()
        guard = states.begin_verification(P, 5, 0, 1_000, supports_epoch_bump=True)
        states.end_transaction(P, 5, ABORT, 0, 1, transaction_version=0)
        assert refusal(states, P, 5, 0, 0, transactional=True, guard=guard) == Err.INVALID_TXN_STATE

    def test_a_late_batch_of_an_older_epoch_does_not_stand_in_the_way_of_a_newer_one(self) -> None:
        states = ProducerStates()
        guard = states.begin_verification(P, 9, 0, 1_000, supports_epoch_bump=True)
        states.check(P, 9, 0, 4, True, guard)
        states.record(P, 9, 0, 0, 4, 1, True)
        late = states.begin_verification(P, 6, 3, 1_000, supports_epoch_bump=True)
        assert late is not None, "the coordinator is asked, and refuses it as Kafka's does"
        assert refusal(states, P, 6, 3, 0, transactional=True, guard=late) == Err.INVALID_PRODUCER_EPOCH
        states.check(P, 9, 5, 0, transactional=True)

    def test_later_batches_wait_for_the_lowest_sequence(self) -> None:
        states = ProducerStates()
        guard = states.begin_verification(P, 0, 5, 1_000, supports_epoch_bump=False)
        assert states.begin_verification(P, 0, 3, 1_000, supports_epoch_bump=False) is guard
        assert refusal(states, P, 0, 5, 0, transactional=True, guard=guard) == Err.OUT_OF_ORDER_SEQUENCE_NUMBER
        states.check(P, 0, 3, 0, transactional=True, guard=guard)

    def test_with_epoch_bumps_an_unknown_producer_begins_at_zero(self) -> None:
        states = ProducerStates()
        guard = states.begin_verification(P, 0, 5, 1_000, supports_epoch_bump=True)
        assert refusal(states, P, 0, 5, 0, transactional=True, guard=guard) == Err.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_a_stale_epoch_is_told_before_a_missing_transaction(self) -> None:
        states = ProducerStates()
        states.record(P, 4, 0, 0, 0, 1)
        assert refusal(states, P, 3, 0, 0, transactional=True) == Err.INVALID_PRODUCER_EPOCH

    def test_coordinators_write_without_sequences(self) -> None:
        states = ProducerStates()
        with pytest.raises(KafkaError) as raised:
            states.check_coordinator(P, 2)
        assert raised.value.error == Err.INVALID_TXN_STATE
        states.check_coordinator(P, 2, states.begin_verification(P, 2, -1, 0, supports_epoch_bump=True))
        states.record(P, 2, -1, 0, 0, 1, True)
        states.check_coordinator(P, 2)
        with pytest.raises(KafkaError) as raised:
            states.check_coordinator(P, 1)
        assert raised.value.error == Err.INVALID_PRODUCER_EPOCH


class TestForgetting:
    def test_expiry_spares_open_transactions(self, log: Partition) -> None:
        log.send(P, 0, 0)
        log.send(Q, 0, 0, transactional=True)
        assert log.states.expire(1_999, 1_000) == 0
        assert log.states.expire(2_000, 1_000) == 1
        assert P not in log.states
        assert Q in log.states
        assert log.send(P, 0, 17) == 2

    def test_lingering_verifications_expire(self) -> None:
        states = ProducerStates()
        guard = states.begin_verification(P, 0, 0, 1_000, supports_epoch_bump=False)
        states.expire(2_000, 1_000)
        assert refusal(states, P, 0, 0, 0, transactional=True, guard=guard) == Err.INVALID_TXN_STATE

    def test_views(self, log: Partition) -> None:
        log.send(P, 3, 0, 2, transactional=True)
        log.end(Q, 1, Marker(True, 9))
        assert [tuple(view) for view in log.states.describe()] == [
            (P, 3, 1, 1_000, -1, 0),
            (Q, 1, -1, 1_000, 9, -1),
        ]
        assert log.states.last_records() == {P: (1, 3), Q: (-1, 1)}
        assert log.states.oldest_transaction_timestamp == 1_000


class TestSnapshots:
    def full(self) -> Partition:
        log = Partition()
        log.send(P, 3, MAX, 3, transactional=True)
        log.send(Q, 0, 5, 2)
        log.send(Q, 0, 7, 2)
        log.end(9, 1, Marker(False, 4))
        log.send(11, 0, 0, 1, transactional=True)
        return log

    def test_round_trip(self) -> None:
        log = self.full()
        again = ProducerStates()
        again.load(log.states.snapshot(), 1_000, 10_000)
        assert again.describe() == log.states.describe()
        assert again.snapshot() == log.states.snapshot()
        assert again.first_unstable_offset == 0
        assert again.check(Q, 0, 7, 1) is not None
        assert again.check(Q, 0, 9, 0) is None
        assert refusal(again, Q, 0, 5, 1) == Err.OUT_OF_ORDER_SEQUENCE_NUMBER, "only the last batch is kept"
        assert again.check(P, 3, MAX, 2, transactional=True) is not None

    def test_expired_producers_are_not_loaded(self) -> None:
        again = ProducerStates()
        again.load(self.full().states.snapshot(), 20_000, 10_000)
        assert sorted(view.producer_id for view in again.describe()) == [P, 11]

    @given(st.data())
    def test_damage_is_noticed(self, data: st.DataObject) -> None:
        snapshot = bytearray(self.full().states.snapshot())
        snapshot[data.draw(st.integers(0, len(snapshot) - 1))] ^= data.draw(st.integers(1, 255))
        states = self.full().states
        before = states.snapshot()
        for damaged in (
            bytes(snapshot),
            before[: data.draw(st.integers(0, len(before) - 1))],
            before + b"\0",
        ):
            with pytest.raises(KafkaError) as raised:
                states.load(damaged, 0, 1)
            assert raised.value.error == Err.CORRUPT_MESSAGE
        assert states.snapshot() == before


def test_replay_equals_what_was_recorded_live() -> None:
    live, replayed = Partition(), ProducerStates()
    log = b""

    def data(pid: int, epoch: int, sequence: int, count: int, transactional: bool) -> None:
        nonlocal log
        log += build_batch(
            [Record(0, live.now_ms, b"k", b"v")] * count,
            base_offset=live.end_offset,
            producer_id=pid,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=transactional,
        )
        live.send(pid, epoch, sequence, count, transactional)

    expected = []

    def end(pid: int, epoch: int, marker: Marker) -> None:
        nonlocal log
        log += encode_marker(
            marker, producer_id=pid, producer_epoch=epoch, timestamp=live.now_ms, base_offset=live.end_offset
        )
        expected.append(live.end(pid, epoch, marker))

    data(P, 0, 0, 3, True)
    data(Q, 0, 0, 1, False)
    data(P, 0, 3, 2, True)
    end(P, 1, Marker(False, 2))
    log += build_batch([Record(0, 1, None, b"plain")], base_offset=live.end_offset)
    live.end_offset += 1
    data(P, 1, 0, 1, True)
    end(P, 1, Marker(True, 2))
    position, aborted = 0, []
    while position < len(log):
        header = read_header(log, position)
        entry = replayed.replay(log, position, header)
        if header.is_control:
            aborted.append(entry)
        position += header.size
    assert replayed.snapshot() == live.states.snapshot()
    assert replayed.first_unstable_offset == live.states.first_unstable_offset
    assert aborted == expected == [AbortedTransaction(P, 0, 6, 7), None]


def test_an_emptied_marker_still_fences() -> None:
    states = ProducerStates()
    builder = BatchBuilder(base_offset=5, producer_id=P, producer_epoch=3, transactional=True, control=True)
    emptied = builder.build(last_offset=5, max_timestamp=1_000)
    assert states.replay(emptied, 0, read_header(emptied)) is None
    assert states.last_records() == {P: (-1, 3)}
    assert refusal(states, P, 2, 0, 0) == Err.INVALID_PRODUCER_EPOCH
    states.check(P, 3, 0, 0)
