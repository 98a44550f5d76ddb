"""How far moves are, as `headrace cluster reassign --follow` tells."""

from headrace.cli.following import Following
from headrace.client.admin.operations import Move


def move(partition: int, adding: tuple[int, ...] = (4,)) -> Move:
    return Move("t", partition, (1, 2, *adding), adding, (1,))


def test_bytes_and_the_time_that_is_left() -> None:
    following = Following()
    following.update([move(0), move(1)], {(1, "t", 0): 1000, (2, "t", 1): 3000})
    assert following.line(0.0) == "0 moved, 2 moving: 0 B of 4.0 KB copied"
    following.update([move(0), move(1)], {(1, "t", 0): 1000, (2, "t", 1): 3000, (4, "t", 0): 400, (4, "t", 1): 600})
    assert following.line(10.0) == "0 moved, 2 moving: 1.0 KB of 4.0 KB copied, about 30 s left"
    following.update([move(1)], {(2, "t", 1): 3000, (4, "t", 1): 1000})
    assert following.line(20.0) == "1 moved, 1 moving: 2.0 KB of 4.0 KB copied, about 20 s left"
    following.update([], {})
    assert following.line(40.0) == "2 moved, 0 moving: 4.0 KB of 4.0 KB copied"


def test_what_the_controller_begins_later_is_counted_when_it_begins() -> None:
    following = Following()
    following.update([move(0)], {(1, "t", 0): 1000})
    following.update([move(5)], {(1, "t", 5): 500})
    assert (following.ended, following.moving, following.copied_bytes, following.to_copy_bytes) == (1, 1, 1000, 1500)


def test_a_change_of_order_copies_nothing() -> None:
    following = Following()
    following.update([move(0, adding=())], {(1, "t", 0): 1000})
    assert following.line(1.0) == "0 moved, 1 moving: 0 B of 0 B copied"
