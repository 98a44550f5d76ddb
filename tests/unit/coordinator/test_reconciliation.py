"""Steps of one member: gives up first, takes only what is free, and waits for the rest."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.coordinator.consumer_members import Member, MemberState, with_epoch, without_epochs
from headrace.coordinator.reconciliation import FREE, Step
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m

TOPIC = bytes(15) + b"\x01"
OTHER = bytes(15) + b"\x02"


def owns(*partitions: int, topic: bytes = TOPIC) -> list[Any]:
    return [m.ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic, partitions=list(partitions))]


def take(
    member: Member,
    target: dict[bytes, tuple[int, ...]],
    owned: Any,
    held: frozenset[int] | set[int] = frozenset(),
    **more: Any,
) -> Member:
    subscribed = more.get("subscribed", {TOPIC, OTHER})
    epoch = more.get("epoch", 5)
    step = Step(
        member,
        epoch,
        target,
        (lambda topic_id: topic_id in subscribed) if subscribed else None,
        lambda topic_id, partition: 3 if partition in held else FREE,
        owned,
    )
    return step.taken(more.get("changed", False))


def test_takes_what_is_free_and_waits_for_the_rest() -> None:
    after = take(Member("a"), {TOPIC: (0, 1, 2)}, [], held={1})
    assert (after.state, after.epoch, after.previous_epoch) == (MemberState.UNRELEASED_PARTITIONS, 5, 0)
    assert after.assigned == {TOPIC: {0: 5, 2: 5}}
    done = take(after, {TOPIC: (0, 1, 2)}, owns(0, 2))
    assert done.state is MemberState.STABLE
    assert done.assigned == {TOPIC: {0: 5, 2: 5, 1: 5}}


def test_gives_up_before_it_moves_on() -> None:
    member = Member("a", epoch=4, assigned=with_epoch({TOPIC: (0, 1)}, 2))
    told = take(member, {TOPIC: (1, 2)}, owns(0, 1))
    assert (told.state, told.epoch) == (MemberState.UNREVOKED_PARTITIONS, 4)
    assert told.assigned == {TOPIC: {1: 2}} and told.revoking == {TOPIC: {0: 2}}
    assert take(told, {TOPIC: (1, 2)}, owns(0, 1)) is told
    assert take(told, {TOPIC: (1, 2)}, None) is told, "silence is no answer"
    done = take(told, {TOPIC: (1, 2)}, owns(1))
    assert (done.state, done.epoch, done.revoking) == (MemberState.STABLE, 5, {})
    assert done.assigned == {TOPIC: {1: 2, 2: 5}}


def test_gets_back_what_it_was_giving_up() -> None:
    member = Member("a", epoch=4, assigned={}, revoking=with_epoch({TOPIC: (0,)}, 2))
    member = member.but(state=MemberState.UNREVOKED_PARTITIONS)
    done = take(member, {TOPIC: (0,)}, [], held={0})
    assert done.state is MemberState.STABLE and done.assigned == {TOPIC: {0: 5}}


def test_an_old_target_is_cut_to_a_new_subscription() -> None:
    member = Member("a", epoch=5, assigned=with_epoch({TOPIC: (0,), OTHER: (0,)}, 2))
    told = take(member, {}, owns(0, topic=OTHER), changed=True, subscribed={TOPIC})
    assert told.state is MemberState.UNREVOKED_PARTITIONS
    assert told.assigned == {TOPIC: {0: 2}} and told.revoking == {OTHER: {0: 2}}
    assert take(member, {TOPIC: (0,), OTHER: (0,)}, owns(0), changed=True, subscribed={TOPIC, OTHER}) is member


def test_an_unknown_state_has_to_start_again() -> None:
    member = Member("a", epoch=4, state=MemberState(99), assigned=with_epoch({TOPIC: (0,)}, 2))
    assert member.state is MemberState.UNKNOWN
    for owned in (None, owns(0)):
        with pytest.raises(KafkaError) as refused:
            take(member, {TOPIC: (0,)}, owned)
        assert refused.value.error is Err.FENCED_MEMBER_EPOCH
    assert take(member, {TOPIC: (0,)}, []).state is MemberState.STABLE


partitions = st.sets(st.integers(0, 6))


@given(partitions, partitions, partitions, st.none() | partitions)
def test_never_takes_what_another_holds(have: set[int], want: set[int], held: set[int], owned: set[int] | None) -> None:
    held -= have
    member = Member("a", epoch=4, assigned=with_epoch({TOPIC: tuple(sorted(have))}, 2) if have else {})
    target = {TOPIC: tuple(sorted(want))} if want else {}
    after = take(member, target, None if owned is None else owns(*owned), held=held)
    mine = set(without_epochs(after.assigned).get(TOPIC, ()))
    leaving = set(without_epochs(after.revoking).get(TOPIC, ()))
    assert not mine & held
    assert mine <= want and leaving <= have - want
    if after.state is MemberState.UNREVOKED_PARTITIONS:
        assert after.epoch == 4 and leaving and (owned is None or owned & leaving)
        assert mine == have & want, "nothing new before the old is given up"
    elif after.state is MemberState.STABLE:
        assert after.epoch == 5 and mine == want and not leaving
    else:
        assert after.epoch == 5 and mine == want - held and want & held
