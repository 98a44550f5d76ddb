"""Two-phase commit (KIP-939): a transaction that its owner ends, after a restart too, and that never times out."""

import pytest

from headrace.coordinator.transactions.shard import Producer
from headrace.coordinator.transactions.transaction import NEVER_MS, State
from headrace.errors import Err
from tests.unit.coordinator.transactions.harness import ID, Driver

EPOCH_MAX = 0x7FFF


def prepared() -> tuple[Driver, Producer]:
    """A transaction that is written, and whose producer is about to decide."""
    driver = Driver(two_phase_commit_enable=True)
    producer = driver.init(two_phase=True)
    assert driver.add(producer, ("orders", 0), ("orders", 1)) is Err.NONE
    driver.commit()
    return driver, producer


def come_back(driver: Driver) -> Producer:
    answer = driver.init(two_phase=True, keep_prepared=True)
    assert isinstance(answer, Producer)
    return answer


@pytest.mark.parametrize("committed", [True, False])
def test_a_producer_that_comes_back_ends_what_it_prepared(committed: bool) -> None:
    driver, producer = prepared()
    driver.restart()
    back = come_back(driver)
    assert (back.ongoing_producer_id, back.ongoing_producer_epoch) == (producer.producer_id, producer.producer_epoch)
    assert (back.producer_id, back.producer_epoch) == (producer.producer_id, producer.producer_epoch + 1)
    ended = driver.end(back, committed)
    assert (ended.error, ended.producer_epoch) == (Err.NONE, back.producer_epoch + 1)
    (markers,) = driver.write_markers()
    # Partitions know the transaction by the epoch that wrote it: its end carries the next one.
    assert (markers.producer_id, markers.producer_epoch) == (producer.producer_id, producer.producer_epoch + 1)
    assert markers.committed is committed and markers.partitions == {("orders", 0), ("orders", 1)}
    assert driver.end(back, committed) == Producer(Err.NONE, ended.producer_id, ended.producer_epoch)  # asked again
    assert driver.add(ended) is Err.NONE


def test_the_one_before_is_fenced_and_nothing_can_be_added() -> None:
    driver, producer = prepared()
    back = come_back(driver)
    assert driver.add(producer) is Err.PRODUCER_FENCED
    assert driver.end(producer, committed=True).error is Err.PRODUCER_FENCED
    assert driver.add(back, ("orders", 5)) is Err.INVALID_TXN_STATE
    verified = driver.shard.verify_partitions(ID, *producer[1:3], [("orders", 0)])
    assert set(verified.values()) == {Err.PRODUCER_FENCED}
    again = come_back(driver)
    assert again.producer_epoch == back.producer_epoch + 1
    assert again.ongoing_producer_epoch == producer.producer_epoch
    assert driver.end(back, committed=True).error is Err.PRODUCER_FENCED
    driver.restart()
    assert driver.end(again, committed=True).error is Err.NONE


def test_it_never_times_out_and_an_administrator_can_abort_it() -> None:
    driver, _ = prepared()
    back = come_back(driver)
    driver.pass_time(30 * 24 * 3600 * 1000)
    assert driver.transaction().state is State.ONGOING and driver.transaction().timeout_ms == NEVER_MS
    fencing = driver.init(timeout_ms=1_000)
    (markers,) = driver.write_markers()
    assert markers.committed is False
    assert driver.answers[fencing].error is Err.NONE
    assert driver.end(back, committed=True).error is Err.PRODUCER_FENCED


def test_without_anything_prepared_it_is_a_plain_beginning() -> None:
    driver = Driver(two_phase_commit_enable=True)
    assert come_back(driver) == Producer(Err.NONE, 101, 0)
    assert come_back(driver) == Producer(Err.NONE, 101, 1)


def test_a_producer_that_comes_back_with_no_epoch_left_gets_a_new_id() -> None:
    driver, _ = prepared()
    for _ in range(3):
        back = come_back(driver)
    import msgspec

    from headrace.coordinator.outcome import Outcome
    from headrace.coordinator.transactions.records import transaction_record

    out = Outcome()
    changed = msgspec.structs.replace(driver.transaction(), next_producer_epoch=EPOCH_MAX - 2)
    out.records.append(transaction_record(changed, driver.version))
    driver.settle(out)
    back = come_back(driver)
    assert (back.producer_id, back.producer_epoch) == (102, 0)
    driver.restart()
    ended = driver.end(back, committed=True)
    assert ended == Producer(Err.NONE, 102, 1)
    (markers,) = driver.write_markers()
    assert markers.producer_id == 101
    assert (driver.transaction().producer_id, driver.transaction().producer_epoch) == (102, 1)


def test_it_needs_the_option_and_transaction_version_2() -> None:
    assert Driver().init(two_phase=True, keep_prepared=True).error is Err.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert Driver().init(keep_prepared=True).error is Err.UNSUPPORTED_VERSION
    classic = Driver(1, two_phase_commit_enable=True)
    assert classic.init(two_phase=True, keep_prepared=True).error is Err.UNSUPPORTED_VERSION
