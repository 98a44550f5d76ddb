"""Memory for receive buffers and numbers of connections: limits hold, and whoever waits gets on in the end."""

from functools import partial
from random import Random

from headrace.broker.net.limits import ConnectionLimits, MemoryBudget


class Client:
    """Wants bytes for one frame after another, step by step, and gives them back when it is whole."""

    def __init__(self, budget: MemoryBudget, frames: list[list[int]]) -> None:
        self.budget = budget
        self.frames = frames
        self.held = 0
        self.stuck = False
        self.done = 0

    def step(self) -> None:
        if self.done == len(self.frames) or self.stuck:
            return
        steps = self.frames[self.done]
        if not steps:
            self.done += 1
            held, self.held = self.held, 0
            self.budget.give(self, held)
        elif self.budget.take(self, steps[0], self.room_again):
            self.held += steps.pop(0)
        else:
            self.stuck = True

    def room_again(self) -> None:
        steps = self.frames[self.done]
        if steps and self.budget.take(self, steps[0], self.room_again):
            self.held += steps.pop(0)
            self.stuck = False


def test_within_the_limit_nobody_waits() -> None:
    budget = MemoryBudget(100)
    assert budget.take("a", 60, lambda: None) and budget.take("b", 40, lambda: None)
    assert budget.used_bytes == 100 and not budget.pressed
    budget.give("a", 60)
    assert budget.used_bytes == 40


def test_one_may_overdraw_and_only_one() -> None:
    budget = MemoryBudget(100)
    assert budget.take("a", 90, lambda: None)
    assert budget.take("b", 90, lambda: None)  # the first in line: its frame must be able to complete
    assert budget.take("b", 500, lambda: None)
    assert not budget.take("c", 20, lambda: None)
    assert budget.used_bytes == 680 and budget.pressed


def test_room_is_given_out_even_while_the_one_who_overdraws_stalls() -> None:
    budget = MemoryBudget(100)
    budget.take("a", 90, lambda: None)
    budget.take("b", 20, lambda: None)  # overdraws, and its peer says nothing more
    got: list[str] = []

    def c_again() -> None:
        if budget.take("c", 30, c_again):
            got.append("c")

    assert not budget.take("c", 30, c_again)
    budget.give("a", 90)
    assert got == ["c"]
    assert budget.take("d", 40, lambda: None)
    assert budget.used_bytes == 90


def test_those_in_line_are_served_in_order() -> None:
    budget = MemoryBudget(10)
    budget.take("a", 10, lambda: None)
    budget.take("b", 10, lambda: None)
    order: list[str] = []

    def again(name: str) -> None:
        if name not in order and budget.take(name, 10, lambda: again(name)):
            order.append(name)

    for name in "cdef":
        assert not budget.take(name, 10, partial(again, name))
    for name in "abcdef":
        budget.give(name, 10)
    assert order == list("cdef")
    assert budget.used_bytes == 0 and not budget.pressed


def test_leaving_passes_the_place_on() -> None:
    budget = MemoryBudget(10)
    budget.take("a", 10, lambda: None)
    budget.take("b", 5, lambda: None)
    woken: list[str] = []
    budget.take("c", 5, lambda: woken.append("c"))
    budget.take("d", 5, lambda: woken.append("d"))
    budget.leave("c")
    assert woken == []
    budget.leave("b")
    assert woken == ["d"]


def test_many_in_line_cost_no_stack() -> None:
    budget = MemoryBudget(10)
    budget.take("first", 10, lambda: None)
    budget.take("second", 1, lambda: None)
    clients = [Client(budget, [[1]]) for _ in range(5000)]
    for client in clients:
        client.step()
    budget.give("first", 10)
    budget.give("second", 1)
    for _ in range(5000):
        for client in clients:
            client.step()
        if all(client.done for client in clients):
            break
    assert all(client.done for client in clients) and budget.used_bytes == 0


def test_every_frame_completes_whatever_the_limit() -> None:
    for seed in range(60):
        dice = Random(seed)
        budget = MemoryBudget(dice.choice([0, 1, 50, 1000]))
        clients = [
            Client(budget, [[dice.randint(1, 200) for _ in range(dice.randint(1, 4))] for _ in range(5)])
            for _ in range(dice.randint(1, 12))
        ]
        for _ in range(20_000):
            dice.choice(clients).step()
            if all(client.done == 5 for client in clients):
                break
        assert all(client.done == 5 for client in clients), seed
        assert budget.used_bytes == 0 and not budget.pressed


def test_connections_in_all_and_per_address() -> None:
    limits = ConnectionLimits(4, 2, {"10.0.0.9": 3, "10.0.0.8": 0})
    assert limits.admit("10.0.0.1") is None and limits.admit("10.0.0.1") is None
    refusal = limits.admit("10.0.0.1")
    assert refusal is not None and "max.connections.per.ip=2" in refusal and "10.0.0.1" in refusal
    refusal = limits.admit("10.0.0.8")
    assert refusal is not None and "max.connections.per.ip=0" in refusal
    assert limits.admit("10.0.0.9") is None and limits.admit("10.0.0.9") is None
    refusal = limits.admit("10.0.0.9")
    assert refusal is not None and "max.connections=4" in refusal
    limits.release("10.0.0.1")
    assert limits.admit("10.0.0.9") is None and len(limits) == 4
    for address in ("10.0.0.1", "10.0.0.9", "10.0.0.9", "10.0.0.9"):
        limits.release(address)
    assert len(limits) == 0 and limits._by_address == {}
