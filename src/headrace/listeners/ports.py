"""What a listener needs of the outside world: a consumer, a producer, a clock. `headrace.Consumer` and
`headrace.Producer` are of these shapes; the test mode has others that need no broker."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, Protocol

from headrace.client.api.types import Record
from headrace.listeners.core.schedule import At
from headrace.listeners.idempotence import Store

Partitions = frozenset[Any]
"""Of (topic, partition)."""


class Callbacks(NamedTuple):
    """What a consumer tells of its partitions, inside `poll`."""

    on_assigned: Callable[[Partitions], Awaitable[None]]
    on_revoked: Callable[[Partitions], Awaitable[None]]
    on_lost: Callable[[Partitions], Awaitable[None]]


class ConsumerPort(Protocol):
    """A member of a group, which reads."""

    async def start(self) -> None: ...
    async def poll(self, timeout_s: float = ..., max_records: int | None = ...) -> list[Record]: ...
    async def commit(self, offsets: Mapping[At, int] | None = ...) -> None: ...
    def pause(self, *partitions: At) -> None: ...
    def resume(self, *partitions: At) -> None: ...
    async def close(self) -> None: ...


class TransactionPort(Protocol):
    """A transaction that is open."""

    async def commit_offsets(self, consumer: Any, offsets: Mapping[At, int] | None = ...) -> None: ...


class ProducerPort(Protocol):
    """Somebody who writes."""

    async def start(self) -> None: ...
    async def send_soon(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = ...,
        headers: Any = ...,
        timestamp: Any = ...,
        partition: int | None = ...,
    ) -> Awaitable[Any]: ...
    async def partitions(self, topic: str) -> int: ...
    async def close(self) -> None: ...


class TransactionalPort(ProducerPort, Protocol):
    """Somebody who writes all of something or nothing."""

    def transaction(self) -> AbstractAsyncContextManager[TransactionPort]: ...


class World(Protocol):
    """Where listeners get their consumers and producers, and what time it is."""

    def consumer(self, topics: Sequence[str], group: str, callbacks: Callbacks, options: Mapping[str, Any]) -> ConsumerPort: ...  # fmt: skip  # noqa: E501
    def producer(self, transactional_id: str | None) -> ProducerPort: ...
    def store(self, given: Store) -> Store: ...
    async def make_topics(self, like: Mapping[str, str]) -> None: ...
    def now(self) -> float: ...
    def wall_ms(self) -> int: ...
    def call_at(self, when: float, callback: Callable[[], None]) -> Callable[[], None]: ...
