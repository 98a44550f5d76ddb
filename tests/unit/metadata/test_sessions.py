"""Sessions of brokers with the active controller, against a plain model."""

from hypothesis import given, strategies as st

from headrace.metadata.sessions import Sessions


def test_a_silent_broker_runs_out_and_one_that_is_heard_of_does_not() -> None:
    sessions = Sessions(3000)
    sessions.touch(1, 10, 0)
    sessions.touch(2, 11, 100)
    assert sessions.next_expiry_ms() == 3000
    sessions.touch(1, 10, 2500)
    assert sessions.next_expiry_ms() == 3100
    assert sessions.expired(3099) is None
    found = sessions.expired(3100)
    assert found is not None and (found.broker_id, found.epoch) == (2, 11)
    assert sessions.alive(1, 10, 3100) and not sessions.alive(2, 11, 3100)


def test_a_new_controller_gives_everybody_a_whole_session_but_the_one_it_deposed() -> None:
    sessions = Sessions(3000)
    sessions.touch(9, 1, 5)
    sessions.restart({1: 10, 2: 11, 3: 12}, 50_000, silent_ms={2: 2000})
    assert len(sessions) == 3 and sessions.get(9) is None
    found = sessions.expired(51_000)
    assert found is not None and found.broker_id == 2, "silent for 2 s before, so 1 s more is enough"
    sessions.forget(2)
    assert sessions.expired(52_999) is None and sessions.next_expiry_ms() == 53_000


def test_another_incarnation_inherits_nothing() -> None:
    sessions = Sessions(3000)
    old = sessions.touch(1, 10, 0, metadata_offset=77)
    old.shutdown_offset = 80
    new = sessions.touch(1, 20, 5)
    assert (new.metadata_offset, new.shutdown_offset) == (-1, -1)
    assert not sessions.alive(1, 10, 5), "the session is of the other incarnation"


def test_nobody_is_blamed_for_the_controllers_own_sleep() -> None:
    sessions = Sessions(3000)
    sessions.touch(1, 10, 0)
    sessions.forgive(400, 3400)
    assert sessions.expired(3799) is None and sessions.expired(3800) is not None
    sessions.forgive(5000, 8400)
    assert sessions.expired(8400) is None and sessions.next_expiry_ms() == 11_400, "never more than a whole session"


def test_the_slowest_of_some_brokers() -> None:
    sessions = Sessions(3000)
    for broker_id, offset in ((1, 50), (2, 40), (3, 30)):
        sessions.touch(broker_id, 1, 0, metadata_offset=offset)
    assert sessions.lowest_offset([1, 2]) == 40
    assert sessions.lowest_offset([8]) is None


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 900)), max_size=60))
def test_the_first_to_run_out_is_the_one_heard_of_least_lately(steps: list[tuple[int, int]]) -> None:
    sessions, now_ms = Sessions(1000), 0
    model: dict[int, int] = {}
    for broker_id, passed_ms in steps:
        now_ms += passed_ms
        expected = sorted((at, who) for who, at in model.items() if now_ms >= at + 1000)
        found = sessions.expired(now_ms)
        assert (found is None) == (not expected)
        if found is not None:
            assert model[found.broker_id] == expected[0][0]
            sessions.forget(found.broker_id)
            del model[found.broker_id]
        sessions.touch(broker_id, 1, now_ms)
        model[broker_id] = now_ms
