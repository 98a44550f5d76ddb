"""`Producer`, `Consumer` and `Admin` without await: the same names and options, for scripts and threads.

All of them share one event loop on a thread of its own, which starts with the first client and ends with the process.
Methods may be called from any thread; callbacks run on threads of their own, and may call back.
"""

import asyncio
import atexit
import functools
import inspect
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from headrace.client.admin.admin import Admin as AsyncAdmin
from headrace.client.api.consumer import POLL_S, Consumer as AsyncConsumer
from headrace.client.api.options import ConsumerOptions, ProducerOptions
from headrace.client.api.producer import HeadersLike, Producer as AsyncProducer
from headrace.client.api.transaction import Transaction as AsyncTransaction
from headrace.client.api.types import Batch, Record
from headrace.client.consume.places import Handed
from headrace.client.errors import ClientError, RequestTimedOut
from headrace.client.net.background import LoopThread
from headrace.client.produce.deliveries import Delivery as AsyncDelivery, RecordMetadata
from headrace.client.registry.blocking import BlockingRegistry

SchemaRegistry = BlockingRegistry

T = TypeVar("T")
P = ParamSpec("P")

QUEUED_MAX = 20_000
"""Records that wait for the event loop's thread to take them; `send_soon` waits beyond that."""
PUMPED_AT_ONCE = 2_000
EXIT_LIMIT_S = 5.0
FORKED = "made before this process was forked from another: its connections are the parent's, make a client here"

_lock = threading.Lock()
_thread: LoopThread | None = None
_open: "weakref.WeakSet[_Client]" = weakref.WeakSet()


def _shared() -> LoopThread:
    global _thread
    with _lock:
        if _thread is None or _thread.loop.is_closed():
            _thread = LoopThread("headrace-sync")
        return _thread


def _after_fork() -> None:
    """A child process begins with no clients: those it has inherited are its parent's, and so are their sockets."""
    global _thread, _lock
    _thread, _lock = None, threading.Lock()
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _close_all() -> None:
    """At the end of the process: what was sent is sent, and groups are left."""
    global _thread
    for client in list(_open):
        try:
            client._close(EXIT_LIMIT_S)
        except (ClientError, TimeoutError):
            continue
    with _lock:
        if _thread is not None:
            _thread.close()
            _thread = None


