"""A Fetch whose answer would come too soon (decision 0012)."""

from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable

from headrace.broker.net.request import Answer, Request


class HeldFetch:
    """Is served when its time has come, unless its connection is gone by then."""

    __slots__ = ("_request", "_serve", "_timer")

    def __init__(
        self, request: Request, serve: Callable[[], Answer | None], hold_s: float, loop: AbstractEventLoop
    ) -> None:
        self._request = request
        self._serve = serve
        self._timer: TimerHandle = loop.call_later(hold_s, self._due)

    def _due(self) -> None:
        request = self._request
        self.abandon()
        try:
            answer = self._serve()
        except Exception:
            request.fail()
            return
        if answer is not None:
            request.done(answer)

    def abandon(self) -> None:
        """Wait no longer: it is answered now, or its connection is gone. Both refer to this, which refers to them."""
        self._request.waiter = None
        self._timer.cancel()
