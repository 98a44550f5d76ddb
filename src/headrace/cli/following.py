"""`headrace cluster reassign --follow`: how far moves are, also those that the controller makes by itself."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from headrace.cli.output import print_json, with_admin
from headrace.client.admin.admin import Admin
from headrace.client.admin.operations import Move, Operations, TopicPartition
from headrace.terminal import size_text

POLL_S = 0.5
LINE_S = 5.0
"""A line at least so often while something moves."""
CALM_S = 6.0
"""`auto.balance` looks every two seconds: what has not begun by then has ended."""


class Following:
    """What was seen to move, and how much of it is copied. Pure."""

    def __init__(self) -> None:
        self._to_copy: dict[tuple[TopicPartition, int], int] = {}
        """Bytes by partition and the broker that it comes to."""
        self._copied: dict[tuple[TopicPartition, int], int] = {}
        self._moving: set[TopicPartition] = set()
        self._seen: set[TopicPartition] = set()
        self._began: tuple[float, int] | None = None

    @property
    def moving(self) -> int:
        return len(self._moving)

    @property
    def ended(self) -> int:
        return len(self._seen - self._moving)

    @property
    def copied_bytes(self) -> int:
        return sum(self._copied.values())

    @property
    def to_copy_bytes(self) -> int:
        return sum(self._to_copy.values())

    def update(self, moves: Sequence[Move], sizes: Mapping[tuple[int, str, int], int]) -> None:
        """`sizes`: bytes of replicas by broker, topic and partition."""
        self._moving = {(move.topic, move.partition) for move in moves}
        self._seen |= self._moving
        for move in moves:
            at = move.topic, move.partition
            whole = max((sizes.get((node, *at), 0) for node in move.replicas), default=0)
            for node in move.adding:
                self._to_copy[at, node] = whole
                self._copied[at, node] = min(sizes.get((node, *at), 0), whole)
        for at, node in self._to_copy:
            if at not in self._moving:
                self._copied[at, node] = self._to_copy[at, node]

    def left_s(self, now_s: float) -> float | None:
        """At the speed so far; None before there is one. What has not begun is not counted."""
        copied, left = self.copied_bytes, self.to_copy_bytes - self.copied_bytes
        if self._began is None:
            self._began = now_s, copied
        since_s, before = self._began
        if copied <= before or now_s <= since_s:
            return None
        return left * (now_s - since_s) / (copied - before)

    def line(self, now_s: float) -> str:
        left_s = self.left_s(now_s)
        left = f", about {left_s:.0f} s left" if left_s and self._moving else ""
        return (
            f"{self.ended} moved, {self.moving} moving: {size_text(self.copied_bytes)} of"
            f" {size_text(self.to_copy_bytes)} copied{left}"
        )


def follow_moves(bootstrap: str, as_json: bool) -> None:
    following = with_admin(bootstrap, lambda admin: _follow(admin, None if as_json else _print))
    if as_json:
        print_json({"moved": following.ended, "copied_bytes": following.copied_bytes})
    elif not following.ended:
        print("nothing is moving")


def _print(line: str) -> None:
    print(line, flush=True)


async def _follow(
    admin: Admin,
    show: Callable[[str], None] | None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Following:
    """Until nothing has moved for a while."""
    operations = Operations(admin)
    following = Following()
    moved_at, shown_at, shown = clock(), float("-inf"), (-1, -1)
    while clock() - moved_at < CALM_S:
        moves = await operations.moves()
        nodes = {node for move in moves for node in move.replicas}
        following.update(moves, await operations.replica_bytes(nodes) if moves else {})
        now = clock()
        if moves:
            moved_at = now
        state = following.ended, following.moving
        if show is not None and state != (0, 0) and (state != shown or (moves and now - shown_at >= LINE_S)):
            shown, shown_at = state, now
            show(following.line(now))
        await sleep(POLL_S)
    return following
