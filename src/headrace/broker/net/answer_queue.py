"""Answers leave in the order of their requests: each request that waits has a slot, and one that is done early waits
for those before it."""

from collections import deque

from headrace.broker.net.outbox import Chunk, release
from headrace.broker.net.request import Request


class AnswerQueue(deque[Request]):
    """The requests of one connection that have no answer yet, or whose answer may not leave yet."""

    def pop_ready(self) -> list[Chunk] | None:
        """All answers that may leave now, as they are to be sent; None: the first one is not there yet."""
        if not self or self[0].answer is None:
            return None
        out: list[Chunk] = []
        answers = 0
        while self and (answer := self[0].answer) is not None:
            self.popleft()
            answers += 1
            if isinstance(answer, bytes):
                if answer:
                    out.append(answer)
            else:
                out.extend(answer)
        return out if answers == 1 else joined(out)

    def abandon(self) -> None:
        """Nobody will read the answers."""
        slots = list(self)
        self.clear()
        for request in slots:
            if request.answer is not None:
                release(request.answer if isinstance(request.answer, list) else ())
            elif request.waiter is not None:
                request.waiter.abandon()

    def give_way(self) -> None:
        """A follower sends a second Fetch when it has something to add: then the first need not wait any longer.

        Nor when this broker stops.
        """
        waiter = self[-1].waiter if self else None
        if getattr(waiter, "gives_way", False):
            waiter.expire()  # type: ignore[union-attr]


def joined(chunks: list[Chunk]) -> list[Chunk]:
    """Neighbouring bytes as one, so that they leave in one call."""
    if all(chunk.__class__ is bytes for chunk in chunks):
        return [b"".join(chunks)] if chunks else []  # type: ignore[arg-type]
    result: list[Chunk] = []
    run: list[bytes] = []
    for chunk in chunks:
        if isinstance(chunk, bytes):
            run.append(chunk)
        else:
            if run:
                result.append(b"".join(run))
                run = []
            result.append(chunk)
    if run:
        result.append(b"".join(run))
    return result
