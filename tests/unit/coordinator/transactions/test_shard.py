"""Every state of a transactional id against every request, by Kafka's rules, in both protocols."""

from collections.abc import Iterator
from typing import Any

import pytest

from headrace.coordinator.outcome import Promise
from headrace.coordinator.transactions.shard import (
    LEADER_WAIT_MS,
    RESUME,
    TIMEOUT,
    WAIT,
    WAIT_MS,
    WAITING_MAX,
    Producer,
)
from headrace.coordinator.transactions.transaction import NEVER_MS, State, Transaction
from headrace.errors import Err
from tests.unit.coordinator.transactions.harness import ID, Driver

CLASSIC, V2 = 0, 2
EPOCH_MAX = 0x7FFF


def in_state(state: State, version: int) -> tuple[Driver, Producer]:
    """A shard whose transactional id is in a state, and the producer as its client knows it before it ends anything."""
    driver = Driver(version)
    producer = driver.init()
    if state is State.EMPTY:
        return driver, producer
    assert driver.add(producer) is Err.NONE
    if state is State.ONGOING:
        return driver, producer
    committed = state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
    ended = driver.end(producer, committed)
    assert ended.error is Err.NONE
    if state in (State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
        driver.write_markers()
    assert driver.transaction().state is state
    return driver, producer


def test_a_new_id_begins_with_epoch_zero_and_each_next_producer_gets_the_next_epoch() -> None:
    driver = Driver()
    first = driver.init()
    assert first == Producer(Err.NONE, 101, 0)
    assert driver.init() == Producer(Err.NONE, 101, 1)
    assert driver.transaction().state is State.EMPTY
    assert driver.add(first) is Err.PRODUCER_FENCED


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_above_the_limit_or_none_at_all_is_refused_and_nothing_is_kept(timeout_ms: int) -> None:
    driver = Driver()
    assert driver.init(timeout_ms=timeout_ms) == Producer(Err.INVALID_TRANSACTION_TIMEOUT)
    assert driver.init(id="") == Producer(Err.INVALID_REQUEST)
    assert not driver.log and not driver.states()


def test_two_phase_commit_is_refused_unless_it_is_switched_on() -> None:
    assert Driver().init(two_phase=True) == Producer(Err.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    driver = Driver(two_phase_commit_enable=True)
    producer = driver.init(two_phase=True, timeout_ms=NEVER_MS)
    driver.add(producer)
    driver.pass_time(10 * 24 * 3600 * 1000)
    assert driver.transaction().state is State.ONGOING


@pytest.mark.parametrize(
    ("state", "committed", "repeated", "expected"),
    [
        # The table in Kafka's coordinator. Repeated: with the epoch that the client had before the last end.
        (State.EMPTY, False, False, "bump"),
        (State.EMPTY, True, False, Err.INVALID_TXN_STATE),
        (State.EMPTY, False, True, Err.PRODUCER_FENCED),
        (State.EMPTY, True, True, Err.PRODUCER_FENCED),
        (State.ONGOING, True, False, "bump"),
        (State.ONGOING, False, False, "bump"),
        (State.ONGOING, True, True, Err.PRODUCER_FENCED),
        (State.PREPARE_COMMIT, True, True, "wait"),
        (State.PREPARE_COMMIT, False, True, "wait in vain"),
        (State.PREPARE_COMMIT, True, False, "wait in vain"),
        (State.PREPARE_ABORT, False, True, "wait"),
        (State.PREPARE_ABORT, True, True, "wait in vain"),
        (State.COMPLETE_ABORT, False, True, "same"),
        (State.COMPLETE_ABORT, False, False, "bump"),
        (State.COMPLETE_ABORT, True, True, Err.INVALID_TXN_STATE),
        (State.COMPLETE_ABORT, True, False, Err.INVALID_TXN_STATE),
        (State.COMPLETE_COMMIT, False, True, Err.INVALID_TXN_STATE),
        (State.COMPLETE_COMMIT, False, False, "bump"),
        (State.COMPLETE_COMMIT, True, True, "same"),
        (State.COMPLETE_COMMIT, True, False, Err.INVALID_TXN_STATE),
    ],
)
def test_end_in_every_state_of_version_2(state: State, committed: bool, repeated: bool, expected: Any) -> None:
    driver, _ = in_state(state, V2)
    before = driver.transaction()
    epoch = before.producer_epoch - 1 if repeated else before.producer_epoch
    result = driver.end(Producer(Err.NONE, before.producer_id, epoch), committed)
    if expected == "wait":
        assert isinstance(result, Promise)
        driver.write_markers()
        assert driver.answers[result] == Producer(Err.NONE, before.producer_id, before.producer_epoch)
    elif expected == "wait in vain":
        driver.write_markers()
        assert driver.answers[result] == Producer(Err.INVALID_TXN_STATE)
    elif expected == "bump":
        assert result == Producer(Err.NONE, before.producer_id, before.producer_epoch + 1)
        assert driver.transaction().producer_epoch == before.producer_epoch + 1
    elif expected == "same":
        assert result == Producer(Err.NONE, before.producer_id, before.producer_epoch)
        assert driver.transaction() is before
    else:
        assert result == Producer(expected)
        assert driver.transaction() is before


@pytest.mark.parametrize(
    ("state", "committed", "expected"),
    [
        (State.EMPTY, True, Err.INVALID_TXN_STATE),
        (State.EMPTY, False, Err.INVALID_TXN_STATE),
        (State.ONGOING, True, State.PREPARE_COMMIT),
        (State.ONGOING, False, State.PREPARE_ABORT),
        (State.PREPARE_COMMIT, True, "wait"),
        (State.PREPARE_COMMIT, False, "wait in vain"),
        (State.PREPARE_ABORT, False, "wait"),
        (State.PREPARE_ABORT, True, "wait in vain"),
        (State.COMPLETE_COMMIT, True, State.COMPLETE_COMMIT),
        (State.COMPLETE_COMMIT, False, Err.INVALID_TXN_STATE),
        (State.COMPLETE_ABORT, False, State.COMPLETE_ABORT),
        (State.COMPLETE_ABORT, True, Err.INVALID_TXN_STATE),
    ],
)
def test_end_in_every_state_of_the_classic_protocol(state: State, committed: bool, expected: Any) -> None:
    driver, producer = in_state(state, CLASSIC)
    result = driver.end(producer, committed)
    if expected == "wait":
        assert isinstance(result, Promise)
        driver.write_markers()
        assert driver.answers[result] == Producer()
    elif expected == "wait in vain":
        driver.write_markers()
        assert driver.answers[result] == Producer(Err.INVALID_TXN_STATE)
    elif isinstance(expected, State):
        assert result == Producer()
        assert driver.transaction().state is expected
        assert driver.transaction().producer_epoch == producer.producer_epoch
    else:
        assert result == Producer(expected)
    assert driver.end(producer._replace(producer_epoch=producer.producer_epoch + 1), committed).error in (
        Err.PRODUCER_FENCED,
    )


@pytest.mark.parametrize("version", [CLASSIC, V2])
@pytest.mark.parametrize("state", list(State))
def test_a_producer_that_begins_ends_what_the_last_one_left(state: State, version: int) -> None:
    driver, _ = in_state(state, version)
    before = driver.transaction()
    result = driver.init()
    if isinstance(result, Promise):
        assert state in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)
        told = driver.write_markers()
        assert [one.committed for one in told] == [state is State.PREPARE_COMMIT]
        result = driver.answers[result]
    assert result.error is Err.NONE
    assert (result.producer_id, result.producer_epoch) > (before.producer_id, before.producer_epoch)
    after = driver.transaction()
    assert (after.state, after.partitions, after.start_ms) == (State.EMPTY, frozenset(), -1)


@pytest.mark.parametrize("version", [CLASSIC, V2])
def test_an_aborted_producer_is_fenced_before_its_transaction_is_ended(version: int) -> None:
    driver, producer = in_state(State.ONGOING, version)
    driver.init()
    assert driver.transaction().state is State.PREPARE_ABORT
    assert driver.transaction().producer_epoch == producer.producer_epoch + 1
    waiting = [driver.add(producer), driver.end(producer, committed=True)]
    driver.write_markers()
    added, ended = (driver.answers.get(one, one) for one in waiting)
    assert added is Err.PRODUCER_FENCED and ended == Producer(Err.PRODUCER_FENCED)


def test_partitions_are_added_once_and_to_the_transaction_that_is_open() -> None:
    driver, producer = in_state(State.ONGOING, V2)
    written = len(driver.log)
    assert driver.add(producer) is Err.NONE
    assert len(driver.log) == written
    assert driver.add(producer, ("orders", 1), ("__consumer_offsets", 7)) is Err.NONE
    assert driver.transaction().partitions == {("orders", 0), ("orders", 1), ("__consumer_offsets", 7)}
    assert driver.add(producer._replace(producer_id=5)) is Err.INVALID_PRODUCER_ID_MAPPING
    assert driver.add(producer._replace(producer_epoch=9)) is Err.PRODUCER_FENCED
    assert driver.add(producer, id="nobody") is Err.INVALID_PRODUCER_ID_MAPPING
    assert driver.add(producer, id="") is Err.INVALID_REQUEST


def test_what_is_verified_is_what_was_added() -> None:
    driver, producer = in_state(State.ONGOING, CLASSIC)

    def verify(**changes: Any) -> dict[tuple[str, int], Err]:
        asked = producer._replace(**changes)
        return driver.shard.verify_partitions(
            ID, asked.producer_id, asked.producer_epoch, [("orders", 0), ("orders", 1)]
        )

    assert verify() == {("orders", 0): Err.NONE, ("orders", 1): Err.TRANSACTION_ABORTABLE}
    assert set(verify(producer_epoch=4).values()) == {Err.PRODUCER_FENCED}
    assert set(verify(producer_id=4).values()) == {Err.INVALID_PRODUCER_ID_MAPPING}
    driver.end(producer, committed=True)
    assert set(verify().values()) == {Err.CONCURRENT_TRANSACTIONS}
    driver.write_markers()
    assert set(verify().values()) == {Err.TRANSACTION_ABORTABLE}


def test_markers_wait_until_the_decision_is_committed_and_the_last_one_ends_the_transaction() -> None:
    driver = Driver()
    producer = driver.init()
    driver.add(producer, ("a", 0), ("b", 1))
    driver.commit()
    driver.end(producer, committed=True)
    assert driver.shard.markers_due() == []
    (markers,) = driver.commit()
    assert (markers.committed, markers.partitions, markers.producer_epoch) == (
        True,
        frozenset({("a", 0), ("b", 1)}),
        1,
    )
    assert driver.shard.markers_due() == []
    driver.settle(driver.shard.marker_written(ID, 101, 1, [("a", 0)], driver.now_ms))
    assert driver.transaction().state is State.PREPARE_COMMIT
    driver.settle(driver.shard.marker_written(ID, 101, 0, [("b", 1)], driver.now_ms))  # of an epoch before
    assert driver.transaction().state is State.PREPARE_COMMIT
    driver.settle(driver.shard.marker_written(ID, 101, 1, [("b", 1)], driver.now_ms))
    assert driver.transaction().state is State.COMPLETE_COMMIT
    assert driver.transaction().partitions == frozenset()


def test_a_coordinator_that_takes_over_writes_the_markers_again() -> None:
    driver, _ = in_state(State.PREPARE_COMMIT, V2)
    driver.commit()
    driver.restart()
    (markers,) = driver.shard.markers_due()
    assert (markers.committed, markers.partitions) == (True, frozenset({("orders", 0)}))


@pytest.mark.parametrize("version", [CLASSIC, V2])
def test_a_transaction_that_takes_too_long_is_aborted_also_by_the_next_coordinator(version: int) -> None:
    driver, producer = in_state(State.ONGOING, version)
    driver.pass_time(30_000)
    driver.add(producer, ("orders", 5))  # its time runs from its first partition
    driver.restart()
    driver.pass_time(29_999)
    assert driver.transaction().state is State.ONGOING
    driver.pass_time(1)
    assert driver.transaction().state is State.PREPARE_ABORT
    assert driver.transaction().producer_epoch == producer.producer_epoch + 1
    driver.write_markers()
    assert driver.transaction().state is State.COMPLETE_ABORT
    assert driver.end(producer, committed=True).error in (Err.INVALID_TXN_STATE, Err.PRODUCER_FENCED)


def test_a_commit_that_was_decided_is_not_timed_out() -> None:
    driver, _ = in_state(State.PREPARE_COMMIT, V2)
    driver.pass_time(3_600_000)
    assert driver.transaction().state is State.PREPARE_COMMIT


def test_those_who_wait_are_told_to_ask_again_when_markers_take_long() -> None:
    driver, producer = in_state(State.PREPARE_COMMIT, V2)
    ended = producer._replace(producer_epoch=producer.producer_epoch + 1)
    waiting = [driver.add(ended) for _ in range(WAITING_MAX)]
    assert all(isinstance(one, Promise) for one in waiting)
    assert driver.add(ended) is Err.CONCURRENT_TRANSACTIONS
    driver.pass_time(WAIT_MS)
    assert [driver.answers[one] for one in waiting] == [Err.CONCURRENT_TRANSACTIONS] * WAITING_MAX
    assert (WAIT, ID) not in driver.timers and driver.shard.waiting_count == 0


def test_those_who_wait_are_decided_one_after_the_other_in_their_order() -> None:
    driver, producer = in_state(State.PREPARE_COMMIT, V2)
    ended = producer._replace(producer_epoch=producer.producer_epoch + 1)
    first, second, third = driver.add(ended, ("orders", 3)), driver.init(), driver.add(ended, ("orders", 4))
    driver.write_markers()
    assert driver.answers[first] is Err.NONE
    assert driver.answers[second] == Producer(Err.CONCURRENT_TRANSACTIONS)  # it aborted what the first one began
    assert driver.answers[third] is Err.CONCURRENT_TRANSACTIONS  # its client asks again, and is fenced then
    assert (RESUME, ID) not in driver.timers


def test_a_late_classic_end_does_not_wait_for_the_next_transaction_to_end_it() -> None:
    driver, producer = in_state(State.PREPARE_COMMIT, CLASSIC)
    begun = driver.add(producer, ("orders", 1))
    assert driver.end(producer, True) == Producer(Err.CONCURRENT_TRANSACTIONS)
    driver.write_markers()
    assert driver.answers[begun] is Err.NONE
    assert driver.transaction().state is State.ONGOING


def test_a_leader_need_not_wait_for_a_classic_end_that_voids_its_question() -> None:
    """Of a client that writes by the newer protocol and ends by the classic one."""
    driver, producer = in_state(State.PREPARE_COMMIT, CLASSIC)
    assert driver.add(producer, version=V2) is Err.CONCURRENT_TRANSACTIONS
    driver.write_markers()
    assert driver.add(producer, version=V2) is Err.NONE


def test_a_lost_answer_to_a_recovering_producer_can_be_asked_for_again() -> None:
    driver = Driver()
    producer = driver.init()
    expected = (producer.producer_id, producer.producer_epoch)
    bumped = driver.init(expected=expected)
    assert bumped == Producer(Err.NONE, producer.producer_id, 1)
    assert driver.init(expected=expected) == bumped
    assert driver.init() == Producer(Err.NONE, producer.producer_id, 2)
    assert driver.init(expected=expected) == Producer(Err.PRODUCER_FENCED)
    assert driver.init(expected=(77, 0)) == Producer(Err.PRODUCER_FENCED)


def test_a_producer_whose_epochs_run_out_gets_a_new_id() -> None:
    driver = Driver()
    producer = driver.init()
    exhausted = producer._replace(producer_epoch=EPOCH_MAX - 1)
    _force_epoch(driver, EPOCH_MAX - 1)
    assert driver.add(exhausted) is Err.NONE
    ended = driver.end(exhausted, committed=True)
    assert ended == Producer(Err.NONE, 102, 0)
    assert driver.transaction().producer_epoch == EPOCH_MAX  # markers carry it
    driver.write_markers()
    assert driver.end(exhausted, committed=True) == ended  # asked again
    assert driver.end(exhausted, committed=False) == Producer(Err.INVALID_TXN_STATE)
    assert driver.add(ended) is Err.NONE
    assert driver.transaction().previous_producer_id == 102


def test_a_classic_producer_whose_epochs_run_out_gets_a_new_id_when_it_begins_again() -> None:
    driver = Driver(CLASSIC)
    driver.init()
    _force_epoch(driver, EPOCH_MAX - 1)
    assert driver.init(expected=(101, EPOCH_MAX - 1)) == Producer(Err.NONE, 102, 0)
    assert driver.init(expected=(101, EPOCH_MAX - 1)) == Producer(Err.NONE, 102, 0)  # asked again


def test_without_a_producer_id_at_hand_nothing_changes_and_it_is_tried_again() -> None:
    driver = Driver()
    driver.has_ids = False
    assert driver.init() == Producer(Err.COORDINATOR_NOT_AVAILABLE)
    assert not driver.log
    driver.has_ids = True
    producer = driver.init()
    _force_epoch(driver, EPOCH_MAX - 1)
    driver.add(producer._replace(producer_epoch=EPOCH_MAX - 1))
    driver.has_ids = False
    driver.pass_time(60_000)
    assert driver.transaction().state is State.ONGOING
    driver.has_ids = True
    driver.pass_time(1_000)
    assert driver.transaction().state is State.PREPARE_ABORT


def test_a_clock_that_is_set_back_keeps_no_transaction_open() -> None:
    """Its readers would wait for as long."""
    driver = Driver()
    driver.add(driver.init(timeout_ms=60_000))
    due = driver.timers[TIMEOUT, ID]
    driver.settle(driver.shard.timeout((TIMEOUT, ID), due - 3_600_000))
    assert driver.transaction().state is State.PREPARE_ABORT


def test_a_coordinator_whose_clock_is_behind_keeps_no_transaction_open_longer_than_its_timeout() -> None:
    driver = Driver()
    driver.add(driver.init(timeout_ms=60_000))
    driver.now_ms -= 3_600_000
    driver.restart()
    driver.pass_time(59_999)
    assert driver.transaction().state is State.ONGOING
    driver.pass_time(1)
    assert driver.transaction().state is State.PREPARE_ABORT


def test_ids_that_are_not_used_for_a_week_are_forgotten_and_open_ones_never() -> None:
    driver, _ = in_state(State.COMPLETE_COMMIT, V2)
    open_one = driver.init(id="open", timeout_ms=900_000)
    driver.add(open_one, id="open")
    driver.timers.clear()
    driver.now_ms += driver.config.transactional_id_expiration_ms - 1
    assert driver.settle(driver.shard.expire(driver.now_ms)) is False
    assert len(driver.states()) == 2
    driver.now_ms += 1
    driver.settle(driver.shard.expire(driver.now_ms))
    assert set(driver.states()) == {"open"}
    driver.restart()
    assert set(driver.states()) == {"open"}
    assert driver.shard.verify_partitions(ID, 101, 0, [("orders", 0)]) == {
        ("orders", 0): Err.INVALID_PRODUCER_ID_MAPPING
    }


def test_readers_see_what_is_committed() -> None:
    driver = Driver()
    driver.init()
    assert driver.shard.describe(ID) is None and not list(driver.shard.list())
    driver.commit()
    driver.add(Producer(Err.NONE, 101, 0))
    assert [one.state for one in driver.shard.list()] == [State.EMPTY]
    driver.commit()
    assert driver.shard.describe(ID) is driver.transaction()


def _force_epoch(driver: Driver, epoch: int) -> None:
    import msgspec

    from headrace.coordinator.outcome import Outcome
    from headrace.coordinator.transactions.records import transaction_record

    out = Outcome()
    changed = msgspec.structs.replace(driver.transaction(), producer_epoch=epoch)
    out.records.append(transaction_record(changed, driver.version))
    driver.settle(out)


def test_a_leader_that_waits_does_not_keep_the_transactions_of_others_waiting_for_long() -> None:
    """It asks about many in one request, and the next one goes out when all of them are answered."""
    driver, producer = in_state(State.PREPARE_COMMIT, V2)
    ended = producer._replace(producer_epoch=producer.producer_epoch + 1)
    first = driver.add(ended)
    by_leader = driver.settle(
        driver.shard.add_partitions(
            ID, ended.producer_id, ended.producer_epoch, [("orders", 1)], V2, driver.now_ms, wait_ms=LEADER_WAIT_MS
        )
    )
    driver.pass_time(LEADER_WAIT_MS)
    assert [driver.answers[one] for one in (first, by_leader)] == [Err.CONCURRENT_TRANSACTIONS] * 2


@pytest.mark.parametrize("version", [CLASSIC, V2])
def test_a_producer_that_begins_need_not_wait_for_a_transaction_without_partitions(version: int) -> None:
    driver = Driver(version)
    producer = driver.init()
    begin = driver.shard.add_partitions(ID, producer.producer_id, producer.producer_epoch, [], version, driver.now_ms)
    assert driver.settle(begin) is Err.NONE
    began = driver.init()
    driver.run_timers()
    assert driver.answers[began].error is Err.NONE
    assert driver.answers[began].producer_epoch > producer.producer_epoch


def test_markers_of_a_decision_that_is_not_certain_are_not_sent_on_account_of_the_one_before() -> None:
    driver, producer = in_state(State.PREPARE_COMMIT, V2)
    driver.shard.advance(len(driver.log))  # the first is due, and nobody has asked for it yet
    epoch = driver.transaction().producer_epoch
    driver.settle(driver.shard.marker_written(ID, producer.producer_id, epoch, [("orders", 0)], driver.now_ms))
    ended = producer._replace(producer_epoch=producer.producer_epoch + 1)
    assert driver.add(ended, ("orders", 1)) is Err.NONE
    assert driver.end(ended, committed=False).error is Err.NONE
    assert driver.shard.markers_due() == []
    (markers,) = driver.commit()
    assert markers.partitions == {("orders", 1)} and not markers.committed


def test_the_time_limits_of_open_transactions_do_not_depend_on_what_else_a_load_has_to_write() -> None:
    driver, _ = in_state(State.ONGOING, V2)
    assert not driver.shard.loaded(driver.now_ms).atomic


def test_an_end_is_written_however_large_it_is() -> None:
    driver, producer = in_state(State.ONGOING, V2)
    ended = driver.shard.end(ID, producer.producer_id, producer.producer_epoch, True, V2, driver.now_ms)
    assert ended.records and not ended.revocable


class OnlyLookedUp(dict[str, Transaction]):
    """Nobody goes through all ids of a shard in one turn."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("walked through")

    def values(self) -> Any:
        raise AssertionError("walked through")

    items = values


def test_a_load_ends_with_a_look_at_open_transactions_only() -> None:
    """A shard may hold 100,000 ids, and the loop is not to wait for them."""
    driver = Driver()
    for number in range(50):
        producer = driver.init(f"done-{number}")
        driver.add(producer, id=f"done-{number}")
        driver.end(producer, True, id=f"done-{number}")
    driver.write_markers()
    ongoing, decided = driver.init("ongoing"), driver.init("decided")
    driver.add(ongoing, id="ongoing")
    driver.add(decided, id="decided")
    driver.end(decided, True, id="decided")
    shard = driver.new_shard()
    shard.advance(len(driver.log))
    for offset, (key, value) in enumerate(driver.log):
        shard.replay(offset, -1, -1, key, value)
    shard.transactions.live = OnlyLookedUp(shard.transactions.live)
    outcome = shard.loaded(driver.now_ms)
    assert [timer.key for timer in outcome.timers] == [("transaction timeout", "ongoing")]
    shard.advance(len(driver.log))
    assert [markers.transactional_id for markers in shard.markers_due()] == ["decided"]
    assert sorted(shard.open_since) == ["decided", "ongoing"]


def test_the_high_watermark_passes_decisions_without_a_look_at_later_ones() -> None:
    driver = Driver()
    ids = [f"id-{number}" for number in range(20)]
    ends = []
    for id in ids:
        producer = driver.init(id)
        driver.add(producer, id=id)
        driver.end(producer, True, id=id)
        ends.append(len(driver.log))
    for id, end in zip(ids, ends):
        driver.shard.advance(end - 1)
        assert driver.shard.markers_due() == []
        driver.shard.advance(end)
        assert [markers.transactional_id for markers in driver.shard.markers_due()] == [id]
