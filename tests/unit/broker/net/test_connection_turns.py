"""One connection: memory that follows what arrived, and turns of the loop that others get."""

from random import Random
from typing import Any

import pytest

from headrace.broker.net import receive_buffer
from headrace.broker.net.frame_memory import FREED_BYTES
from headrace.broker.net.limits import MemoryBudget
from headrace.broker.net.loop_time import SHARE_S, LoopTime
from headrace.broker.net.receive_buffer import (
    BUFFER_BYTES,
    BUFFER_BYTES_BUSY,
    BUFFER_BYTES_KEPT,
    MAPPED_STEP_BYTES,
)
from tests.unit.broker.fakes import FakeLoop, Peer, answer_to, frame

# ---- memory


def test_the_buffer_grows_with_what_arrived_not_with_what_was_announced() -> None:
    peer = Peer()
    body = bytes(50 << 20)
    data = frame(1, body=body)
    sent = 0
    while sent < len(data):
        peer.send(data[sent : sent + 10_000])
        sent += 10_000
        assert peer.budget.used_bytes <= max(BUFFER_BYTES_BUSY, sent + MAPPED_STEP_BYTES)
    assert peer.answers == [1]
    assert len(peer.router.bodies[0]) == len(body)
    for _ in range(10):
        peer.loop.turn()
    assert peer.budget.used_bytes == BUFFER_BYTES_BUSY - BUFFER_BYTES


def test_bytes_of_a_large_frame_are_never_moved_once_it_has_memory_of_its_own() -> None:
    peer = Peer()
    data = frame(1, body=Random(4).randbytes(6 << 20))
    peer.send(data[: 1 << 20], chunk=300_000)
    memory = peer.connection.inbox.buf
    assert len(memory) == len(data)
    peer.send(data[1 << 20 : -1], chunk=300_000)
    assert peer.connection.inbox.buf is memory
    peer.send(data[-1:] + frame(2))
    assert peer.answers == [1, 2]
    assert peer.router.bodies[0] == data[14:]
    assert peer.connection.inbox.buf is not memory


def test_the_memory_of_large_frames_goes_back_in_portions() -> None:
    """Thirty connections closed at once must not unmap three gigabytes in one turn."""
    budget, loop = MemoryBudget(1 << 30), FakeLoop()
    peers = [Peer(budget=budget, loop=loop) for _ in range(3)]
    for peer in peers:
        peer.connection.inbox._frame_memory = peers[0].connections.frame_memory
        peer.send(frame(1, body=bytes(30 << 20))[:-1])
    assert budget.used_bytes > 89 << 20
    for peer in peers:
        peer.lose()
    for _ in range(100):
        before = budget.used_bytes
        loop.turn()
        assert before - budget.used_bytes <= FREED_BYTES
        if not budget.used_bytes:
            break
    assert budget.used_bytes == 0 and not loop.ready


def test_a_view_that_somebody_kept_outlives_the_frame() -> None:
    peer = Peer()
    kept: list[memoryview] = []

    def keep(request: Any) -> bytes:
        kept.append(request.view[request.pos : request.end])
        return answer_to(request.correlation_id)

    peer.router.decide = keep
    body = Random(5).randbytes(20 << 20)
    peer.send(frame(1, body=body))
    for _ in range(10):
        peer.loop.turn()
    assert kept[0] == body
    assert peer.budget.used_bytes == BUFFER_BYTES_BUSY - BUFFER_BYTES


def test_a_frame_that_the_system_has_no_memory_for_closes_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(size: int) -> Any:
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr(receive_buffer, "reserve", refuse)
    peer = Peer()
    peer.send(frame(1, body=bytes(10 << 20)))
    assert peer.transport.aborted
    peer.lose()
    assert peer.budget.used_bytes == 0


# ---- turns of the loop


def test_a_slow_request_gives_others_their_turn() -> None:
    peer = Peer()

    def slow(request: Any) -> bytes:
        peer.now += 2 * SHARE_S
        return answer_to(request.correlation_id)

    peer.router.decide = slow
    peer.send(b"".join(frame(n) for n in range(5)))
    assert peer.router.seen == [0]
    for seen in range(2, 6):
        peer.loop.turn()
        assert len(peer.router.seen) == seen, "one in each turn"
    assert peer.answers == [0, 1, 2, 3, 4]


def test_one_turn_serves_as_many_connections_as_there_is_time_for() -> None:
    """Hundreds that each take a millisecond: the rest comes in the next turns, in the order in which it came."""
    loop = FakeLoop()
    loop_time = LoopTime(loop)  # type: ignore[arg-type]
    peers = [Peer(loop=loop, loop_time=loop_time) for _ in range(100)]
    served: list[int] = []

    def serve(number: int, peer: Peer) -> Any:
        def decide(request: Any) -> bytes:
            peer.now += 0.001
            served.append(number)
            return answer_to(request.correlation_id)

        return decide

    for number, peer in enumerate(peers):
        peer.router.decide = serve(number, peer)
        peer.send(frame(1))
    first = len(served)
    assert first <= 2 * SHARE_S / 0.001 + 2
    while loop.ready:
        before = len(served)
        loop.turn()
        assert len(served) - before <= 2 * SHARE_S / 0.001 + 2
    assert served == list(range(100))
    assert all(peer.transport.reading and peer.answers == [1] for peer in peers)