class _Client:
    """A client whose other half lives on the event loop's thread."""

    _inner: Any

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._loop: LoopThread | None = None

    def start(self) -> None:
        """Connect. `with` does it. Raises ClientError when no broker answers."""
        self._loop = _shared()
        self._run(self._inner.start())
        _open.add(self)

    def close(self) -> None:
        """Finish what is under way, and disconnect."""
        self._close(None)

    def _close(self, limit_s: float | None) -> None:
        _open.discard(self)
        if self._loop is not None and not self._loop.loop.is_closed() and not self._loop.is_lost:
            self._run(self._inner.close(), limit_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _open.discard(self)
        if not self._is_inherited:
            self._run(self._inner.__aexit__(kind, error, trace))

    @property
    def _is_inherited(self) -> bool:
        """Whether it is a parent process's, which goes on with it; here it cannot even be closed."""
        return self._loop is not None and self._loop.is_lost

    def _run(self, work: Coroutine[Any, Any, T], limit_s: float | None = None) -> T:
        loop = self._loop
        if loop is None or loop.loop.is_closed():
            work.close()
            raise ClientError(f"not started: use `with {type(self).__name__}(...)`, or call start()")
        if loop.is_lost:
            work.close()
            raise ClientError(FORKED)
        if threading.get_ident() == loop._thread.ident:
            work.close()
            raise ClientError("called on the event loop's own thread, which would wait for itself: await the client of "
                              "`headrace` there instead")  # fmt: skip
        return loop.run(work, limit_s)


def _blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """The same method, which waits."""

    def call(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        found: T = client._run(method(client._inner, *args, **kwargs))
        return found

    functools.update_wrapper(call, method)
    return call


def _on_loop(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """The same method, which never waits, on the thread that all else happens on."""

    def call(client: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        async def work() -> T:
            return method(client._inner, *args, **kwargs)

        found: T = client._run(work())
        return found

    functools.update_wrapper(call, method)
    return call


class Delivery:
    """What comes of one record that was sent by `send_soon`."""

    __slots__ = ("_callbacks", "_error", "_inner", "_producer")

    def __init__(self, producer: "Producer") -> None:
        self._producer = producer
        self._inner: AsyncDelivery | None = None
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Delivery], Any]] = []

    def done(self) -> bool:
        """Whether the record is written, or failed for good."""
        return self._error is not None or (self._inner is not None and self._inner.done())

    def result(self, timeout_s: float | None = None) -> RecordMetadata:
        """Wait for where the record was written; raises why it was not."""
        try:
            return self._producer._run(self._outcome(), timeout_s)
        except TimeoutError:
            raise RequestTimedOut(f"the record is not acknowledged after {timeout_s:g} s, and still may be") from None

    def exception(self, timeout_s: float | None = None) -> ClientError | None:
        """Wait for why the record failed, None if it is written."""
        try:
            self.result(timeout_s)
        except ClientError as error:
            return error
        return None

    def add_done_callback(self, callback: "Callable[[Delivery], Any]") -> None:
        """Call back when done, on the event loop's thread: be quick there, and do not wait for a client."""
        self._producer._on_loop(lambda: self._call_when_done(callback))

    def _call_when_done(self, callback: "Callable[[Delivery], Any]") -> None:
        if self._inner is not None:
            self._inner.add_done_callback(lambda _: callback(self))
        elif self._error is not None:
            callback(self)
        else:
            self._callbacks.append(callback)

    async def _outcome(self) -> RecordMetadata:
        await self._producer._pumped()
        if self._error is not None:
            raise self._error
        assert self._inner is not None
        return await self._inner

    def _become(self, inner: AsyncDelivery | None, error: Exception | None) -> None:
        self._inner, self._error = inner, error
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            self._call_when_done(callback)


class Producer(_Client):
    """`headrace.Producer` without await.

    with Producer("127.0.0.1:9092") as producer:
        where = producer.send("orders", b"a coffee", key=b"table 7")
    """

    _inner: AsyncProducer

    def __init__(
        self,
        bootstrap: str | Iterable[str] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        **options: Unpack[ProducerOptions],
    ) -> None:
        super().__init__(AsyncProducer(bootstrap, config=config, **options))
        self._queue: deque[tuple[Delivery, str, Any, dict[str, Any]]] = deque()
        self._room = threading.Semaphore(QUEUED_MAX)
        self._pumping: asyncio.Task[None] | None = None
        self._unseen: Exception | None = None

    send = _blocking(AsyncProducer.send)
    send_batch = _blocking(AsyncProducer.send_batch)
    partitions = _blocking(AsyncProducer.partitions)

    def send_soon(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: HeadersLike | None = None,
        timestamp: int | datetime | None = None,
        partition: int | None = None,
    ) -> Delivery:
        """Send without waiting for the answer; waits only while too much is on its way."""
        if self._loop is None:
            raise ClientError("not started: use `with Producer(...)`, or call start()")
        if self._loop.is_lost:
            raise ClientError(FORKED)
        delivery = Delivery(self)
        self._room.acquire()
        self._queue.append(
            (delivery, topic, value, {"key": key, "headers": headers, "timestamp": timestamp, "partition": partition})
        )
        if self._pumping is None:
            self._on_loop(self._start_pump)
        return delivery

    def flush(self) -> None:
        """Wait until every record sent so far is acknowledged, or failed for good.

        Raises the error of one whose delivery nobody has looked at.
        """
        self._run(self._flush())

    async def _flush(self) -> None:
        await self._pumped()
        await self._inner.flush()
        self._raise_unseen()

    def transaction(self) -> "Transaction":
        """`with producer.transaction() as transaction`: see `headrace.Producer.transaction`."""
        return Transaction(self)

    def _close(self, limit_s: float | None) -> None:
        if self._loop is not None and not self._loop.loop.is_closed() and not self._loop.is_lost:
            self._run(self._pumped(), limit_s)
        super()._close(limit_s)
        self._raise_unseen()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_inherited:
            return
        self._run(self._pumped())
        super().__exit__(kind, error, trace)
        if kind is None:
            self._raise_unseen()

    def _raise_unseen(self) -> None:
        error, self._unseen = self._unseen, None
        if error is not None:
            raise error

    def _on_loop(self, call: Callable[[], Any]) -> None:
        assert self._loop is not None
        self._loop.loop.call_soon_threadsafe(call)

    def _start_pump(self) -> None:
        if self._pumping is None:
            self._pumping = asyncio.get_running_loop().create_task(self._pump(), name="headrace-sync producer")

    async def _pump(self) -> None:
        """Take what threads have queued, in order, as fast as the producer has room."""
        try:
            while self._queue:
                for _ in range(min(len(self._queue), PUMPED_AT_ONCE)):
                    delivery, topic, value, options = self._queue.popleft()
                    self._room.release()
                    try:
                        delivery._become(await self._inner.send_soon(topic, value, **options), None)
                    except Exception as error:
                        self._unseen = self._unseen or error
                        delivery._become(None, error)
                await asyncio.sleep(0)
        finally:
            self._pumping = None
            if self._queue:
                self._start_pump()

    async def _pumped(self) -> None:
        """Wait until all that is queued now has been taken."""
        while self._queue or self._pumping is not None:
            self._start_pump()
            pumping = self._pumping
            if pumping is not None:
                await asyncio.wait([pumping])


class Transaction:
    """One transaction of a producer; leaving its block commits, an exception aborts."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._inner: AsyncTransaction | None = None

    def __enter__(self) -> Self:
        async def begin() -> AsyncTransaction:
            return await self._producer._inner.transaction().__aenter__()

        self._inner = self._producer._run(begin())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        async def end() -> None:
            await self._producer._pumped()
            await self._begun().__aexit__(kind, error, trace)

        self._producer._run(end())

    def commit_offsets(self, consumer: "Consumer", offsets: Mapping[tuple[str, int], int] | None = None) -> None:
        """Commit what a consumer has handed out, or the given offsets, with this transaction."""
        self._producer._run(self._begun().commit_offsets(consumer._inner, offsets))

    def abort(self) -> None:
        """Abort before the end of the block."""
        self._producer._run(self._begun().abort())

    def commit(self) -> None:
        """Commit before the end of the block."""

        async def end() -> None:
            await self._producer._pumped()
            await self._begun().commit()

        self._producer._run(end())

    def _begun(self) -> AsyncTransaction:
        if self._inner is None:
            raise ClientError("the transaction has not begun: use `with producer.transaction()`")
        return self._inner


class Consumer(_Client):
    """`headrace.Consumer` without await.

    with Consumer("orders", bootstrap="127.0.0.1:9092", group="billing") as consumer:
        for record in consumer:
            ...
    """

    _inner: AsyncConsumer

    def __init__(
        self,
        *topics: str,
        bootstrap: str | Iterable[str] | None = None,
        config: Mapping[str, Any] | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        for name in ("on_assigned", "on_revoked", "on_lost"):
            callback: Any = options.get(name)
            if callback is not None and not inspect.iscoroutinefunction(callback):
                options[name] = functools.partial(asyncio.to_thread, callback)
        super().__init__(AsyncConsumer(*topics, bootstrap=bootstrap, config=config, **options))

    def poll(self, timeout_s: float = POLL_S, max_records: int | None = None) -> list[Record]:
        """The next records, of another partition each time; none when none came in time."""
        return self._run(self._inner.poll(timeout_s, max_records))

    def __iter__(self) -> Iterator[Record]:
        """Every record from here on, waiting for more at the end."""
        inner = self._inner
        core = inner._running()
        while True:
            handed = self._run(inner._next(core, inner.settings.max_poll_records, None))
            assert handed is not None
            records = handed.records
            for index, record in enumerate(records):
                if index and (core.has_news or core.handed is not handed):
                    self._let_go(handed, index)
                    break
                handed.current = record
                yield record

    def _let_go(self, handed: Handed, index: int) -> None:
        async def work() -> None:
            self._inner._running().let_go(handed, index)

        self._run(work())

    def batches(self, max_records: int | None = None) -> Iterator[Batch]:
        """Every record from here on, in batches of one partition each: less work for each record."""
        inner = self._inner
        core = inner._running()
        while True:
            handed = self._run(inner._next(core, max_records or 1 << 30, None))
            assert handed is not None
            yield Batch(handed.place.topic, handed.place.partition, handed.records)

    commit = _blocking(AsyncConsumer.commit)
    committed = _blocking(AsyncConsumer.committed)
    assign = _blocking(AsyncConsumer.assign)
    seek_to_time = _blocking(AsyncConsumer.seek_to_time)
    seek_to_beginning = _blocking(AsyncConsumer.seek_to_beginning)
    seek_to_end = _blocking(AsyncConsumer.seek_to_end)
    seek_to_committed = _blocking(AsyncConsumer.seek_to_committed)
    lag = _blocking(AsyncConsumer.lag)
    seek = _on_loop(AsyncConsumer.seek)
    pause = _on_loop(AsyncConsumer.pause)
    resume = _on_loop(AsyncConsumer.resume)
    paused = _on_loop(AsyncConsumer.paused)
    position = _on_loop(AsyncConsumer.position)
    assignment = _on_loop(AsyncConsumer.assignment)
    handed_out = _on_loop(AsyncConsumer.handed_out)
    group_metadata = _on_loop(AsyncConsumer.group_metadata)

    def commit_soon(self, offsets: Mapping[tuple[str, int], int] | Record | Batch | None = None) -> None:
        """Commit without waiting, in the order of calls. A failure is raised by the next read."""

        async def work() -> None:
            self._inner.commit_soon(offsets)

        self._run(work())

    @property
    def member_id(self) -> str:
        """The id by which the group knows this consumer; empty without one."""
        return self._inner.member_id


class _StartedAdmin(AsyncAdmin):
    """An admin that starts and ends as the other clients do."""

    async def start(self) -> None:
        await self.__aenter__()

    async def close(self) -> None:
        self.cluster.close()


class Admin(_Client):
    """`headrace.Admin` without await: `with Admin("127.0.0.1:9092") as admin: admin.create_topic("orders", 6)`."""

    _inner: _StartedAdmin

    def __init__(
        self,
        bootstrap: str | Iterable[str] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(_StartedAdmin(bootstrap, config=config, **options))

    create_topic = _blocking(AsyncAdmin.create_topic)
    delete_topic = _blocking(AsyncAdmin.delete_topic)
    list_topics = _blocking(AsyncAdmin.list_topics)
    describe_topic = _blocking(AsyncAdmin.describe_topic)
    create_partitions = _blocking(AsyncAdmin.create_partitions)
    describe_configs = _blocking(AsyncAdmin.describe_configs)
    alter_configs = _blocking(AsyncAdmin.alter_configs)
    describe_cluster = _blocking(AsyncAdmin.describe_cluster)
    describe_log_dirs = _blocking(AsyncAdmin.describe_log_dirs)
    list_offsets = _blocking(AsyncAdmin.list_offsets)
    delete_records = _blocking(AsyncAdmin.delete_records)
