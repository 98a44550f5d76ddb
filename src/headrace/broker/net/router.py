"""From a request's bytes to the handler of its API, and from the handler's answer back to bytes.

Produce and Fetch go straight to their handlers, which read the buffer themselves. Everything else is decoded by the
compiled tables, handled at once or in a task, and encoded in the version that was asked for.
"""

from collections.abc import Awaitable, Callable, Container, Coroutine, Iterable, Mapping
from inspect import isawaitable
from struct import Struct
from typing import Any

from msgspec import structs

from headrace.broker.metrics import Metrics
from headrace.broker.net.large_requests import LargeRequests, large_from_bytes
from headrace.broker.net.request import Answer, Request
from headrace.broker.runtime import Runtime
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import API, Api, ApiKey
from headrace.protocol.primitives import ProtocolError, decode_uvarint

HotHandler = Callable[[Request, int], Answer | None]
"""Reads its request from the buffer at the position given."""
Handler = Callable[[Request, Any], Any | Awaitable[Any]]
"""Takes the decoded message; returns the answer's message, an awaitable of it, or None: `request.respond` is called
later."""
Spawn = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a task that belongs to the broker."""

_frame_head = Struct(">ii").pack


def served_apis(*keys: Iterable[int], unstable: Container[int] = ()) -> dict[int, Api]:
    """The APIs of a listener, in the order in which they are advertised; those in `unstable` up to the version that
    Kafka does not call stable yet."""
    apis = [API[key] for key in sorted({key for some in keys for key in some})]
    return {
        api.key: structs.replace(api, latest_stable=api.max_version) if api.key in unstable else api for api in apis
    }


class Router:
    """The APIs that one listener serves."""

    def __init__(
        self,
        hot: Mapping[int, HotHandler],
        handlers: Mapping[int, Handler],
        metrics: Metrics,
        runtime: Runtime,
        spawn: Spawn,
        unstable: Container[int] = (),
    ) -> None:
        self._hot = dict(hot)
        self._handlers = dict(handlers)
        self._spawn = spawn
        self.apis = served_apis(hot, handlers, unstable=unstable)
        self._latency = {key: metrics.request_latency(key) for key in self.apis}
        # What every request asks first, in one look-up.
        self._entries = {
            key: (
                api.min_version, api.latest_stable, api.flexible_from, self._hot.get(key), api, self._handlers.get(key),
                large_from_bytes(key),
            )
            for key, api in self.apis.items()
        }  # fmt: skip
        self._large = LargeRequests(runtime)
        self._clock = runtime.perf_counter

    def versions(self, api: Api) -> tuple[int, int]:
        """The range this listener serves of an API."""
        return api.min_version, api.latest_stable

    def route(self, request: Request) -> Answer | None:
        """Handle a request. None: the answer comes later, by `request.done` or `request.respond`."""
        version = request.version
        entry = self._entries.get(request.api_key)
        if entry is None or not entry[0] <= version <= entry[1]:
            return self._unsupported(request)
        _, _, flexible_from, hot, api, handler, large_bytes = entry
        pos = request.pos
        if request.client_id_length > 0:
            pos += request.client_id_length
        if version >= flexible_from:
            pos = skip_tags(request.buf, pos, request.end)
        elif pos > request.end:
            raise ProtocolError("client id longer than its frame")
        if hot is not None:
            return hot(request, pos)  # counted by the connection, many at a time
        assert handler is not None
        if request.end - pos > large_bytes:
            body = bytes(request.view[pos : request.end])
            self._spawn(self._in_portions(api, request, handler, body, request.client_id))
            return None
        # Bytes behind the message are ignored, as Kafka does: librdkafka sends some (Metadata for all topics).
        message, _ = api.request.decoder(version)(request.buf, pos, request.end)
        result = handler(request, message)
        if result is None:
            return None
        if isawaitable(result):
            self._spawn(self._later(api, request, result))
            return None
        answer = encode_answer(api, version, request.correlation_id, result)
        self.waited(request)
        return answer

    async def _later(self, api: Api, request: Request, result: Awaitable[Any]) -> None:
        try:
            answer = encode_answer(api, request.version, request.correlation_id, await result)
        except Exception:
            request.fail()
            return
        request.done(answer)

    async def _in_portions(
        self, api: Api, request: Request, handler: Handler, body: bytes, client_id: str | None
    ) -> None:
        """A request that would hold up all others."""

        def decode(data: bytes) -> Any:
            return api.request.decoder(request.version)(data, 0, len(data))[0]

        def encode(message: Any) -> bytes:
            return encode_answer(api, request.version, request.correlation_id, message)

        try:
            answer = await self._large.work(request, decode, handler, encode, body, client_id)
        except (ProtocolError, KafkaError) as error:
            request.connection.unreadable(error)
            return
        except Exception:
            request.fail()
            return
        if answer is not None:
            request.done(answer)

    def respond(self, request: Request, message: Any) -> None:
        """Answer a request whose handler returned None."""
        if request.connection.closed:
            return
        try:
            answer = encode_answer(self.apis[request.api_key], request.version, request.correlation_id, message)
        except Exception:
            request.fail()
            return
        request.done(answer)

    def turn_done(self, produced: int, fetched: int, seconds: float) -> None:
        """Count the Produce and Fetch requests that were answered in one turn of a connection, which took `seconds`."""
        if produced:
            self._latency[ApiKey.PRODUCE].observe_many(produced, seconds)
        if fetched:
            self._latency[ApiKey.FETCH].observe_many(fetched, seconds)

    def waited(self, request: Request) -> None:
        """Count a request that had to wait, or that is not counted with others of its turn."""
        self._latency[request.api_key].observe(self._clock() - request.started)

    def _unsupported(self, request: Request) -> Answer:
        if request.api_key == ApiKey.API_VERSIONS:
            # The one request whose version a client may get wrong: it is answered in v0 with what is served.
            served = m.ApiVersionsResponse(error_code=Err.UNSUPPORTED_VERSION)
            low, high = self.versions(self.apis[ApiKey.API_VERSIONS])
            served.api_keys = [
                m.ApiVersionsResponse.ApiVersion(api_key=ApiKey.API_VERSIONS, min_version=low, max_version=high)
            ]
            return encode_answer(API[ApiKey.API_VERSIONS], 0, request.correlation_id, served)
        api = API.get(request.api_key)
        name = api.name if api is not None else f"API {request.api_key}"
        raise ProtocolError(f"{name} v{request.version} is not served here")


def encode_answer(api: Api, version: int, correlation_id: int, message: Any) -> bytes:
    """A whole frame: length, header, body."""
    chunks: list[Any] = []
    # ApiVersions keeps the oldest header, so that a client of any age can read what is served.
    if version >= api.flexible_from and api.key != ApiKey.API_VERSIONS:
        chunks.append(b"\0")
    api.response.encoder(version)(message, chunks.append)
    body = b"".join(chunks)
    return _frame_head(len(body) + 4, correlation_id) + body


def skip_tags(buf: bytearray, pos: int, end: int) -> int:
    """Over the tagged fields of a request header; none are defined, so almost always one zero byte."""
    if pos >= end:
        raise ProtocolError("request header longer than its frame")
    if buf[pos] == 0:
        return pos + 1
    count, pos = decode_uvarint(buf, pos, end)
    for _ in range(count):
        _, pos = decode_uvarint(buf, pos, end)
        size, pos = decode_uvarint(buf, pos, end)
        pos += size
        if pos > end:
            raise ProtocolError("tagged field longer than its frame")
    return pos
