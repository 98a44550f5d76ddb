"""Each checker finds the anomaly planted for it, and a good history passes them all."""

import pytest

from headrace.testing.simulator.checkers import (
    EndTransaction,
    History,
    Operation,
    Outcome,
    Poll,
    Seek,
    Send,
    check,
)

OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN
P = "t-0"


def send(value: str, offset: int = -1, outcome: Outcome = OK, transaction: str | None = None) -> Send:
    return Send("producer", P, value, outcome, offset, transaction)


def poll(*records: tuple[int, str], client: str = "c", end_offset: int | None = None, committed: bool = True) -> Poll:
    return Poll(client, P, records, end_offset, committed)


def kinds(operations: list[Operation], final: list[tuple[int, str]] | None = None, idempotent: bool = True) -> set[str]:
    history = History(operations, None if final is None else {P: final})
    return {anomaly.kind for anomaly in check(history, idempotent=idempotent)}


GOOD: list[Operation] = [
    send("a", 0),
    send("b", 1),
    send("lost on the way", outcome=UNKNOWN),
    send("arrived all the same", outcome=UNKNOWN),
    send("refused", outcome=FAILED),
    send("x", 3, transaction="t1"),
    EndTransaction("producer", "t1", OK),
    send("y", 5, transaction="t2"),
    EndTransaction("producer", "t2", FAILED),
    poll((0, "a"), (1, "b"), end_offset=2),
    poll((2, "arrived all the same"), end_offset=4),
    poll((3, "x"), end_offset=8),
    poll((5, "y"), client="uncommitted", committed=False),
    Seek("c", P, 0),
    poll((0, "a")),
    Seek("late", P, 3),
    poll((3, "x"), client="late"),
    send("z", 7),
    poll((7, "z"), client="late", end_offset=8),
]
FINAL = [(0, "a"), (1, "b"), (2, "arrived all the same"), (3, "x"), (7, "z")]


def test_good_history_passes() -> None:
    reads_uncommitted = [op for op in GOOD if isinstance(op, Poll) and not op.read_committed]
    without = [op for op in GOOD if op not in reads_uncommitted]
    assert kinds(without, FINAL) == set()
    assert kinds(GOOD) == set()


def test_empty_history_passes() -> None:
    assert kinds([]) == kinds([], []) == set()


@pytest.mark.parametrize("gone", [0, 1, 3, 4])
def test_lost_write(gone: int) -> None:
    final = [row for index, row in enumerate(FINAL) if index != gone]
    assert "lost-write" in kinds([op for op in GOOD if not isinstance(op, Poll)], final)


def test_unacknowledged_may_be_missing() -> None:
    final = [row for row in FINAL if row[1] != "arrived all the same"]
    assert kinds([op for op in GOOD if not isinstance(op, Poll)], final) == set()


def test_lost_write_without_a_final_read_needs_someone_who_read_past_it() -> None:
    assert kinds([send("a", 0), send("b", 1), Seek("c", P, 1), poll((1, "b"))]) == {"lost-write"}
    assert kinds([send("a", 0), send("b", 1), poll((0, "a"))]) == set()


def test_write_of_an_undecided_transaction_is_not_lost() -> None:
    assert kinds([send("x", 0, transaction="t"), EndTransaction("producer", "t", UNKNOWN)], []) == set()
    assert kinds([send("x", 0, transaction="t")], []) == set()
    assert kinds([send("x", 0, transaction="t"), EndTransaction("producer", "t", OK)], []) == {"lost-write"}


def test_duplicate() -> None:
    history: list[Operation] = [send("a", 0)]
    assert kinds(history, [(0, "a"), (1, "a")]) == {"duplicate"}
    assert kinds(history, [(0, "a"), (1, "a")], idempotent=False) == set()


def test_inconsistent_offsets() -> None:
    sent: list[Operation] = [send("a", 0), send("b", outcome=UNKNOWN)]
    assert "inconsistent-offsets" in kinds([*sent, poll((0, "b")), poll((0, "a"), client="d")])
    assert "inconsistent-offsets" in kinds(sent, [(0, "b"), (1, "a")])


def test_vanished_read() -> None:
    history: list[Operation] = [send("a", outcome=UNKNOWN), poll((0, "a"))]
    assert kinds(history, []) == {"vanished-read"}
    assert kinds(history, [(0, "a")]) == set()


def test_aborted_read() -> None:
    aborted: list[Operation] = [send("a", 0, transaction="t"), EndTransaction("producer", "t", FAILED)]
    assert kinds([*aborted, poll((0, "a"))]) == {"aborted-read"}
    assert kinds([*aborted, poll((0, "a"), committed=False)]) == set()
    refused: list[Operation] = [send("a", outcome=FAILED)]
    assert kinds([*refused, poll((0, "a"), committed=False)]) == {"aborted-read"}
    assert kinds(refused, [(0, "a")]) == {"aborted-read"}


