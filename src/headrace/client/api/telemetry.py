"""Spans of OpenTelemetry around sending, receiving and processing, by its conventions for messaging systems.

The trace goes from sender to reader in the record's headers (W3C's traceparent). Clients that are given no `Telemetry`
do nothing for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from headrace.client.api.types import Record
from headrace.client.errors import ClientError
from headrace.client.produce.deliveries import Delivery
from headrace.version import __version__

LINKS_MAX = 128
"""Of one span to the records of its batch: what OpenTelemetry's SDK keeps by default."""


class Telemetry:
    """Give it to clients and apps: `headrace.Producer(telemetry=headrace.Telemetry())`. Needs the extra `telemetry`.

    Without a provider of your own, OpenTelemetry's global one is used, and its global propagator.
    """

    def __init__(self, tracer_provider: Any = None) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError:
            raise ClientError("telemetry needs opentelemetry: pip install 'headrace[telemetry]'") from None
        self._trace = trace
        self._propagate = propagate
        self._tracer = trace.get_tracer("headrace", __version__, tracer_provider)

    # -- sending

    def begin_send(self, topic: str, key: Any, headers: Any, client_id: str) -> tuple[Any, list[tuple[str, Any]]]:
        """A span for one record, and its headers with the span's context."""
        attributes = _attributes("send", "send", topic, client_id)
        if isinstance(key, str | bytes):
            attributes["messaging.kafka.message.key"] = key if isinstance(key, str) else key.decode(errors="replace")
        span = self._tracer.start_span(f"send {topic}", kind=self._trace.SpanKind.PRODUCER, attributes=attributes)
        carried: dict[str, str] = {}
        self._propagate.inject(carried, self._trace.set_span_in_context(span))
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers or ())
        kept = [pair for pair in pairs if not (isinstance(pair, tuple) and pair and pair[0] in carried)]
        return span, kept + [(name, text.encode()) for name, text in carried.items()]

    def sent(self, span: Any, delivery: Delivery) -> None:
        """The record of a span is written, or failed for good."""
        offset, error = delivery.outcome
        if error is not None:
            self.fail(span, error)
            return
        span.set_attribute("messaging.destination.partition.id", str(delivery.partition))
        if offset >= 0:
            span.set_attribute("messaging.kafka.offset", offset)
        span.end()

    def fail(self, span: Any, error: BaseException) -> None:
        """End a span with what went wrong."""
        span.set_attribute("error.type", type(error).__name__)
        span.set_status(self._trace.StatusCode.ERROR, str(error))
        span.end()

    # -- receiving

    def received(self, records: Sequence[Record], group: str | None, client_id: str) -> None:
        """A span for records of one partition that were handed out, with a link to each one's own trace."""
        topic, partition = records[0].topic, records[0].partition
        attributes = _attributes("receive", "poll", topic, client_id, group)
        attributes["messaging.destination.partition.id"] = str(partition)
        attributes["messaging.batch.message_count"] = len(records)
        kind = self._trace.SpanKind.CLIENT
        self._tracer.start_span(f"poll {topic}", kind=kind, links=self._links(records), attributes=attributes).end()

    @contextmanager
    def process(
        self, records: Record | Sequence[Record], *, group: str | None = None, client_id: str = "headrace"
    ) -> Iterator[Any]:
        """`with telemetry.process(record):` a span around what is done with a record, within the trace of its sender.

        Of a batch, the span has links to the traces of its records instead. Listeners do this by themselves.
        """
        rows = [records] if isinstance(records, Record) else list(records)
        first = rows[0]
        attributes = _attributes("process", "process", first.topic, client_id, group)
        attributes["messaging.destination.partition.id"] = str(first.partition)
        if len(rows) == 1:
            attributes["messaging.kafka.offset"] = first.offset
            context = self._context_of(first)
        else:
            attributes["messaging.batch.message_count"] = len(rows)
            context = None
        with self._tracer.start_as_current_span(
            f"process {first.topic}",
            context=context,
            kind=self._trace.SpanKind.CONSUMER,
            links=self._links(rows),
            attributes=attributes,
        ) as span:
            try:
                yield span
            except Exception as error:
                span.set_attribute("error.type", type(error).__name__)
                raise

    def _context_of(self, record: Record) -> Any:
        carried = {name: content.decode(errors="replace") for name, content in record.headers if content is not None}
        return self._propagate.extract(carried)

    def _links(self, records: Sequence[Record]) -> list[Any]:
        found = []
        for record in records[:LINKS_MAX]:
            context = self._trace.get_current_span(self._context_of(record)).get_span_context()
            if context.is_valid:
                found.append(self._trace.Link(context))
        return found


def _attributes(kind: str, name: str, topic: str, client_id: str, group: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "messaging.system": "kafka",
        "messaging.operation.type": kind,
        "messaging.operation.name": name,
        "messaging.destination.name": topic,
        "messaging.client.id": client_id,
    }
    if group is not None:
        found["messaging.consumer.group.name"] = group
    return found
