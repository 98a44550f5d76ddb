"""Spans of producers, consumers and listeners, as OpenTelemetry's own SDK collects them."""

import asyncio
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, get_current_span

import headrace
from headrace.testing.broker import TestBroker
from tests.client.support import QUICK, read, run


class Spans:
    """A telemetry, and what it has made."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.telemetry = headrace.Telemetry(provider)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def test_a_trace_goes_from_sender_to_reader(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        spans = Spans()
        async with headrace.Producer(broker.bootstrap, telemetry=spans.telemetry) as producer:
            await producer.send_batch(topic, [b"a", b"b"], keys=[b"k", b"l"], headers={"own": b"1"})
        sent = spans.named(f"send {topic}")
        assert len(sent) == 2 and all(span.kind is SpanKind.PRODUCER for span in sent)
        attributes: Any = sent[0].attributes
        assert attributes["messaging.system"] == "kafka" and attributes["messaging.destination.name"] == topic
        assert attributes["messaging.kafka.message.key"] == "k" and attributes["messaging.kafka.offset"] == 0
        async with headrace.Consumer(topic, bootstrap=broker.bootstrap, telemetry=spans.telemetry, **QUICK) as consumer:
            records = await read(consumer, 2)
        assert [name for name, _ in records[0].headers] == ["own", "traceparent"]
        links = {link.context.trace_id for span in spans.named(f"poll {topic}") for link in span.links}
        assert links == {trace_of(span) for span in sent}
        with pytest.raises(ZeroDivisionError), spans.telemetry.process(records[1]):
            raise ZeroDivisionError
        (process,) = spans.named(f"process {topic}")
        assert trace_of(process) == trace_of(sent[1]) and process.kind is SpanKind.CONSUMER
        assert process.status.status_code is StatusCode.ERROR

    run(broker, work)


def test_a_record_that_fails_says_so_in_its_span_and_still_in_flush(broker: TestBroker) -> None:
    async def work(topic: str) -> None:
        spans = Spans()
        async with headrace.Producer(broker.bootstrap, telemetry=spans.telemetry) as producer:
            await producer.send_soon(topic, b"x" * 5_000)
            with pytest.raises(headrace.RequestFailed):
                await producer.flush()
        (span,) = spans.named(f"send {topic}")
        attributes: Any = span.attributes
        assert span.status.status_code is StatusCode.ERROR and attributes["error.type"] == "RequestFailed"

    run(broker, work, configs={"max.message.bytes": "2000"})


@pytest.mark.parametrize("plain", [False, True])
def test_a_listener_works_within_the_trace_of_who_sent(broker: TestBroker, plain: bool) -> None:
    async def work(topic: str) -> None:
        spans = Spans()
        seen: list[int] = []
        app = headrace.App(
            f"app-{topic}", bootstrap=broker.bootstrap, telemetry=spans.telemetry, retry_timeout_ms=5_000
        )
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def note(value: bytes) -> None:
            seen.append(get_current_span().get_span_context().trace_id)
            loop.call_soon_threadsafe(done.set)

        if plain:
            app.listener(topic)(note)
        else:

            @app.listener(topic)
            async def handle(value: bytes) -> None:
                note(value)

        async with headrace.Producer(broker.bootstrap, telemetry=spans.telemetry) as producer:
            await producer.send(topic, b"x")
        async with app:
            await done.wait()
        (sent,) = spans.named(f"send {topic}")
        (process,) = spans.named(f"process {topic}")
        assert seen == [trace_of(sent)] == [trace_of(process)]

    run(broker, work)
