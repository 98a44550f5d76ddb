"""Unfinished frames: progress is enough, silence and a trickle are not, and the broker's own pauses do not count."""

from headrace.broker.net.stalled_frames import LARGE_BYTES, RATE_MIN, RATE_MIN_PRESSED, StalledFrames
from tests.unit.broker.fakes import METADATA, Peer, frame

LIMIT_S = 30.0


class Sender:
    def __init__(self, unfinished: int) -> None:
        self.unfinished = unfinished


def cut_off(sender: Sender, rate: int, *, pressed: bool = False, minutes: int = 10) -> bool:
    """Does it lose its connection when it sends `rate` bytes in a second?"""
    stalled = StalledFrames[Sender]()
    for second in range(0, minutes * 60, 10):
        if list(stalled.found([sender], float(second), LIMIT_S, pressed)):
            return True
        sender.unfinished += 10 * rate
    return False


def test_silence_and_a_trickle_end_the_connection() -> None:
    assert cut_off(Sender(90 << 20), 0)
    assert cut_off(Sender(90 << 20), 1)
    assert cut_off(Sender(90 << 20), RATE_MIN - 200)


def test_a_slow_link_may_go_on() -> None:
    assert not cut_off(Sender(90 << 20), RATE_MIN)
    assert not cut_off(Sender(100 << 10), RATE_MIN, pressed=True), "a small frame holds little, even now"


def test_where_others_wait_large_frames_must_come_quicker() -> None:
    assert cut_off(Sender(LARGE_BYTES + 1), RATE_MIN_PRESSED - 1000, pressed=True)
    assert not cut_off(Sender(LARGE_BYTES + 1), RATE_MIN_PRESSED, pressed=True)


def test_one_frame_after_the_other_is_progress() -> None:
    stalled = StalledFrames[Sender]()
    sender = Sender(500_000)
    for second in range(0, 600, 10):
        assert not list(stalled.found([sender], float(second), LIMIT_S, False))
        sender.unfinished -= 500


def test_what_nobody_reads_is_not_blamed_on_the_sender() -> None:
    stalled = StalledFrames[Sender]()
    sender = Sender(500_000)
    for second in range(0, 600, 10):
        sender.unfinished = 0 if second % 20 else 500_000  # paused in between
        assert not list(stalled.found([sender], float(second), LIMIT_S, False))


def test_a_connection_says_what_it_holds_for_an_unfinished_frame() -> None:
    peer = Peer()
    data = frame(1, body=bytes(100_000))
    peer.send(data[:1000])
    assert peer.connection.unfinished == 0, "it fits into what every connection has"
    peer.send(data[1000:90_000])
    assert peer.connection.unfinished == 90_000
    peer.send(data[90_000:])
    assert peer.connection.unfinished == 0
    peer.router.park_all()
    peer.send(frame(2) + frame(3, METADATA, bytes(50_000)))
    assert peer.connection.waiting and peer.connection.unfinished == 0, "whole, and waiting for its turn"
