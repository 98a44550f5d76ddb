"""A topic's options and schemas, read as the connector itself will read them, and each error put at its place in the
spec."""

from collections.abc import Callable, Mapping

from headrace.client.registry.errors import RegistryError
from headrace.spark.formats import decoder_for
from headrace.spark.options import KAFKA, OptionError
from headrace.spark.pipelines.spec.model import Pipeline, Sink, Source, ValueFormat
from headrace.spark.pipelines.spec.problems import Problem, Where
from headrace.spark.pipelines.spec.topic_options import OPTION_KEYS, sink_options, source_options
from headrace.spark.plain_errors import UserError
from headrace.spark.sink.options import SinkOptions
from headrace.spark.source.options import SourceOptions

SCHEMA_OPTIONS = ("valueSchemaFile", "valueSchema", "valueSchemaRegistry")
"""One of these is to blame for a schema that cannot be used or had."""


def check_options(pipeline: Pipeline) -> list[Problem]:
    """What the connector would refuse."""
    problems = []
    for source in pipeline.sources.values():
        if source.is_topic:
            problems += _refused(pipeline, source, _check_read, source_options(pipeline, source))
    for sink in pipeline.sinks.values():
        if sink.topic is not None:
            problems += _refused(pipeline, sink, SinkOptions.read, sink_options(pipeline, sink))
    return problems


def _check_read(given: Mapping[str, str]) -> None:
    options = SourceOptions.read(given, streaming=True)
    if options.values["valueFormat"] is not None:
        decoder_for(options.values)


def _refused(
    pipeline: Pipeline, part: Source | Sink, read: Callable[[Mapping[str, str]], object], options: Mapping[str, str]
) -> list[Problem]:
    try:
        read(options)
    except OptionError as error:
        return [Problem(place_of(pipeline, part, error.option or "subscribe"), error.problem, error.fix)]
    except UserError as error:
        named = error.option or next((name for name in SCHEMA_OPTIONS if name in options), "valueFormat")
        return [Problem(place_of(pipeline, part, named), error.problem, error.fix)]
    except RegistryError as error:
        return [Problem(place_of(pipeline, part, "valueSchemaRegistry"), str(error))]
    return []


def place_of(pipeline: Pipeline, part: Source | Sink, option: str) -> Where:
    """Where in the spec an option was given, or should have been."""
    own = next((key for key in part.options if key.lower() == option.lower()), None)
    if own is not None:
        return part.place("options").child(own)
    if option.startswith(KAFKA) and option not in OPTION_KEYS and pipeline.kafka:
        name = option.removeprefix(KAFKA)
        place = pipeline.place("kafka")
        return place.child(name) if name in pipeline.kafka else place
    key, _, inner = OPTION_KEYS.get(option, "topic").partition(".")
    value = part.value
    return value.place(inner) if inner and isinstance(value, ValueFormat) else part.place(key)
