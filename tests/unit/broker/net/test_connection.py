"""One connection: frames in any pieces, answers in request order, memory that follows what arrived, orderly ends."""

import struct
from random import Random
from typing import Any

import pytest

from headrace.broker.net import connection as subject
from headrace.broker.net.connection import NEXT, TURN_FRAMES, State
from headrace.broker.net.limits import ConnectionLimits
from headrace.broker.net.receive_buffer import BUFFER_BYTES
from headrace.errors import Err, KafkaError
from headrace.protocol.primitives import ProtocolError
from tests.unit.broker.fakes import (
    CONTROL_BYTES_MAX,
    FETCH,
    METADATA,
    PARKED_MAX,
    PRODUCE,
    Peer,
    answer_to,
    frame,
)


class Piece:
    """A slice of a file, as far as the outbox knows."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.length = len(data)
        self.pins = 1

    def read(self, length: int, at: int = 0) -> bytes:
        return self.data[at : at + length]

    def release(self) -> None:
        self.pins -= 1
        assert self.pins == 0, "released twice"


# ---- frames


def test_frames_split_at_every_byte() -> None:
    frames = frame(1, body=b"first") + frame(2, METADATA, b"x" * 33) + frame(3)
    for cut in range(len(frames) + 1):
        peer = Peer()
        peer.send(frames[:cut])
        peer.send(frames[cut:])
        assert peer.answers == [1, 2, 3]
        assert peer.router.bodies == [b"first", b"x" * 33, b""]


def test_one_byte_at_a_time() -> None:
    peer = Peer()
    peer.send(b"".join(frame(n, body=bytes(n)) for n in range(50)), chunk=1)
    assert peer.answers == list(range(50))


def test_many_frames_in_one_read_are_answered_in_one_write() -> None:
    peer = Peer()
    writes: list[int] = []
    take = peer.transport.write

    def counted(data: bytes) -> None:
        writes.append(len(data))
        take(data)

    peer.transport.write = counted  # type: ignore[method-assign]
    peer.send(b"".join(frame(n) for n in range(100)))
    assert peer.answers == list(range(100)) and len(writes) == 1


def test_random_sizes_in_random_pieces() -> None:
    for seed in range(40):
        dice = Random(seed)
        bodies = [dice.randbytes(dice.choice([0, 5, 100, 3000, 20_000, 200_000])) for _ in range(dice.randint(1, 30))]
        data = b"".join(frame(n, dice.choice([PRODUCE, METADATA]), body) for n, body in enumerate(bodies))
        peer = Peer()
        for _ in range(100_000):
            if not data:
                break
            count = dice.choice([1, 7, 1000, 65_536, len(data)])
            peer.send(data[:count])
            data = data[count:]
        peer.loop.turn()
        assert peer.router.bodies == bodies, seed
        assert peer.answers == list(range(len(bodies)))


@pytest.mark.parametrize("length", [-1, -(1 << 31), 0, 9, 101, (1 << 31) - 1])
def test_impossible_lengths_close_the_connection(length: int) -> None:
    peer = Peer(frame_bytes_max=100)
    peer.send(frame(1) + struct.pack(">i", length) + bytes(50))
    assert peer.answers == [1], "the answer to the good request comes first"
    assert peer.transport.closing and not peer.transport.aborted
    assert peer.connections.metrics.protocol_errors == 1
    assert len(peer.router.seen) == 1


def test_the_largest_frame_allowed_is_taken() -> None:
    peer = Peer(frame_bytes_max=100)
    peer.send(frame(1, body=bytes(90)))
    assert peer.answers == [1]


def test_only_a_produce_or_a_fetch_may_be_very_large() -> None:
    """Refused by its first bytes: nothing is received that will not be handled."""
    for api, taken in ((PRODUCE, True), (FETCH, True), (METADATA, False)):
        peer = Peer()
        peer.send(frame(1, api, bytes(CONTROL_BYTES_MAX))[:100])
        assert peer.transport.closing is not taken


# ---- order


def test_a_produce_is_handled_behind_parked_ones_and_answers_keep_their_order() -> None:
    peer = Peer()
    peer.router.park_all()
    peer.send(frame(1) + frame(2))
    assert peer.router.seen == [1, 2], "appended at once, so that one fsync serves both"
    peer.router.decide = lambda request: answer_to(request.correlation_id)  # refused: answered at once
    peer.send(frame(3))
    assert peer.answers == []
    peer.router.complete(2)
    assert peer.answers == []
    peer.router.complete(1)
    assert peer.answers == [1, 2, 3]


@pytest.mark.parametrize("first", [PRODUCE, FETCH])
@pytest.mark.parametrize("second", [FETCH, METADATA])
def test_any_other_request_waits_for_the_answers_before_it(first: int, second: int) -> None:
    peer = Peer()
    peer.router.park_all()
    peer.send(frame(1, first) + frame(2, second) + frame(3))
    assert peer.router.seen == [1]
    peer.router.decide = lambda request: answer_to(request.correlation_id)
    peer.router.complete(1)
    assert peer.router.seen == [1, 2, 3]
    assert peer.answers == [1, 2, 3]


def test_a_produce_waits_behind_a_parked_fetch() -> None:
    peer = Peer()
    peer.router.park_all()
    peer.send(frame(1, FETCH) + frame(2, PRODUCE))
    assert peer.router.seen == [1]


def test_requests_without_an_answer_keep_their_place() -> None:
    """acks=0 between others: no bytes, and no change of order."""
    peer = Peer()
    peer.router.decide = lambda request: {1: None, 2: b"", 3: None, 4: b"", 5: answer_to(5)}[request.correlation_id]
    peer.send(b"".join(frame(n) for n in range(1, 6)))
    assert peer.router.seen == [1, 2, 3, 4, 5] and peer.answers == []
    peer.router.complete(3)
    peer.router.complete(1)
    assert peer.answers == [1, 3, 5]
    assert not peer.connection.waiting


def test_a_parked_answer_never_overtakes_one_of_the_same_turn() -> None:
    """A failing disk completes parked requests in the middle of handling the next one."""
    peer = Peer()

    def decide(request: Any) -> Any:
        if request.correlation_id == 2:
            return None
        if request.correlation_id == 3:
            peer.router.complete(2)
        return answer_to(request.correlation_id)

    peer.router.decide = decide
    peer.send(frame(1) + frame(2) + frame(3) + frame(4))
    assert peer.answers == [1, 2, 3, 4]


def test_random_orders_of_completion() -> None:
    for seed in range(200):
        dice = Random(seed)
        peer = Peer()
        kinds = [dice.choice([PRODUCE, PRODUCE, FETCH, METADATA]) for _ in range(40)]
        silent = {n for n in range(40) if kinds[n] == PRODUCE and dice.random() < 0.2}

        def decide(request: Any, dice: Random = dice, silent: set[int] = silent, peer: Peer = peer) -> Any:
            if peer.router.parked and dice.random() < 0.1:
                number = dice.choice(list(peer.router.parked))
                peer.router.complete(number)
            if request.correlation_id in silent:
                return b""
            return None if dice.random() < 0.5 else answer_to(request.correlation_id, dice.randrange(50))

        peer.router.decide = decide
        data = b"".join(frame(n, kinds[n]) for n in range(40))
        while data or peer.router.parked:
            if data and dice.random() < 0.5:
                count = dice.randint(1, 60)
                peer.send(data[:count])
                data = data[count:]
            elif peer.router.parked:
                peer.router.complete(dice.choice(list(peer.router.parked)))
        assert peer.router.seen == list(range(40)), seed
        assert peer.answers == [n for n in range(40) if n not in silent], seed


def test_parked_requests_are_limited() -> None:
    peer = Peer()
    peer.router.park_all()
    peer.send(b"".join(frame(n) for n in range(PARKED_MAX + 10)))
    for _ in range(3):
        peer.loop.turn()
    assert len(peer.router.seen) == PARKED_MAX
    peer.router.complete(0)
    assert len(peer.router.seen) == PARKED_MAX + 1


def test_one_connection_gives_others_their_turn() -> None:
    """Five thousand small requests in one buffer would hold the loop for a tenth of a second."""
    peer = Peer()
    peer.send(b"".join(frame(n) for n in range(3 * TURN_FRAMES)))
    assert len(peer.router.seen) == TURN_FRAMES
    peer.loop.turn()
    assert len(peer.router.seen) == 2 * TURN_FRAMES
    peer.send(frame(3 * TURN_FRAMES))  # comes while some are left: no double turn, no lost one
    for _ in range(5):
        peer.loop.turn()
    assert peer.router.seen == list(range(3 * TURN_FRAMES + 1)) == peer.answers
    assert not peer.loop.ready


def test_a_full_buffer_of_frames_left_for_the_next_turn_is_not_read_into() -> None:
    peer = Peer()
    size = len(frame(0))
    count = BUFFER_BYTES // size + 1000
    peer.send(b"".join(frame(n) for n in range(count)))  # more than the buffer holds
    for _ in range(20):
        peer.loop.turn()
        peer.pump()
    assert peer.answers == list(range(count))


# ---- slow readers


def test_nothing_is_parsed_while_the_peer_does_not_read() -> None:
    peer = Peer()
    peer.transport.window = 0
    peer.send(frame(1))
    assert peer.router.seen == [1]
    for number in range(2, 3000):
        peer.send(frame(number))
    assert peer.router.seen == [1], "not one more request is handled"
    assert not peer.transport.reading and peer.backlog, "and the rest stays in the kernel"
    assert len(peer.connection.inbox.buf) == BUFFER_BYTES
    peer.transport.peer_reads(None)
    for _ in range(20):
        peer.loop.turn()
        peer.pump()
    assert peer.answers == list(range(1, 3000))


def test_answers_of_parked_requests_queue_behind_a_slow_reader() -> None:
    peer = Peer()
    peer.router.park_all()
    peer.send(frame(1) + frame(2))
    peer.transport.window = 3
    peer.router.complete(1)
    peer.router.complete(2)
    peer.router.decide = lambda request: answer_to(request.correlation_id)
    peer.send(frame(3))
    assert peer.router.seen == [1, 2]
    peer.transport.peer_reads(None)
    assert peer.answers == [1, 2, 3]


# ---- slices


def test_slices_are_released_once_sent() -> None:
    peer = Peer()
    piece = Piece(bytes(10))
    peer.router.decide = lambda request: [struct.pack(">ii", 14, 1), piece]  # type: ignore[list-item]
    peer.send(frame(1, FETCH))
    assert peer.answers == [1] and piece.pins == 0


@pytest.mark.parametrize("when", ["sending", "parked", "filled behind", "after the end"])
def test_slices_are_released_when_the_connection_is_lost(when: str) -> None:
    peer = Peer()
    piece = Piece(bytes(1 << 20))
    answer: Any = [struct.pack(">ii", 4 + (1 << 20), 1), piece]
    if when == "sending":
        peer.transport.window = 1000
        peer.router.decide = lambda request: answer
        peer.send(frame(1, FETCH))
        assert piece.pins == 1
        peer.lose()
    elif when == "parked":
        peer.transport.window = 0
        peer.router.park_all()
        peer.send(frame(1, FETCH))
        peer.router.complete(1, answer)
        peer.lose()
    elif when == "filled behind":
        peer.router.park_all()
        peer.send(frame(1) + frame(2))
        peer.router.complete(2, answer)
        peer.lose()
    else:
        peer.lose()
        peer.connection.outbox.send(answer)
    assert piece.pins == 0


def test_a_truncated_file_ends_the_connection_without_another_byte() -> None:
    peer = Peer()
    piece = Piece(bytes(100))
    piece.length = 200
    large: Any = [struct.pack(">ii", 204, 1), piece]
    peer.router.decide = lambda request: large if request.correlation_id == 1 else answer_to(2)
    peer.send(frame(1, FETCH) + frame(2, METADATA))
    assert peer.transport.aborted and piece.pins == 0
    assert len(peer.transport.delivered) == 108, "an answer after a hole would be read as records"
    assert peer.router.seen == [1]


# ---- ends


def test_protocol_errors_let_earlier_answers_leave_first() -> None:
    peer = Peer()
    peer.router.decide = lambda request: None if request.correlation_id == 1 else answer_to(2)
    peer.send(frame(1) + frame(2) + b"\xff\xff\xff\xff junk")
    assert not peer.transport.closing
    peer.send(b"more junk" * 1000)
    assert not peer.transport.reading and peer.connections.metrics.protocol_errors == 1
    peer.router.complete(1)
    assert peer.answers == [1, 2] and peer.transport.closing and not peer.transport.aborted


def test_protocol_errors_behind_a_slow_reader() -> None:
    peer = Peer()
    peer.transport.window = 0
    peer.send(frame(1) + b"\0\0\0\0")
    assert not peer.transport.closing
    peer.transport.peer_reads(None)
    assert peer.answers == [1] and peer.transport.closing


@pytest.mark.parametrize("error", [ProtocolError("no"), KafkaError(Err.INVALID_REQUEST)])
def test_a_request_that_cannot_be_read_closes_its_connection_only(error: Exception) -> None:
    peer = Peer()

    def decide(request: Any) -> Any:
        if request.correlation_id == 2:
            raise error
        return answer_to(request.correlation_id)

    peer.router.decide = decide
    peer.send(frame(1) + frame(2) + frame(3))
    assert peer.router.seen == [1, 2] and peer.answers == [1] and peer.transport.closing


def test_a_bug_in_a_handler_closes_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    peer = Peer()

    def decide(request: Any) -> Any:
        raise ZeroDivisionError

    peer.router.decide = decide
    peer.send(frame(1))
    assert peer.transport.aborted and peer.connections.metrics.requests_failed == 1


def test_finish_answers_what_is_in_flight_and_takes_nothing_more() -> None:
    peer = Peer()
    peer.router.park_all()
    peer.send(frame(1) + frame(2))
    peer.connection.finish()
    assert not peer.transport.closing and not peer.transport.reading
    peer.router.complete(2)
    peer.router.complete(1)
    assert peer.answers == [1, 2] and peer.transport.closing and not peer.transport.aborted


def test_finish_waits_for_a_slow_reader_and_closes_the_idle_at_once() -> None:
    slow, idle = Peer(), Peer()
    slow.transport.window = 0
    slow.send(frame(1))
    slow.connection.finish()
    idle.connection.finish()
    assert idle.transport.closing and not slow.transport.closing
    slow.transport.peer_reads(None)
    assert slow.transport.closing and slow.answers == [1]


def test_loss_tells_what_waits() -> None:
    class Waits:
        abandoned = 0

        def abandon(self) -> None:
            self.abandoned += 1

    waits = Waits()
    peer = Peer()

    def decide(request: Any) -> None:
        request.waiter = waits

    peer.router.decide = decide
    peer.send(frame(1, FETCH))
    request = peer.router.parked[1]
    peer.lose()
    assert waits.abandoned == 1
    request.complete(answer_to(1))  # too late, and nobody minds
    assert peer.transport.delivered == b""


def test_connections_over_a_limit_are_refused_and_not_counted() -> None:
    limits = ConnectionLimits(1, 10, {})
    first, second = Peer(limits=limits), Peer(limits=limits)
    assert second.transport.aborted and second.connections.metrics.connections_refused == 1
    second.lose()
    assert len(limits) == 1
    first.lose()
    assert len(limits) == 0
    assert not Peer(limits=limits).transport.aborted


def test_addresses_of_a_socket_for_both_families_are_ipv4_ones() -> None:
    assert subject._address(("::ffff:10.1.2.3", 7)) == ("10.1.2.3", 7)
    assert subject._address(("::1", 7, 0, 0)) == ("::1", 7)  # type: ignore[arg-type]
    assert subject._address(None) == ("", 0)


# ---- bytes that are there before the loop says so


class Early:
    """An outbox past which something has come already."""

    def __init__(self, outbox: Any, data: bytes) -> None:
        self._outbox = outbox
        self.data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outbox, name)

    def receive(self, room: memoryview) -> int:
        count = min(len(room), len(self.data), 7)
        room[:count] = self.data[:count]
        self.data = self.data[count:]
        return count


def test_what_is_there_early_is_handled_like_all_else() -> None:
    peer = Peer()
    frames = b"".join(frame(number, body=bytes(number)) for number in range(5))
    peer.send(frames[:20])
    early = Early(peer.connection.outbox, frames[20:])
    peer.connection.outbox = early
    while early.data:
        peer.connection.receive_now()
    peer.connection.receive_now()
    assert peer.answers == list(range(5))


def test_nothing_is_read_early_that_would_not_be_read_at_all() -> None:
    peer = Peer()
    early = Early(peer.connection.outbox, frame(1))
    peer.connection.outbox = early
    peer.connection._read(False)
    peer.connection.receive_now()
    peer.connection._read(True)
    peer.connection.finish()
    peer.connection.receive_now()
    peer.connection.connection_lost(None)
    peer.connection.receive_now()
    assert early.data == frame(1) and peer.answers == []


def test_a_connection_goes_through_its_states_in_one_direction() -> None:
    assert set(NEXT) == set(State) and not NEXT[State.CLOSED]
    for state, following in NEXT.items():
        assert all(later.value > state.value for later in following)
    peer = Peer()
    seen = [peer.connection.state]
    peer.router.park_all()
    peer.send(frame(1))
    peer.connection.finish()
    assert not peer.transport.closing, "one is not answered yet"
    seen.append(peer.connection.state)
    peer.router.complete(1)
    assert peer.transport.closing and peer.answers == [1]
    peer.lose()
    seen.append(peer.connection.state)
    assert seen == [State.OPEN, State.FINISHING, State.CLOSED]
    refused = Peer(limits=ConnectionLimits(0, 1, {}))
    seen = [refused.connection.state]
    refused.lose()
    assert refused.transport.aborted and [*seen, refused.connection.state] == [State.NEW, State.CLOSED]