def test_read_of_what_nobody_sent() -> None:
    assert kinds([poll((0, "made up"))]) == {"unknown-read"}


def test_nonmonotonic_poll() -> None:
    sent: list[Operation] = [send("a", 0), send("b", 1)]
    assert kinds([*sent, poll((0, "a"), (1, "b")), poll((0, "a"))]) == {"nonmonotonic-poll"}
    assert kinds([*sent, poll((0, "a"), (1, "b")), poll((1, "b"))]) == {"nonmonotonic-poll"}
    assert kinds([*sent, poll((0, "a"), (1, "b")), poll((0, "a"), client="d")]) == set()
    assert kinds([*sent, Seek("c", P, 1), poll((0, "a"))]) == {"nonmonotonic-poll"}


def test_poll_skip() -> None:
    sent: list[Operation] = [send("a", 0), send("b", 1), send("c", 2)]
    assert kinds([*sent, poll((0, "a")), poll((2, "c"))], [(0, "a"), (1, "b"), (2, "c")]) == {"poll-skip"}
    assert kinds([*sent, poll((0, "a"), (2, "c"))], [(0, "a"), (1, "b"), (2, "c")]) == {"poll-skip"}
    assert kinds([*sent, Seek("c", P, 0), poll((1, "b"))], [(0, "a"), (1, "b"), (2, "c")]) == {"poll-skip"}
    # Offsets nobody found a record at are control records or compacted away.
    assert kinds([send("a", 0), send("c", 2), poll((0, "a")), poll((2, "c"))]) == set()


def test_skipping_an_aborted_record_is_right() -> None:
    history: list[Operation] = [
        send("a", 0),
        send("x", 1, transaction="t"),
        EndTransaction("producer", "t", FAILED),
        send("b", 3),
        poll((0, "a")),
        poll((3, "b")),
    ]
    assert kinds(history) == set()


def test_above_watermark() -> None:
    sent: list[Operation] = [send("a", 0), send("b", 1)]
    assert kinds([*sent, poll((0, "a"), (1, "b"), end_offset=1)]) == {"above-watermark"}
    assert kinds([*sent, poll((0, "a"), (1, "b"), end_offset=2)]) == set()


def test_watermark_backward() -> None:
    def seen(epoch: int, watermark: int) -> Poll:
        return Poll("c", P, (), leader_epoch=epoch, high_watermark=watermark)

    assert kinds([seen(1, 5), seen(1, 4)]) == {"watermark-backward"}
    assert kinds([seen(1, 5), seen(2, 4)]) == set()


def test_torn_transaction() -> None:
    both: list[Operation] = [send("x", 0, transaction="t"), send("y", 1, transaction="t")]
    undecided: list[Operation] = [*both, EndTransaction("producer", "t", UNKNOWN)]
    assert kinds(undecided, [(0, "x")]) == {"torn-transaction"}
    assert kinds(undecided, [(0, "x"), (1, "y")]) == kinds(undecided, []) == set()
    # What was never acknowledged need not be there, whatever became of the rest.
    assert kinds([send("x", 0, transaction="t"), send("y", outcome=UNKNOWN, transaction="t")], [(0, "x")]) == set()


def test_skipping_what_turned_out_to_be_committed() -> None:
    history: list[Operation] = [
        send("x", 0, transaction="t"),
        EndTransaction("producer", "t", UNKNOWN),
        send("b", 2),
        Seek("c", P, 0),
        poll((2, "b")),
    ]
    assert kinds(history, [(0, "x"), (2, "b")]) == {"poll-skip"}
    assert kinds(history, [(2, "b")]) == set()


def test_stable_backward() -> None:
    def seen(epoch: int, stable: int) -> Poll:
        return Poll("c", P, (), stable, leader_epoch=epoch)

    assert kinds([seen(1, 5), seen(1, 4)]) == {"stable-backward"}
    assert kinds([seen(1, 5), seen(1, 5), seen(2, 4)]) == set()


def test_partitions_do_not_mix() -> None:
    history = History(
        [Send("p", "t-0", "a", OK, 0), Send("p", "t-1", "b", OK, 0)], {"t-0": [(0, "a")], "t-1": [(0, "b")]}
    )
    assert check(history) == []
    history.final = {"t-0": [(0, "a")]}
    assert [(anomaly.kind, anomaly.partition) for anomaly in check(history)] == [("lost-write", "t-1")]
    assert "acknowledged at 0 is gone" in str(check(history)[0])