def test_when_a_turn_is_over_little_is_read() -> None:
    peer = Peer()
    data = frame(1, body=bytes(20 << 20))
    peer.send(data[: 2 << 20])
    peer.connection._loop_time.used_up = True
    peer.send(data[2 << 20 :])
    assert not peer.transport.reading
    assert len(peer.backlog) >= len(data) - (2 << 20) - BUFFER_BYTES
    peer.connection._loop_time.wait(peer.connection)
    for _ in range(5):
        peer.loop.turn()
        peer.pump()
    assert peer.answers == [1]


def test_a_large_buffer_goes_with_its_frame_and_a_middling_one_when_idle() -> None:
    peer = Peer()
    peer.send(frame(1, body=bytes(BUFFER_BYTES_KEPT + 1)))
    assert len(peer.connection.inbox.buf) == BUFFER_BYTES_BUSY
    peer.connection.shrink()
    assert len(peer.connection.inbox.buf) == BUFFER_BYTES
    peer.loop.turn()
    assert peer.budget.used_bytes == 0
    peer.send(frame(2, body=bytes(1 << 20)))
    assert peer.budget.used_bytes == len(peer.connection.inbox.buf) - BUFFER_BYTES > 0
    peer.lose()
    assert peer.budget.used_bytes == 0


def test_half_a_frame_survives_shrinking() -> None:
    peer = Peer()
    data = frame(1, body=bytes(range(256)) * 400)
    peer.send(data[:70_000])
    peer.connection.shrink()
    peer.send(data[70_000:])
    assert peer.router.bodies == [bytes(range(256)) * 400]


def test_a_parked_request_does_not_keep_its_buffer() -> None:
    peer = Peer()
    peer.router.park_all()
    peer.send(frame(1, body=bytes(10 << 20)))
    assert len(peer.router.parked[1].buf) == 0 and len(peer.router.parked[1].view) == 0


def test_small_requests_with_large_answers_are_sent_as_they_come() -> None:
    """Five hundred bytes of requests must not pile up a gigabyte of answers."""
    peer = Peer()
    peer.router.decide = lambda request: answer_to(request.correlation_id, 1 << 20)
    peer.transport.window = 0
    peer.send(b"".join(frame(n) for n in range(40)))
    assert len(peer.router.seen) <= 2
    assert len(peer.transport.pending) <= 3 << 20
    peer.transport.peer_reads(None)
    assert peer.answers == list(range(40))


def test_without_memory_a_connection_waits_and_then_goes_on() -> None:
    budget = MemoryBudget(600 << 10)
    a, b = Peer(budget=budget), Peer(budget=budget)
    big = frame(1, body=bytes(400 << 10))
    a.send(big[: 300 << 10])
    b.send(big[: 300 << 10])  # overdraws: the first in line
    c = Peer(budget=budget)
    c.send(big)
    assert not c.transport.reading and c.answers == [] and c.backlog
    b.send(big[300 << 10 :])
    assert b.answers == [1], "its frame completes although the budget is spent"
    a.send(big[300 << 10 :])
    assert a.answers == [1]
    c.pump()
    assert c.answers == [1]
    for peer in (a, b, c):
        peer.lose()
    assert budget.used_bytes == 0 and not budget.pressed


def test_busy_connections_give_way_to_those_that_wait() -> None:
    """A buffer that is kept for speed must not starve others for good."""
    budget = MemoryBudget(600 << 10)
    busy = [Peer(budget=budget) for _ in range(2)]
    newcomer = Peer(budget=budget)
    big = frame(1, body=bytes(400 << 10))
    for peer in busy:
        peer.send(big)
    for peer in busy:
        peer.send(big[:-10])  # always half a frame in hand
    newcomer.send(big)
    for _ in range(4):
        for peer in busy:
            peer.send(big[-10:] + big[:-10])
        newcomer.pump()
    assert newcomer.answers == [1]
    assert all(len(peer.answers) >= 4 for peer in busy)


def test_every_frame_completes_on_a_tiny_budget() -> None:
    for seed in range(30):
        dice = Random(seed)
        budget = MemoryBudget(dice.choice([0, 100 << 10, 700 << 10]))
        loop = FakeLoop()
        peers = [Peer(budget=budget, loop=loop) for _ in range(6)]
        wanted: list[list[bytes]] = []
        rest: list[bytes] = []
        for _ in peers:
            bodies = [bytes([dice.randrange(256)]) * dice.choice([10, 20_000, 300_000, 900_000]) for _ in range(4)]
            wanted.append(bodies)
            rest.append(b"".join(frame(n, body=body) for n, body in enumerate(bodies)))
        for _ in range(4000):
            number = dice.randrange(len(peers))
            count = dice.choice([100, 30_000, 500_000])
            piece, rest[number] = rest[number][:count], rest[number][count:]
            peers[number].send(piece)
            loop.turn()
            for peer in peers:
                peer.pump()
            if not any(rest) and not any(peer.backlog for peer in peers):
                break
        assert [peer.router.bodies for peer in peers] == wanted, seed
        for peer in peers:
            peer.connection.shrink()
        assert budget.used_bytes == 0 and not budget.pressed


def test_a_connection_lost_while_in_line_leaves_it() -> None:
    budget = MemoryBudget(0)
    first, second, third = (Peer(budget=budget) for _ in range(3))
    big = frame(1, body=bytes(100_000))
    for peer in (first, second, third):
        peer.send(big[:50_000])
    second.lose()
    first.lose()
    third.pump()
    third.send(big[50_000:])
    assert third.answers == [1]
    third.connection.shrink()
    assert budget.used_bytes == 0 and not budget.pressed
