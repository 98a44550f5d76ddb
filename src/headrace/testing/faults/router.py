"""Between a broker's connections and its handlers: requests that a rule is about meet their fault, all others pass.

A request that meets one keeps its place in its connection's queue, and nothing behind it overtakes it.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Any

from headrace.broker.fastpath.fast_path import FastPath
from headrace.broker.net.connection import Routing
from headrace.broker.net.outbox import release
from headrace.broker.net.request import PRODUCE, Answer, Request
from headrace.broker.net.router import encode_answer, skip_tags
from headrace.errors import Err, KafkaError
from headrace.protocol.api import API, ApiKey
from headrace.protocol.headers import CLIENT_ID_AT
from headrace.protocol.primitives import ProtocolError
from headrace.testing.faults.error_answers import error_answer, lost_session, with_topic_errors
from headrace.testing.faults.rules import AFTER, Rule, Rules

HELD = -1
"""API of a request that has its fault before it: a connection lets a Produce overtake no other API's request."""
ANSWER_HEAD_BYTES = 8


class CarefulFastPath(FastPath):
    """Recognises nothing while there are faults to come: all requests have to pass the router."""

    __slots__ = ("_rules",)

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self._rules = rules

    def take(self, *frame: Any) -> Answer | Request | None:
        return None if self._rules.active else super().take(*frame)


class Interceptor:
    """headrace.broker.fastpath.interception.Interception by rules."""

    def __init__(self, rules: Rules, loop: AbstractEventLoop) -> None:
        self._rules = rules
        self._loop = loop

    def router(self, router: Routing) -> "FaultyRouter":
        return FaultyRouter(router, self._rules, self._loop)

    def fast_path(self) -> FastPath:
        return CarefulFastPath(self._rules)


class FaultyRouter:
    """A router that looks for a rule first."""

    def __init__(self, router: Routing, rules: Rules, loop: AbstractEventLoop) -> None:
        self._router = router
        self._rules = rules
        self._loop = loop
        self.respond = router.respond
        self.waited = router.waited
        self.turn_done = router.turn_done

    def route(self, request: Request) -> Answer | None:
        """As Routing."""
        rule = self._rules.find(request.api_key, request.client_id) if self._rules.active else None
        if rule is None:
            return self._router.route(request)
        if rule.error is not None and request.api_key == ApiKey.FETCH:
            message = _decoded(request)
            if message.session_epoch > 0:
                # It names no partitions that could be refused; the next one will.
                return _encoded(request, lost_session())
        self._rules.struck(rule)
        if not rule.delay_s:
            return self._strike(request, rule)
        copied = Copied(request)
        request.api_key = HELD
        self._loop.call_later(rule.delay_s, self._after_delay, copied, rule)
        return None

    def _after_delay(self, copied: "Copied", rule: Rule) -> None:
        if copied.connection.closed:
            return
        try:
            answer = self._strike(copied, rule)
        except (ProtocolError, KafkaError) as error:
            copied.connection.unreadable(error)
            return
        except Exception:
            copied.fail()
            return
        if answer is not None:
            copied.done(answer)

    def _strike(self, request: Request, rule: Rule) -> Answer | None:
        """What a rule does, once its delay is over."""
        if rule.error is not None:
            return self._refuse(request, rule.error)
        if rule.drop is None:
            return self._router.route(request)
        if rule.drop == AFTER:
            return self._answered(request, lambda answer: _lose(request, answer))
        request.api_key = HELD
        _lose(request)
        return None

    def _refuse(self, request: Request, error: Err) -> Answer | None:
        if request.api_key == ApiKey.METADATA:
            return self._answered(request, lambda answer: _refuse_topics(request, answer, error))
        message = _decoded(request)
        if request.api_key == PRODUCE and message.acks == 0:
            _lose(request)  # as Kafka does: there is no answer that could say it
            return None
        return _encoded(request, error_answer(API[request.api_key], request.version, message, error))

    def _answered(self, request: Request, then: Callable[[Answer], None]) -> Answer | None:
        """Handle a request; `then` gets its answer, now or later."""
        handled = Copied(request, then)
        request.api_key = HELD
        answer = self._router.route(handled)
        if answer is not None:
            then(answer)
        return None


class Copied(Request):
    """A request with bytes of its own, since a connection's are for the next one soon. Its answer goes to `then`, or
    into the place that the first request has in the queue."""

    __slots__ = ("_first", "_then")

    def __init__(self, first: Request, then: Callable[[Answer], None] | None = None) -> None:
        super().__init__(
            first.connection, first.api_key, first.version, first.correlation_id, first.client_id_length,
            CLIENT_ID_AT, first.end - first.frame, first.started,
        )  # fmt: skip
        self.buf = bytearray(first.view[first.frame : first.end])
        self.view = memoryview(self.buf)
        self._first = first
        self._then = then
        first.waiter = self

    def let_go(self) -> None:
        """These bytes are nobody else's."""

    def complete(self, answer: Answer) -> None:
        if self.connection.closed:
            if isinstance(answer, list):
                release(answer)
        elif self._then is not None:
            self._then(answer)
        else:
            self._first.complete(answer)

    def done(self, answer: Answer) -> None:
        if not self.connection.closed:
            self.connection.router.waited(self)
        self.complete(answer)

    def abandon(self) -> None:
        """The connection is lost: whoever works on this need not."""
        if self.waiter is not None:
            self.waiter.abandon()


def _decoded(request: Request) -> Any:
    """The message of a request, whose handler has not read it."""
    api, pos = API[request.api_key], request.pos + max(0, request.client_id_length)
    if request.version >= api.flexible_from:
        pos = skip_tags(request.buf, pos, request.end)
    return api.request.decoder(request.version)(request.buf, pos, request.end)[0]


def _encoded(request: Request, message: Any) -> bytes:
    return encode_answer(API[request.api_key], request.version, request.correlation_id, message)


def _lose(request: Request, answer: Answer = b"") -> None:
    """As if the network had failed: not one more byte."""
    if isinstance(answer, list):
        release(answer)
    request.connection.transport.abort()


def _refuse_topics(request: Request, answer: Answer, error: Err) -> None:
    assert isinstance(answer, bytes), "no slices of files in it"
    api, version = API[ApiKey.METADATA], request.version
    pos = ANSWER_HEAD_BYTES + (version >= api.flexible_from)
    message, _ = api.response.decoder(version)(answer, pos, len(answer))
    refused = encode_answer(api, version, request.correlation_id, with_topic_errors(message, error))
    request.complete(refused)
