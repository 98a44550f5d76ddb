"""One connection to one broker: TLS and a login where asked for, frames out, frames in, any number of requests in
flight.

A request in flight is a future under its correlation id. A connection that misbehaves in any way is closed and all
that waits on it fails: answers come in order, so nothing behind a lost one can be trusted to come.
"""

import asyncio
import random
import ssl
from collections.abc import Callable
from typing import Any, Protocol

from headrace.client.errors import (
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    NotKafka,
    RequestTimedOut,
    UnsupportedApi,
)
from headrace.client.net import diagnosis
from headrace.client.net.address import format_address
from headrace.client.net.connecting import connect
from headrace.client.security.channel import PLAINTEXT, Security
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import API, Api, ApiKey
from headrace.protocol.frames import LENGTH, decode_response, encode_request
from headrace.protocol.primitives import ProtocolError
from headrace.version import __version__

FRAME_BYTES_MAX = 128 << 20
READ_BYTES = 64 << 10
CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 30.0
CORRELATION_IDS = 1 << 31
LOGIN_SHARE = 0.85, 0.95
"""A login is renewed after some part of the time that it holds, as Kafka's clients do: not all of them at once."""


class Sink(Protocol):
    """Takes the answer to one request as soon as it is there. A future is one, and answers a turn of the loop later."""

    def done(self) -> bool: ...

    def set_result(self, message: Any, /) -> None: ...

    def set_exception(self, error: ClientError, /) -> None: ...


class _Waiting:
    """A request that was sent and not yet answered."""

    __slots__ = ("answer", "api", "version")

    def __init__(self, api: Api | None, version: int, answer: "asyncio.Future[Any] | Sink") -> None:
        self.api = api
        self.version = version
        self.answer = answer


