"""The headers of dead letters and of records in retry topics: where a record came from and why it is there.

Names and forms of `kafka_dlt-*` are those of Spring for Apache Kafka (numbers big-endian), so that tools which know
them read ours; what Spring has no name for begins with `headrace-`.
"""

import traceback
from typing import NamedTuple

Headers = tuple[tuple[str, bytes | None], ...]

ORIGINAL_TOPIC = "kafka_dlt-original-topic"
ORIGINAL_PARTITION = "kafka_dlt-original-partition"
ORIGINAL_OFFSET = "kafka_dlt-original-offset"
ORIGINAL_TIMESTAMP = "kafka_dlt-original-timestamp"
ORIGINAL_GROUP = "kafka_dlt-original-consumer-group"
EXCEPTION_TYPE = "kafka_dlt-exception-fqcn"
EXCEPTION_MESSAGE = "kafka_dlt-exception-message"
EXCEPTION_STACKTRACE = "kafka_dlt-exception-stacktrace"
LISTENER = "headrace-listener"
ATTEMPTS = "headrace-attempts"
"""How often the record was tried in all, retry topics included, as decimal text."""
RETRY_STAGE = "headrace-retry-stage"
RETRY_DUE_MS = "headrace-retry-due-ms"
"""When a record in a retry topic is to be tried, in milliseconds since 1970, as decimal text."""
REPLAYS = "headrace-replays"
"""How often the record came back from the dead letters, as decimal text."""

_ORIGIN = {ORIGINAL_TOPIC, ORIGINAL_PARTITION, ORIGINAL_OFFSET, ORIGINAL_TIMESTAMP, ORIGINAL_GROUP}
_FAILURE = {EXCEPTION_TYPE, EXCEPTION_MESSAGE, EXCEPTION_STACKTRACE, LISTENER, ATTEMPTS, RETRY_STAGE, RETRY_DUE_MS}
OWN = _ORIGIN | _FAILURE
TEXT_BYTES_MAX = 8 << 10
"""Of a message or a traceback: an exception that quotes its input must not make a record too large to be sent."""


class Origin(NamedTuple):
    """Where a record was before it failed for the first time."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    group: str


class Failure(NamedTuple):
    """Why a record is where it is, as far as its headers say."""

    origin: Origin | None
    exception: str
    message: str
    stacktrace: str
    listener: str
    attempts: int
    replays: int


def attempts_of(headers: Headers) -> int:
    """How often a record was tried before it came here."""
    return _number(headers, ATTEMPTS)


def stage_of(headers: Headers) -> int:
    """The number of the retry topic that a record was sent to; 0 without one."""
    return _number(headers, RETRY_STAGE)


def due_ms_of(headers: Headers) -> int:
    """When a record of a retry topic is due; 0 if it is at once."""
    return _number(headers, RETRY_DUE_MS)


def failure_headers(
    headers: Headers, origin: Origin, error: BaseException, *, listener: str, attempts: int,
    stage: int = 0, due_ms: int = 0,
) -> Headers:  # fmt: skip
    """The record's own headers, and why it is sent away. One that came from a retry topic keeps its first origin."""
    known = {name for name, _ in headers}
    kept = tuple((name, content) for name, content in headers if name not in _FAILURE)
    where: Headers = ()
    if ORIGINAL_TOPIC not in known:
        where = (
            (ORIGINAL_TOPIC, origin.topic.encode()),
            (ORIGINAL_PARTITION, origin.partition.to_bytes(4, "big")),
            (ORIGINAL_OFFSET, origin.offset.to_bytes(8, "big")),
            (ORIGINAL_TIMESTAMP, origin.timestamp.to_bytes(8, "big", signed=True)),
            (ORIGINAL_GROUP, origin.group.encode()),
        )
    kind = type(error)
    why: Headers = (
        (EXCEPTION_TYPE, f"{kind.__module__}.{kind.__qualname__}".encode()),
        (EXCEPTION_MESSAGE, _short(str(error))),
        (EXCEPTION_STACKTRACE, _short("".join(traceback.format_exception(error)))),
        (LISTENER, listener.encode()),
        (ATTEMPTS, str(attempts).encode()),
    )
    if stage:
        why += ((RETRY_STAGE, str(stage).encode()), (RETRY_DUE_MS, str(due_ms).encode()))
    return kept + where + why


def failure_of(headers: Headers) -> Failure:
    """What the headers of a dead letter say; also of one that Spring has written."""
    fields = dict(headers)
    topic = fields.get(ORIGINAL_TOPIC)
    origin = None
    if topic is not None:
        origin = Origin(
            _text(topic),
            int.from_bytes(fields.get(ORIGINAL_PARTITION) or b"", "big"),
            int.from_bytes(fields.get(ORIGINAL_OFFSET) or b"", "big"),
            int.from_bytes(fields.get(ORIGINAL_TIMESTAMP) or b"", "big", signed=True),
            _text(fields.get(ORIGINAL_GROUP)),
        )
    return Failure(
        origin,
        _text(fields.get(EXCEPTION_TYPE)),
        _text(fields.get(EXCEPTION_MESSAGE)),
        _text(fields.get(EXCEPTION_STACKTRACE)),
        _text(fields.get(LISTENER)),
        _number(headers, ATTEMPTS),
        _number(headers, REPLAYS),
    )


def replay_headers(headers: Headers) -> Headers:
    """The headers of a record that is sent back to where it failed: its own, and how often it came back."""
    kept = tuple((name, content) for name, content in headers if name not in OWN and name != REPLAYS)
    return (*kept, (REPLAYS, str(_number(headers, REPLAYS) + 1).encode()))


def _number(headers: Headers, name: str) -> int:
    text = next((content for key, content in reversed(headers) if key == name), None)
    return int(text) if text is not None and text.isdigit() and len(text) < 20 else 0


def _text(content: bytes | None) -> str:
    return "" if content is None else content.decode(errors="replace")


def _short(text: str) -> bytes:
    content = text.encode(errors="replace")
    return content if len(content) <= TEXT_BYTES_MAX else content[: TEXT_BYTES_MAX - 3] + b"..."
