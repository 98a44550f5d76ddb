"""One listener as it was declared: its topics, its function and its options, checked."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from headrace.listeners.core.retry import ListenerRefused, Retry, retry_topic
from headrace.listeners.core.schedule import Order
from headrace.listeners.handlers import ACK, Handler

ACKS = ("record", "batch", "manual")
ON_FAILURE = ("stop", "skip")
CONCURRENCY_MAX = 1_000
OURS = {"auto_commit", "group", "on_assigned", "on_revoked", "on_lost", "key_deserializer", "value_deserializer"}
"""Options of a consumer that listeners set themselves."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListenerSpec:
    """What `@app.listener(...)` was told."""

    name: str
    topics: tuple[str, ...]
    group: str
    handler: Handler
    concurrency: int = 1
    order: Order = Order.KEY
    retry: Retry = dataclasses.field(default_factory=Retry)
    dead_letter: str | None = None
    on_failure: str = "stop"
    ack: str = "batch"
    commit_interval_s: float = 1.0
    batch_records: int = 1
    exactly_once: bool = False
    send_to: str | None = None
    buffer_records: int = 10_000
    buffer_bytes: int = 64 << 20
    revoke_timeout_s: float = 30.0
    transactional_id: str | None = None
    value_serializer: Any = None
    telemetry: Any = None
    consumer: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for wrong, what_to_do in self._refusals():
            if wrong:
                raise ListenerRefused(f"listener {self.name!r}: {what_to_do}")

    def _refusals(self) -> Iterable[tuple[bool, str]]:
        batch, manual = self.handler.is_batch, self.ack == "manual"
        yield (
            not self.topics or not all(isinstance(one, str) and one for one in self.topics),
            "name a topic to listen to",
        )
        yield not self.group, "give it a group, or the app a name"
        yield not 1 <= self.concurrency <= CONCURRENCY_MAX, f"concurrency is 1 to {CONCURRENCY_MAX}"
        yield self.ack not in ACKS, f"ack is {self.ack!r}: write one of {', '.join(ACKS)}"
        yield self.on_failure not in ON_FAILURE, f"on_failure is {self.on_failure!r}: write stop or skip"
        yield (
            manual and ACK not in self.handler.parameters,
            ('with ack="manual" the handler takes an Ack: def handle(order: Order, ack: Ack)'),
        )
        yield not manual and ACK in self.handler.parameters, 'the handler takes an Ack: add ack="manual"'
        yield self.exactly_once and self.handler.idempotence is not None, "exactly once needs no idempotent processing"
        yield self.transactional_id is not None and not self.exactly_once, "transactional_id is for exactly_once=True"
        yield manual and self.exactly_once, "exactly_once commits by itself: leave ack away"
        yield self.dead_letter in self.topics, "the dead letters cannot go to a topic that it listens to"
        yield (
            batch and self.exactly_once and self.order is not Order.PARTITION,
            ('batches are exactly once only with order="partition": a batch has to be committed as a whole'),
        )
        yield batch and bool(self.retry.topics) and self.order is Order.NONE, 'batches need order="key" or "partition"'
        yield min(self.buffer_records, self.buffer_bytes, self.batch_records) < 1, "limits are at least 1"
        taken = sorted(OURS & set(self.consumer))
        yield bool(taken), f"{', '.join(taken)} cannot be set for a listener"

    @property
    def retry_topics(self) -> dict[str, str]:
        """Every retry topic, and the topic that it is made like."""
        return {retry_topic(topic, self.group, delay): topic for topic in self.topics for delay in self.retry.topics}

    @property
    def consumer_options(self) -> Mapping[str, Any]:
        """Exactly once begins with records that count: those of an aborted transaction do not."""
        return {"isolation_level": "read_committed", **self.consumer} if self.exactly_once else self.consumer

    @property
    def all_topics(self) -> tuple[str, ...]:
        return (*self.topics, *self.retry_topics)

    @property
    def made_topics(self) -> dict[str, str]:
        """Topics that the listener writes to for itself, and the one that each is made like if it is missing."""
        found = dict(self.retry_topics)
        if self.dead_letter is not None:
            found[self.dead_letter] = self.topics[0]
        return found
