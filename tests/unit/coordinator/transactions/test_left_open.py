"""What coordinators say together of a transaction that is open in a partition: only all of them can say it is over."""

import pytest

from headrace.coordinator.transactions.left_open import standings, verdict
from headrace.coordinator.transactions.transaction import State, Transaction
from headrace.protocol.private_fields import LEFT_OPEN_TAG
from headrace.protocol.private_fields.left_open import (
    Known,
    Place,
    Standing,
    answer_in,
    answer_tag,
    places_in,
    question_tag,
)

PLACE = Place("t", 3, 7, 4)
OPEN, UNKNOWN, COMMITTED = Standing.OPEN, Standing.UNKNOWN, Standing.COMMITTED


def transaction(state: State, epoch: int, version: int = 2, topic: str = "t", producer_id: int = 7) -> Transaction:
    return Transaction(
        "id", producer_id, epoch, 1000, state, 0, partitions=frozenset({(topic, 3)}), client_version=version
    )


@pytest.mark.parametrize(
    ("known", "standing"),
    [
        (transaction(State.ONGOING, 4), OPEN),
        (transaction(State.PREPARE_COMMIT, 5), OPEN),
        (transaction(State.PREPARE_ABORT, 4, version=0), OPEN),
        (transaction(State.ONGOING, 4, topic="other"), UNKNOWN),
        (transaction(State.ONGOING, 5), UNKNOWN),
        (transaction(State.COMPLETE_COMMIT, 5), COMMITTED),
        (transaction(State.COMPLETE_COMMIT, 6), UNKNOWN),
        (transaction(State.COMPLETE_COMMIT, 4, version=0), UNKNOWN),
        (transaction(State.COMPLETE_ABORT, 5), UNKNOWN),
        (transaction(State.EMPTY, 5), UNKNOWN),
        (transaction(State.ONGOING, 4, producer_id=8), UNKNOWN),
    ],
)
def test_what_a_coordinator_knows(known: Transaction, standing: Standing) -> None:
    assert standings([known], [PLACE]) == [standing]


def test_nobody_has_the_say_for_a_shard_that_somebody_else_leads_by_now() -> None:
    epochs = {0: 5, 1: 9}
    here, there = Known({0: 5}, [UNKNOWN]), Known({1: 9}, [UNKNOWN])
    assert verdict([here, there], 0, epochs) is UNKNOWN
    assert verdict([here, there._replace(standings=[COMMITTED])], 0, epochs) is COMMITTED
    assert verdict([here], 0, epochs) is None
    assert verdict([here, Known({1: 8}, [UNKNOWN])], 0, epochs) is None, "deposed, and does not know it"
    assert verdict([here, Known({1: 10}, [UNKNOWN])], 0, epochs) is UNKNOWN
    assert verdict([Known({0: 4}, [OPEN])], 0, epochs) is OPEN, "that it is open, anybody may say"
    assert verdict([], 0, {}) is None, "no coordinator at all"


def test_what_is_sent_is_read_and_what_is_not_of_it_passed_over() -> None:
    places = [PLACE, Place("ümlaut", 0, 1 << 40, 32767)]
    tags = question_tag(places)
    assert places_in(tags) == places
    assert places_in(None) is places_in({LEFT_OPEN_TAG: b"\x00"}) is None
    known = Known({0: 5, 49: 1}, [OPEN, COMMITTED])
    answer = answer_tag(known)
    assert answer_in(answer, 2) == known
    assert answer_in(answer, 3) is answer_in({LEFT_OPEN_TAG: b"\xff" * 9}, 2) is answer_in(None, 2) is None
    assert answer_in({LEFT_OPEN_TAG: answer[LEFT_OPEN_TAG][:-1] + b"\x09"}, 2) is None
