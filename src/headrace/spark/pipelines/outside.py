"""What a spec says about the world outside of it, checked before Spark starts: topics, options, jars."""

import asyncio
import re
from collections.abc import Callable, Mapping

from headrace.client.admin import LATEST, Admin
from headrace.client.errors import ClientError, RequestFailed, SecurityFailed
from headrace.client.security import Security
from headrace.errors import Err
from headrace.spark.formats import FormatError, decoder_for
from headrace.spark.masters import MasterUnusable, check_master
from headrace.spark.options import KAFKA, OptionError, kafka_security
from headrace.spark.pipelines.jars import check_jars
from headrace.spark.pipelines.problems import Problem, SpecInvalid, Where, choose
from headrace.spark.pipelines.spec import Pipeline, Sink, Source, ValueFormat
from headrace.spark.pipelines.topics import OPTION_KEYS, sink_options, source_options
from headrace.spark.plan import read_plan
from headrace.spark.sink_options import SinkOptions

CONNECT_LIMIT_S = 10.0


def check_options(pipeline: Pipeline) -> list[Problem]:
    """Options and schemas of topics as the connector itself reads them, and formats against the jars that are there."""
    problems = []
    for source in pipeline.sources.values():
        if source.is_topic:
            problems += _refused(pipeline, source, _check_read, source_options(pipeline, source))
    for sink in pipeline.sinks.values():
        if sink.topic is not None:
            problems += _refused(pipeline, sink, SinkOptions.read, sink_options(pipeline, sink))
    return problems + check_jars(pipeline)


def check_spark(pipeline: Pipeline) -> list[Problem]:
    """Whether there is a Spark where the pipeline is to run. Raises MasterUnusable for one that is not in the spec."""
    try:
        check_master(pipeline.spark.master, pipeline.spark.conf)
    except MasterUnusable as error:
        if "master" not in pipeline.spark.at:
            raise
        return [Problem(pipeline.spark.place("master"), error.message, error.fix)]
    return []


def _check_read(given: Mapping[str, str]) -> None:
    plan = read_plan(given, streaming=True)
    if plan.values["valueFormat"] is not None:
        decoder_for(plan.values)


def _refused(
    pipeline: Pipeline, part: Source | Sink, read: Callable[[Mapping[str, str]], object], options: Mapping[str, str]
) -> list[Problem]:
    try:
        read(options)
    except (OptionError, FormatError) as error:
        named = re.search(r"option '([^']+)'", str(error))
        message, _, fix = str(error).partition(": ")
        return [Problem(_place_of(pipeline, part, named[1] if named else "subscribe"), message, fix)]
    return []


def _place_of(pipeline: Pipeline, part: Source | Sink, option: str) -> Where:
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


async def prepare_topics(pipeline: Pipeline, *, create: bool) -> list[Problem]:
    """Missing topics as problems; with `create`, sinks that ask for it get theirs made."""
    problems: list[Problem] = []
    for (bootstrap, security), parts in _by_broker(pipeline).items():
        try:
            async with asyncio.timeout(CONNECT_LIMIT_S):
                async with Admin(bootstrap, security=security) as admin:
                    problems += await _check_topics(admin, parts, create)
        except SecurityFailed as error:
            message, _, fix = str(error).partition(": ")
            problems.append(Problem(_place_of(pipeline, parts[0], "kafka.security.protocol"), message, fix))
        except (ClientError, TimeoutError) as error:
            part = parts[0]
            where = part.place("bootstrap") if "bootstrap" in part.at else pipeline.place("bootstrap")
            reason = str(error) or f"no answer within {CONNECT_LIMIT_S:g} s"
            problems.append(
                Problem(
                    where,
                    f"the broker {bootstrap} cannot be asked: {reason}",
                    "start one with: headrace up, or correct `bootstrap:`",
                )
            )
    return problems


def _by_broker(pipeline: Pipeline) -> dict[tuple[str, Security], list[Source | Sink]]:
    """Topics by where they are and how to connect there."""
    found: dict[tuple[str, Security], list[Source | Sink]] = {}

    def add(part: Source | Sink, options: Mapping[str, str]) -> None:
        found.setdefault((options["kafka.bootstrap.servers"], kafka_security(options)), []).append(part)

    for source in pipeline.sources.values():
        if source.is_topic:
            add(source, source_options(pipeline, source))
    for sink in pipeline.sinks.values():
        if sink.topic is not None:
            add(sink, sink_options(pipeline, sink))
    return found


async def _check_topics(admin: Admin, parts: list[Source | Sink], create: bool) -> list[Problem]:
    known = [topic.name for topic in await admin.list_topics(include_internal=True)]
    problems = []
    for part in parts:
        value = part.value
        if isinstance(value, ValueFormat) and value.dead_letters is not None and value.dead_letters not in known:
            problems.append(_missing(value.place("dead_letters"), value.dead_letters, []))
        if isinstance(part, Sink):
            if part.topic not in known:
                problems += await _missing_sink_topic(admin, part, create)
            continue
        problems += [_missing(part.place("topic"), topic, known) for topic in part.topic if topic not in known]
        if part.pattern is not None and not any(re.fullmatch(part.pattern, name) for name in known):
            problems.append(
                Problem(
                    part.place("pattern"),
                    "no topic matches it",
                    f"topics: {', '.join(known)}" if known else "create one: headrace topic create NAME",
                )
            )
    return problems


async def _missing_sink_topic(admin: Admin, sink: Sink, create: bool) -> list[Problem]:
    assert sink.topic is not None
    if sink.create_partitions is None:
        return [
            Problem(
                sink.place("topic"),
                f"there is no topic {sink.topic}",
                f"headrace topic create {sink.topic}, or add `create_partitions: 3` to have it made",
            )
        ]
    if create:
        try:
            await admin.create_topic(sink.topic, sink.create_partitions)
        except RequestFailed as error:
            if error.error is not Err.TOPIC_ALREADY_EXISTS:
                return [
                    Problem(sink.place("create_partitions"), str(error), "create it by hand: headrace topic create")
                ]
    return []


def _missing(where: Where, topic: str, known: list[str]) -> Problem:
    likely = choose(topic, known, "topics") if known else ""
    return Problem(
        where,
        f"there is no topic {topic}",
        f"headrace topic create {topic}" + (f"; {likely}" if likely.startswith("did") else ""),
    )


async def topic_ends(pipeline: Pipeline) -> dict[str, dict[str, int]]:
    """The end of each partition of each topic that is read by name."""
    found: dict[str, dict[str, int]] = {}
    for (bootstrap, security), parts in _by_broker(pipeline).items():
        async with Admin(bootstrap, security=security) as admin:
            for topic in {name for part in parts if isinstance(part, Source) for name in part.topic}:
                described = await admin.describe_topic(topic)
                ends = await admin.list_offsets(topic, dict.fromkeys(described.partitions, LATEST))
                found[topic] = {str(partition): one.offset for partition, one in ends.items()}
    return found


def check_outside(pipeline: Pipeline, *, create: bool = False) -> None:
    """Raises SpecInvalid with everything that is wrong outside."""
    problems = check_options(pipeline) + check_spark(pipeline)
    if not problems:
        problems = asyncio.run(prepare_topics(pipeline, create=create))
    if problems:
        raise SpecInvalid(problems)
