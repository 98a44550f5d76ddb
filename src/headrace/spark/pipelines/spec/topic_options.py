"""Topics of a spec as options of format("headrace"): which option each key stands for. Pure."""

from headrace.spark.pipelines.spec.model import Pipeline, Sink, Source, ValueFormat

GROUP = "kafka.group.id"
ISOLATION = "kafka.isolation.level"
ERROR_COLUMN = "_headrace_error"
"""Of sources with dead letters: why a value could not be read. Such rows are counted and then left out."""


def source_options(pipeline: Pipeline, source: Source, sink: Sink | None = None) -> dict[str, str]:
    """What a read for `sink` sets. Each sink is a query with a place of its own in the topic, so it has its own
    group."""
    options = _cluster(pipeline, source) | {"startingOffsets": source.start}
    if sink is not None:
        options[GROUP] = f"{pipeline.name}-{sink.name}"
    if source.topic:
        options["subscribe"] = ",".join(source.topic)
    else:
        assert source.pattern is not None
        options["subscribePattern"] = source.pattern
    options |= value_options(source.value) | dict(source.options)
    if sink is not None and sink.is_exactly_once and ISOLATION not in {name.lower() for name in options}:
        # What others have written and taken back must not be carried on.
        options[ISOLATION] = "read_committed"
    lower = {name.lower(): text.lower() for name, text in options.items()}
    if lower.get("badrows") == "deadletter" and "errorcolumn" not in lower:
        options["errorColumn"] = ERROR_COLUMN
    return options


def value_options(value: ValueFormat | None) -> dict[str, str]:
    if value is None or not value.is_typed:
        return {}
    given = {
        "valueFormat": value.format,
        "valueSchema": value.schema,
        "valueSchemaFile": None if value.schema_file is None else str(value.schema_file),
        "valueSchemaRegistry": value.registry,
        "valueSchemaSubject": value.subject,
        "valueMessage": value.message,
        "badRows": "deadLetter" if value.on_error == "dead-letter" else None,
        "deadLetterTopic": value.dead_letters,
    }
    return {name: text for name, text in given.items() if text is not None}


OPTION_KEYS = {
    "startingOffsets": "start",
    "kafka.bootstrap.servers": "bootstrap",
    "subscribePattern": "pattern",
    "subscribe": "topic",
    "valueFormat": "value",
    "valueSchema": "value.schema",
    "valueSchemaFile": "value.schema_file",
    "valueSchemaRegistry": "value.registry",
    "valueSchemaSubject": "value.subject",
    "valueMessage": "value.message",
    "badRows": "value.on_error",
    "deadLetterTopic": "value.dead_letters",
    "delivery": "delivery",
}
"""Which key of a spec an option comes from."""


def sink_options(pipeline: Pipeline, sink: Sink) -> dict[str, str]:
    assert sink.topic is not None
    typed = value_options(sink.value) if isinstance(sink.value, ValueFormat) else {}
    options = _cluster(pipeline, sink) | {"topic": sink.topic} | typed
    if sink.is_exactly_once:
        options["delivery"] = sink.delivery
        if sink.mode == "update":
            # Written by a function of foreachBatch, whose one write it is.
            options["writeId"] = sink.name
    return options | dict(sink.options)


def _cluster(pipeline: Pipeline, part: Source | Sink) -> dict[str, str]:
    """Which brokers, and how to speak to them. Those of another cluster must not be shown this one's logins."""
    if part.bootstrap is not None:
        return {"kafka.bootstrap.servers": part.bootstrap}
    shared = {f"kafka.{name}": value for name, value in pipeline.kafka.items()}
    return {"kafka.bootstrap.servers": pipeline.bootstrap} | shared
