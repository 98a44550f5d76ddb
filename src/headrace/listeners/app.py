"""`headrace.App`: listeners declared by a decorator, started and stopped together."""

import asyncio
import dataclasses
import logging
import os
import signal
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from headrace.client.errors import ClientError
from headrace.client.options import CommonOptions
from headrace.listeners.core.retry import ListenerRefused, Retry
from headrace.listeners.core.schedule import Order
from headrace.listeners.counters import Counters
from headrace.listeners.handlers import Handler
from headrace.listeners.health import Health, ListenerHealth
from headrace.listeners.idempotence import Idempotence, MemoryStore, Store
from headrace.listeners.keywords import common_options, refuse_unknown_keywords
from headrace.listeners.metrics import Collector, MetricsServer, Row
from headrace.listeners.ports import World
from headrace.listeners.runner import ListenerFailed, Runner
from headrace.listeners.spec import ListenerSpec
from headrace.listeners.testing import TestMode
from headrace.listeners.world import Cluster

log = logging.getLogger("headrace.listeners")

F = TypeVar("F", bound=Callable[..., Any])

STABLE_S = 300.0
"""A listener that has run for so long is well again: its next failure is counted as the first."""
ON_FAILURE = ("raise", "terminate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restart:
    """How often a listener that has failed is started again, and when. `times` None: always."""

    times: int | None = None
    delay_s: float = 1.0
    factor: float = 2.0
    delay_s_max: float = 60.0

    def delay_before(self, restart: int) -> float:
        """How long to wait before the restart of this number, from 1."""
        return float(min(self.delay_s * self.factor ** min(restart - 1, 64), self.delay_s_max))


class Listening:
    """A listener of an app: what was declared, what it has done, and the runner that does it now."""

    def __init__(self, spec: ListenerSpec) -> None:
        self.spec = spec
        self.counters = Counters()
        self.runner: Runner | None = None
        self.state = "stopped"
        self.error: BaseException | None = None


class App:
    """Functions that are called with the records of topics.

        app = headrace.App("billing", bootstrap="127.0.0.1:9092")

        @app.listener("orders", dead_letter="orders.dlq")
        async def bill(order: Order) -> None: ...

    `headrace run module:app` runs it, as do `app.run_forever()` and, inside of another program, `async with app:`.
    A listener that fails for good ends the app with ListenerFailed, unless `restart` says otherwise; with
    `on_failure="terminate"` the process gets a SIGTERM, for programs whose own server has the main loop.
    """

    def __init__(
        self,
        name: str,
        *,
        bootstrap: str | Iterable[str] | None = None,
        config: Mapping[str, Any] | None = None,
        restart: Restart | None = None,
        on_failure: str = "raise",
        shutdown_timeout_s: float = 30.0,
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        **options: Unpack[CommonOptions],
    ) -> None:
        if not name:
            raise ListenerRefused("give the app a name: it is the group of listeners that name none")
        if on_failure not in ON_FAILURE:
            raise ListenerRefused(f"on_failure is {on_failure!r}: write raise or terminate")
        self.name = name
        self.restart = restart
        self.on_failure = on_failure
        self.shutdown_timeout_s = shutdown_timeout_s
        self.metrics_port = metrics_port
        """Where to serve /metrics, /health and /ready; 0 chooses a port, None serves nothing."""
        self.metrics_host = metrics_host
        self.metrics: MetricsServer | None = None
        common = common_options(name, bootstrap, config, options)
        self.world: World = Cluster(common)
        self._telemetry = common["telemetry"]
        self.listeners: list[Listening] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: ListenerFailed | None = None
        self._ended = asyncio.Event()
        self._body: asyncio.Task[Any] | None = None
        self._body_cancelled = False

    # -- declaring

    def listener(
        self,
        *topics: str,
        group: str | None = None,
        name: str | None = None,
        concurrency: int = 1,
        order: str = "key",
        retry: Retry | None = None,
        dead_letter: str | None = None,
        on_failure: str = "stop",
        ack: str = "batch",
        commit_interval_s: float = 1.0,
        batch_records: int = 500,
        send_to: str | None = None,
        exactly_once: bool = False,
        transactional_id: str | None = None,
        value_deserializer: Any = None,
        value_serializer: Any = None,
        buffer_records: int = 10_000,
        buffer_bytes: int = 64 << 20,
        revoke_timeout_s: float = 30.0,
        consumer: Mapping[str, Any] | None = None,
        **unknown: Any,
    ) -> Callable[[F], F]:
        """Call the decorated function with every record of the topics. The guide has each option.

        The function is returned as it was, so that it can be called and tested by itself.
        """
        refuse_unknown_keywords(unknown)
        if order not in tuple(Order):
            raise ListenerRefused(f"order is {order!r}: write one of {', '.join(Order)}")

        def declare(function: F) -> F:
            handler = Handler(function, value_deserializer)
            spec = ListenerSpec(
                name=name or handler.name,
                topics=topics,
                group=group or self.name,
                handler=handler,
                concurrency=concurrency,
                order=Order(order),
                retry=retry or Retry(),
                dead_letter=dead_letter,
                on_failure=on_failure,
                ack=ack,
                commit_interval_s=commit_interval_s,
                batch_records=batch_records,
                send_to=send_to,
                exactly_once=exactly_once,
                transactional_id=transactional_id,
                value_serializer=value_serializer,
                telemetry=self._telemetry,
                buffer_records=buffer_records,
                buffer_bytes=buffer_bytes,
                revoke_timeout_s=revoke_timeout_s,
                consumer=dict(consumer or {}),
            )
            if any(one.spec.name == spec.name for one in self.listeners):
                raise ListenerRefused(f"there are two listeners named {spec.name!r}: give one a name=")
            self.listeners.append(Listening(spec))
            return function

        return declare

    def idempotent(
        self, *, store: Store | None = None, id: str | Callable[[Any], Any] | None = None
    ) -> Callable[[F], F]:
        """Leave out records that were handled before; written between `@app.listener` and the function.

        `store` remembers their ids: `MemoryStore()` (the default), `SqliteStore(path)`, `TopicStore(topic)`. `id` is
        the name of a header, or a function of the value; without it a record is known by its place in the topic, so
        that only a second reading is left out, not a second sending.
        """

        def mark(function: F) -> F:
            if any(one.spec.handler.function is function for one in self.listeners):
                raise ListenerRefused("write @app.idempotent(...) below @app.listener(...), next to the function")
            function.__headrace_idempotence__ = Idempotence(store or MemoryStore(), id)  # type: ignore[attr-defined]
            return function

        return mark

    # -- running

    async def start(self) -> None:
        """Start every listener. They run in the background until `stop`; `wait` returns or raises when they end."""
        if self._tasks:
            raise ClientError(f"app {self.name!r} is started already")
        if not self.listeners:
            raise ListenerRefused(f"app {self.name!r} has no listeners: declare one with @app.listener(topic)")
        self._failure, self._ended = None, asyncio.Event()
        if self.metrics_port is not None:
            collector = Collector(self.name, self._rows)
            self.metrics = MetricsServer(self.metrics_host, self.metrics_port, collector, self.health)
        self._tasks = [asyncio.create_task(self._keep(one), name=f"listener {one.spec.name}") for one in self.listeners]

    async def stop(self) -> None:
        """Finish what runs, within `shutdown_timeout_s`, commit it, and leave the groups."""
        for one in self.listeners:
            if one.state != "failed":
                one.state = "stopping"
            if one.runner is not None:
                one.runner.stop()
        self._ended.set()
        tasks, self._tasks = self._tasks, []
        try:
            await asyncio.gather(*tasks)
        finally:
            server, self.metrics = self.metrics, None
            if server is not None:
                # In a thread: it waits for an answer under way, which may wait for this loop.
                await asyncio.to_thread(server.close)

    @property
    def runners(self) -> list[Runner | None]:
        """Of each listener, what runs it now."""
        return [one.runner for one in self.listeners]

    @property
    def failure(self) -> ListenerFailed | None:
        """Why the app has ended, if a listener has failed for good."""
        return self._failure

    async def wait(self) -> None:
        """Until the app is stopped, or a listener has failed for good: raises ListenerFailed then."""
        await self._ended.wait()
        if self._failure is not None:
            raise self._failure

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT, or until a listener fails for good: raises ListenerFailed then."""
        loop = asyncio.get_running_loop()
        await self.start()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ended.set)
        try:
            await self.wait()
        finally:
            await self.stop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def run_forever(self) -> None:
        """`run` as a program of its own."""
        asyncio.run(self.run())

    async def __aenter__(self) -> Self:
        self._body, self._body_cancelled = asyncio.current_task(), False
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        body, self._body = self._body, None
        await self.stop()
        if self._body_cancelled and body is not None:
            body.uncancel()
        if self._failure is not None and (error is None or isinstance(error, asyncio.CancelledError)):
            raise self._failure

    async def _keep(self, one: Listening) -> None:
        """Run a listener, and start it again as long as the policy says so."""
        loop, restarts = asyncio.get_running_loop(), 0
        while True:
            one.runner = Runner(one.spec, self.world, one.counters, self.shutdown_timeout_s)
            one.state, since = "running", loop.time()
            try:
                await one.runner.run()
                one.state = "stopped"
                return
            except ListenerFailed as error:
                one.error = error
                restarts = 1 if loop.time() - since > STABLE_S else restarts + 1
                if not await self._restarts(one, restarts, error):
                    self._fail(one, error)
                    return
                if self._ended.is_set():
                    one.state = "stopped"
                    return

    async def _restarts(self, one: Listening, number: int, error: ListenerFailed) -> bool:
        if self.restart is None or (self.restart.times is not None and number > self.restart.times):
            return False
        delay_s = self.restart.delay_before(number)
        log.error("%s; it is started again in %g s (restart %d)", error, delay_s, number)
        one.state = "restarting"
        one.counters.restarts += 1
        try:
            async with asyncio.timeout(delay_s):
                await self._ended.wait()
        except TimeoutError:
            pass
        return True

    def _fail(self, one: Listening, error: ListenerFailed) -> None:
        """Loudly: a listener that is silently dead is found out by customers."""
        log.critical("%s; app %r ends", error, self.name, exc_info=error)
        one.state = "failed"
        self._failure = self._failure or error
        self._ended.set()
        if self.on_failure == "terminate":
            os.kill(os.getpid(), signal.SIGTERM)
        elif self._body is not None and not self._body.done():
            self._body_cancelled = True
            self._body.cancel()

    def test(self, *, partitions: int = 1) -> TestMode:
        """Run the listeners without a broker, for tests: `async with app.test() as test`."""
        return TestMode(self, partitions)

    # -- looking at it

    def health(self) -> Health:
        """Whether all listeners run, and how each does."""
        found = [self._health_of(one) for one in self.listeners]
        return Health(bool(found) and all(one.state == "running" for one in found), found)

    def _rows(self) -> list[Row]:
        found = []
        for one in self.listeners:
            waiting, running = (0, 0)
            if one.runner is not None:
                waiting, running = one.runner.schedule.records, one.runner.schedule.running
            found.append(Row(one.spec.name, one.counters, waiting, running, one.state == "running"))
        return found

    def _health_of(self, one: Listening) -> ListenerHealth:
        runner = one.runner
        polled = None if runner is None or runner.polled_at is None else self.world.now() - runner.polled_at
        state = "starting" if one.state == "running" and polled is None else one.state
        return ListenerHealth(
            one.spec.name,
            state,
            None if one.error is None or one.state == "running" else str(one.error),
            [] if runner is None else sorted(runner.assignment),
            polled,
            0 if runner is None else runner.schedule.records,
        )
