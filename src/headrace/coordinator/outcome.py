"""What a decision of a coordinator shard consists of: records to write, an answer to give, timers to set.

The contract between the pure shard and the runtime that feeds it; nothing in here does anything by itself.

How a runtime runs one handler, all in one turn of the loop:

1. `outcome = shard.join_group(request, context, now_ms)`.
2. If `outcome.records` do not fit one batch, `outcome.atomic` and `outcome.revocable`, drop the outcome: answer
   `shard_requests.refusal(request, MESSAGE_TOO_LARGE)`. Nothing has changed in the shard. (Outcomes that are not
   revocable have checked `ShardConfig.batch_bytes_max` themselves.)
3. For each record, in order and at the offset it will have in the log:
   `shard.apply(offset, producer_id, producer_epoch, record)`. Only then may the next handler run.
4. Arm and cancel `outcome.timers`. Timers belong to the shard, and end with it.
5. Append all records as one batch (several outcomes may share one). If the append fails, or its result is unknown,
   drop the shard, fail every promise and every parked answer with `shard_requests.refusal(...)`, and load it again.
6. Answer (`outcome.response`, and `promise.response` of each of `outcome.completed`) once the high watermark has
   passed these records and all that were written before: an outcome without records may rest on earlier ones.
   When `outcome.response` is a `Promise`, the answer is the promise's; it may be in `completed` of the same outcome.
7. Whenever the high watermark moves: `shard.advance(high_watermark)`.
"""

from collections.abc import Hashable
from typing import Any, NamedTuple, Protocol

import msgspec


class Record(msgspec.Struct, frozen=True):
    """One record of `__consumer_offsets`. `value` None is a tombstone.

    `kind`, `key_message` and `value_message` are the same thing decoded (GROUP_RECORDS[kind]), so that a live
    shard need not read back what it has just written.
    """

    key: bytes
    value: bytes | None
    kind: int
    key_message: Any
    value_message: Any | None


class Promise:
    """An answer that waits for other members. The shard completes it inside a later handler or timer.

    The runtime keeps what it needs to answer in `waiter` (the shard never touches it), and answers when an outcome
    names this promise in `completed`.
    """

    __slots__ = ("response", "version", "waiter")

    def __init__(self, version: int = 0) -> None:
        self.version = version
        """Of the request, since answers differ by it."""
        self.response: Any = None
        self.waiter: Any = None


class Timer(NamedTuple):
    """Call `shard.timeout(key, now_ms)` in `delay_ms`. A timer with the same key is replaced.

    Keys are tuples that start with the kind of timer and the group id.
    """

    key: Hashable
    delay_ms: int


class Cancel(NamedTuple):
    """Forget the timer; no harm if there is none."""

    key: Hashable


class Context(Protocol):
    """Where a request comes from. Good only while it is decided on."""

    @property
    def client_id(self) -> str: ...

    @property
    def client_host(self) -> str:
        """As Java prints an InetAddress: "/127.0.0.1"."""
        ...

    @property
    def version(self) -> int: ...

    def new_id(self) -> str:
        """A fresh random UUID as Java prints it."""
        ...


class Outcome:
    """Filled by the handlers of a shard, read by the runtime."""

    __slots__ = ("atomic", "completed", "records", "response", "revocable", "timers", "urgent")

    def __init__(self, response: Any = None) -> None:
        self.records: list[Record] = []
        self.response: Any = response
        self.timers: list[Timer | Cancel] = []
        self.completed: list[Promise] = []
        self.revocable = True
        """False when the handler has changed volatile state already, so that its records must be written."""
        self.atomic = True
        """False when the records may be spread over several batches (expiry, deleted topics and groups)."""
        self.urgent = True
        """False when nobody waits for the records, and they could be decided on again: they are written with what comes
        next, or a moment later."""

    def complete(self, promise: Promise, response: Any) -> None:
        promise.response = response
        self.completed.append(promise)
