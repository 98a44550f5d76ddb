"""Whether a spec's topics are there, asked of the brokers; sinks may have theirs created."""

import asyncio
import re
from collections.abc import Mapping

from headrace.client.admin.admin import LATEST, Admin
from headrace.client.errors import ClientError, RequestFailed, SecurityFailed
from headrace.client.security.channel import Security
from headrace.errors import Err
from headrace.spark.options import kafka_security
from headrace.spark.pipelines.checks.options import place_of
from headrace.spark.pipelines.spec.model import Pipeline, Sink, Source, ValueFormat
from headrace.spark.pipelines.spec.problems import Problem, Where, nearest
from headrace.spark.pipelines.spec.topic_options import sink_options, source_options

CONNECT_LIMIT_S = 10.0


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
            problems.append(Problem(place_of(pipeline, parts[0], "kafka.security.protocol"), message, fix))
        except TimeoutError:
            problems.append(_unreachable(pipeline, parts[0], bootstrap, f"no answer within {CONNECT_LIMIT_S:g} s"))
        except ClientError as error:
            problems.append(_unreachable(pipeline, parts[0], bootstrap, str(error)))
    return problems


def _unreachable(pipeline: Pipeline, part: Source | Sink, bootstrap: str, reason: str) -> Problem:
    return Problem(
        part.place("bootstrap") if "bootstrap" in part.at else pipeline.place("bootstrap"),
        f"the broker {bootstrap} cannot be asked: {reason}",
        "start one with: headrace up, or correct `bootstrap:`",
    )


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
    likely = nearest(topic, known)
    hint = f"; did you mean {likely!r}?" if likely is not None else ""
    return Problem(where, f"there is no topic {topic}", f"headrace topic create {topic}{hint}")


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