class _Frames(asyncio.BufferedProtocol):
    """Cuts the stream into frames. Small ones come out of a shared buffer; the rest of a large one is read in place."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._buffer = bytearray(READ_BYTES)
        self._used = 0
        self._frame: bytearray | memoryview | None = None
        self._filled = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return memoryview(self._frame)[self._filled :]
        return memoryview(self._buffer)[self._used :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._frame is not None:
            self._filled += nbytes
            if self._filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._connection._frame_received(frame)
            return
        self._used += nbytes
        self._cut()

    def _cut(self) -> None:
        """Take whole frames out of the shared buffer; move an unfinished one to a buffer of its own size."""
        buffer, used, pos = self._buffer, self._used, 0
        while used - pos >= 4:
            (length,) = LENGTH.unpack_from(buffer, pos)
            if not 4 <= length <= self._connection.frame_bytes_max:
                self._connection.fail(self._connection._wrong_length(bytes(buffer[pos : pos + 4]), length))
                return
            start = pos + 4
            pos = start + length
            if pos <= used:
                self._connection._frame_received(bytes(memoryview(buffer)[start:pos]))
                continue
            self._frame = self._connection.allocate(length)
            self._filled = used - start
            self._frame[: self._filled] = memoryview(buffer)[start:used]
            self._used = 0
            return
        rest = used - pos
        buffer[:rest] = buffer[pos:used]
        self._used = rest

    def eof_received(self) -> None:
        # Told at once: from here to `connection_lost`, asyncio's transport fails on whoever writes (since Python 3.12).
        self._connection._lost(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connection._lost(exc)

    def pause_writing(self) -> None:
        self._connection._hold()

    def resume_writing(self) -> None:
        self._connection._release()


class Connection:
    """Made by `Connection.open`. `request` may be called any number of times at once."""

    def __init__(self, host: str, port: int, client_id: str, frame_bytes_max: int, security: Security) -> None:
        self.host = host
        self.port = port
        self.peer = format_address(host, port)
        self.client_id = client_id
        self.frame_bytes_max = frame_bytes_max
        self.allocate: Callable[[int], bytearray | memoryview] = bytearray
        """Where a large answer is put. Whoever knows when it is done with one may have the place used again."""
        self.security = security
        self.logins = 0
        """How often this connection has logged in."""
        self.versions: dict[int, tuple[int, int]] = {}
        """API key -> the lowest and highest version the broker serves."""
        self.features: dict[str, int] = {}
        """Finalized features of the cluster, such as metadata.version."""
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._next_id = 0
        self._first_id = 0
        """Of the first request that is neither about versions nor a login."""
        self._holds = 0
        """For how many reasons nothing may be written: the socket is full, a login is under way."""
        self._writable = asyncio.Event()
        self._writable.set()
        self._renewal: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._failure: ClientError | None = None

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str = "headrace",
        timeout_s: float = CONNECT_TIMEOUT_S,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        security: Security = PLAINTEXT,
    ) -> "Connection":
        """Connect, agree on versions and log in. Raises BrokerUnreachable, NotKafka, UnsupportedApi or
        SecurityFailed."""
        connection = cls(host, port, client_id, frame_bytes_max, security)
        try:
            async with asyncio.timeout(timeout_s):
                await connection._connect()
                await connection._negotiate()
                if security.credentials is not None:
                    await connection._log_in()
        except TimeoutError:
            connection.close()
            raise connection._too_late(timeout_s) from None
        except ConnectionLost as error:
            raise NotKafka(
                f"{connection.peer} closed the connection at the first request: {diagnosis.silent(security)}"
            ) from error
        except BaseException:
            connection.close()
            raise
        connection._first_id = connection._next_id
        return connection

    @property
    def is_open(self) -> bool:
        return self._failure is None

    def version_of(self, key: ApiKey, version_max: int | None = None) -> int:
        """The highest version of an API that both sides know, at most `version_max`. Raises UnsupportedApi.

        One that Kafka calls unstable is spoken only with brokers that list it, and if `version_max` names it.
        """
        api = API[key]
        served = self.versions.get(key)
        if served is None:
            raise UnsupportedApi(f"the broker at {self.peer} does not serve {api.name}")
        highest = min(served[1], api.latest_stable if version_max is None else min(version_max, api.max_version))
        if highest < max(served[0], api.min_version):
            raise UnsupportedApi(
                f"the broker at {self.peer} serves {api.name} in versions {served[0]} to {served[1]}, "
                f"this client knows {api.min_version} to {api.latest_stable}"
            )
        return highest

    async def request(
        self,
        key: ApiKey,
        body: Any,
        *,
        version_max: int | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Any:
        """Send `body` and return the answer's message. Its error codes are the caller's to read."""
        version = self.version_of(key, version_max)
        return await self._exchange(API[key], version, body, timeout_s)

    async def post(self, key: ApiKey, body: Any, *, version_max: int | None = None) -> "asyncio.Future[Any]":
        """Send `body` and return the answer to come: for whoever must know in which order requests left.

        The caller sets the time limit, and closes the connection when it has passed.
        """
        api, answer = API[key], asyncio.get_running_loop().create_future()
        version = self.version_of(key, version_max)
        await self._write(api, version, self._take_id(), body, _Waiting(api, version, answer))
        return answer

    @property
    def is_writable(self) -> bool:
        """Whether `post_now` may be called: the connection is open, its socket not full, no login under way."""
        return self._failure is None and not self._holds

    async def writable(self) -> None:
        """Wait until `post_now` may be called, in this very turn of the loop. Raises ClientError."""
        await self._writable.wait()
        if self._failure is not None:
            raise self._failure

    def post_now(self, key: ApiKey, body: Any, sink: Sink, *, version_max: int | None = None) -> None:
        """Send `body` while `is_writable`, and have the answer's message put into `sink`. Raises UnsupportedApi."""
        assert self._transport is not None and self._failure is None
        api, version, correlation_id = API[key], self.version_of(key, version_max), self._take_id()
        frame = encode_request(api, version, correlation_id, self.client_id, body)
        self._waiting[correlation_id] = _Waiting(api, version, sink)
        self._write_out(frame)

    def start(self, frame_of: Callable[[int], bytes], sink: Sink) -> None:
        """Send the frame made for a correlation id, and have the answer's bytes put into `sink`, without its length.

        No codec, no task and no future: for whoever asks often and knows the two by hand. Raises ClientError when the
        connection is gone. The time limit is the caller's, and so is how much is in flight. Not for connections that
        log in, which may be doing so again.
        """
        if self._failure is not None:
            raise self._failure
        assert self._transport is not None
        correlation_id = self._take_id()
        frame = frame_of(correlation_id)
        self._waiting[correlation_id] = _Waiting(None, 0, sink)
        self._transport.write(frame)

    async def send(self, key: ApiKey, body: Any, *, version_max: int | None = None) -> None:
        """Send what has no answer: Produce with acks=0."""
        await self._write(API[key], self.version_of(key, version_max), self._take_id(), body)

    @property
    def oldest_request(self) -> int | None:
        """The id of the request that waits for its answer longest."""
        return next(iter(self._waiting), None)

    def fail(self, failure: ClientError) -> None:
        """The end of the connection: all that wait on it are told why. Only the first reason counts."""
        if self._failure is None:
            self._failure = failure
            if isinstance(self._renewal, asyncio.TimerHandle):
                self._renewal.cancel()
            if self._transport is not None:
                self._transport.abort()
        self._writable.set()
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            if not one.answer.done():
                one.answer.set_exception(self._failure)

    def close(self) -> None:
        self.fail(ConnectionLost(f"the connection to {self.peer} was closed here"))

    # -- connecting

    async def _connect(self) -> None:
        options: dict[str, Any] = {}
        if self.security.tls is not None:
            options = {"ssl": self.security.tls.context(), "server_hostname": self.host}
        try:
            transport = await connect(lambda: _Frames(self), self.host, self.port, **options)
        except OSError as error:
            if options and isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError):
                raise diagnosis.tls_failed(self.peer, self.host, error, self.security) from None
            raise diagnosis.unreachable(self.peer, self.host, error) from None
        self._transport = transport

    def _too_late(self, timeout_s: float) -> ClientError:
        if self._transport is None:
            what = "no connection" if self.security.tls is None else "no connection and TLS"
            return BrokerUnreachable(f"{self.peer} does not answer: {what} within {timeout_s:g} s")
        if self.versions:
            return BrokerUnreachable(f"{self.peer} did not come to an end with the login within {timeout_s:g} s")
        return NotKafka(
            f"{self.peer} accepts connections but did not answer a Kafka request within {timeout_s:g} s: "
            f"it may be overloaded, or {diagnosis.silent(self.security)}"
        )

    async def _log_in(self) -> None:
        from headrace.client.security.login import log_in

        async def ask(key: ApiKey, body: Any) -> Any:
            return await self._exchange(API[key], self.version_of(key), body, None, is_login=True)

        lifetime_ms = await log_in(ask, self.peer, self.security, self.versions.__contains__)
        self.logins += 1
        if lifetime_ms > 0:
            delay_s = lifetime_ms / 1000 * random.uniform(*LOGIN_SHARE)
            self._renewal = asyncio.get_running_loop().call_later(delay_s, self._renew)

    def _renew(self) -> None:
        self._renewal = asyncio.get_running_loop().create_task(self._log_in_again(), name=f"login at {self.peer}")

    async def _log_in_again(self) -> None:
        """On the same connection (KIP-368). What is in flight is answered first, and nothing new may come in
        between."""
        self._hold()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._log_in()
        except TimeoutError:
            self.fail(ConnectionLost(f"{self.peer} did not renew the login within {REQUEST_TIMEOUT_S:g} s"))
        except ClientError as error:
            self.fail(error)
        finally:
            self._release()

    async def _negotiate(self) -> None:
        api = API[ApiKey.API_VERSIONS]
        request = m.ApiVersionsRequest(client_software_name="headrace", client_software_version=__version__)
        answer = await self._exchange(api, api.latest_stable, request, timeout_s=None)
        if answer.error_code == Err.UNSUPPORTED_VERSION:
            # An older broker answers in version 0 and says there what it does know.
            highest = next((row.max_version for row in answer.api_keys if row.api_key == api.key), 0)
            answer = await self._exchange(api, max(0, min(highest, api.latest_stable)), request, timeout_s=None)
        if answer.error_code:
            raise UnsupportedApi(f"the broker at {self.peer} refused to name its versions (error {answer.error_code})")
        self.versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
        self.features = {row.name: row.max_version_level for row in answer.finalized_features}

    # -- inside

    async def _exchange(
        self, api: Api, version: int, body: Any, timeout_s: float | None, *, is_login: bool = False
    ) -> Any:
        correlation_id = self._take_id()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._write(api, version, correlation_id, body, _Waiting(api, version, answer), is_login)
                return await answer
        except TimeoutError:
            failure = RequestTimedOut(f"{self.peer} did not answer {api.name} within {timeout_s:g} s")
            self.fail(failure)
            raise failure from None
        finally:
            # One that was cancelled stays in `_waiting`: its answer still comes, and has to be passed over.
            if not answer.done():
                answer.cancel()

    async def _write(
        self,
        api: Api,
        version: int,
        correlation_id: int,
        body: Any,
        waiting: _Waiting | None = None,
        is_login: bool = False,
    ) -> None:
        frame = encode_request(api, version, correlation_id, self.client_id, body)
        if not is_login:
            await self._writable.wait()
        if self._failure is not None:
            raise self._failure
        assert self._transport is not None
        if waiting is not None:
            self._waiting[correlation_id] = waiting
        self._write_out(frame)

    def _write_out(self, pieces: list[Any]) -> None:
        """Into the transport, unless that is already lost: `connection_lost` then answers all that wait.

        Without the check, asyncio of some Pythons goes wrong (3.12.1 and 3.13.0 do, 3.11 does not):
        1. A write fails, and the transport is to be closed in the next turn of the loop.
        2. `writelines`, in this turn, cannot write and registers the socket for writing.
        3. The socket is closed. The registration stays, under a number that a later connection gets.
        4. That connection's own events are lost, and what was sent on it is never answered.
        """
        assert self._transport is not None
        if not self._transport.is_closing():
            self._transport.writelines(pieces)

    def _take_id(self) -> int:
        correlation_id = self._next_id
        self._next_id = (correlation_id + 1) % CORRELATION_IDS
        return correlation_id

    def _frame_received(self, frame: bytes | bytearray | memoryview) -> None:
        (correlation_id,) = LENGTH.unpack_from(frame)
        waiting = self._waiting.pop(correlation_id, None)
        if waiting is None:
            self.fail(NotKafka(f"{self.peer} answered a request that was never sent (id {correlation_id})"))
            return
        if waiting.answer.done():
            return
        if waiting.api is None:
            waiting.answer.set_result(frame)
            return
        try:
            _, message = decode_response(waiting.api, _answer_version(waiting, frame), frame)
        except ProtocolError as error:
            failure = NotKafka(f"{self.peer} sent a {waiting.api.name} answer that cannot be read: {error}")
            waiting.answer.set_exception(failure)
            self.fail(failure)
            return
        waiting.answer.set_result(message)

    def _hold(self) -> None:
        self._holds += 1
        self._writable.clear()

    def _release(self) -> None:
        self._holds -= 1
        if self._holds == 0:
            self._writable.set()

    def _wrong_length(self, head: bytes, length: int) -> ClientError:
        return diagnosis.wrong_length(self.peer, head, length, self.security)

    def _lost(self, error: Exception | None) -> None:
        failure = diagnosis.lost(self.peer, error, self.security)
        hung_up_at_once = error is None and self._first_id > 0 and self._first_id in self._waiting
        if hung_up_at_once and self.security.credentials is None:
            failure = ConnectionLost(f"{failure}; {diagnosis.login_wanted(self.security)}")
        self.fail(failure)


def _answer_version(waiting: _Waiting, frame: bytes | bytearray | memoryview) -> int:
    """ApiVersions alone may be answered in another version than asked: 0, when the asked one is unknown."""
    if waiting.api is not None and waiting.api.key is ApiKey.API_VERSIONS and frame[4:6] == b"\x00\x23":
        return 0
    return waiting.version
