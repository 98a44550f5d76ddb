"""What a coordinator knows of transactions that are open in partitions, and what their leaders make of it."""

from collections.abc import Iterable

from headrace.coordinator.transactions.transaction import EPOCH_BUMP_FROM, State, Transaction
from headrace.protocol.private_fields.left_open import Known, Place, Standing


def standings(transactions: Iterable[Transaction], places: list[Place]) -> list[Standing]:
    """Of each place, by what is committed."""
    asked = {place.producer_id for place in places}
    by_producer = {one.producer_id: one for one in transactions if one.producer_id in asked}
    return [_standing(by_producer.get(place.producer_id), place) for place in places]


def _standing(transaction: Transaction | None, place: Place) -> Standing:
    if transaction is None:
        return Standing.UNKNOWN
    later_by = transaction.producer_epoch - place.producer_epoch
    if not transaction.state.may_expire:
        # One that is open without this partition, or in another epoch, is later than what is open there.
        is_it = later_by == 0 or (transaction.state.is_prepared and later_by == 1)
        is_in_it = (place.topic, place.partition) in transaction.partitions
        return Standing.OPEN if is_it and is_in_it else Standing.UNKNOWN
    # Only where each transaction has an epoch of its own is it certain that this one was committed, and not one that
    # came later.
    has_own_epoch = transaction.client_version >= EPOCH_BUMP_FROM
    if transaction.state is State.COMPLETE_COMMIT and has_own_epoch and later_by == 1:
        return Standing.COMMITTED
    return Standing.UNKNOWN


def verdict(known: list[Known], at: int, epochs: dict[int, int]) -> Standing | None:
    """What all coordinators together say of the place `at`; UNKNOWN: it is over, and was not certainly committed.

    `epochs` has the epoch of each shard's leader, as the asking leader knew them when it took down what is open. None:
    some shard has not answered in that epoch or a later one. Whoever answers for an earlier one may not have heard of
    the transaction: another coordinator has taken over since then.
    """
    said = {answer.standings[at] for answer in known}
    if Standing.OPEN in said:
        return Standing.OPEN
    answered: dict[int, int] = {}
    for answer in known:
        for shard, epoch in answer.shards.items():
            answered[shard] = max(epoch, answered.get(shard, -1))
    if not epochs or any(answered.get(shard, -1) < epoch for shard, epoch in epochs.items()):
        return None
    return Standing.COMMITTED if Standing.COMMITTED in said else Standing.UNKNOWN
