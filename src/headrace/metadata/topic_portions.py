"""Large requests to create or delete topics, divided into changes of a few hundred topics each.

One change is decided, written and applied in one piece: with thousands of topics nobody else would be served meanwhile.
What Kafka refuses as too many changes is refused here too, before the first of them. Rows that concern one topic stay
together, because twice the same topic is an error of both.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, TypeVar

from msgspec.structs import replace

from headrace.metadata.image import Image
from headrace.metadata.outcome import check_size
from headrace.protocol import messages as m

Row = TypeVar("Row")

PORTION_CHANGES = 500
"""Records in one change, unless a single topic makes more: some 5 ms."""


def creation_portions(
    image: Image, request: m.CreateTopicsRequest, default_partitions: int
) -> list[m.CreateTopicsRequest]:
    """Raises TooManyChanges if the topics that are new are too many for one request."""

    def changes(row: Any) -> int:
        partitions = len(row.assignments) or row.num_partitions
        return 1 + len(row.configs) + (default_partitions if partitions < 1 else partitions)

    if sum(map(changes, request.topics)) <= PORTION_CHANGES:
        return [request]
    new = {row.name: row for row in request.topics if row.name not in image.topic_ids}
    check_size(sum(map(changes, new.values())))
    parts = _divided(request.topics, lambda row: row.name, changes)
    return [replace(request, topics=part) for part in parts]


def deletion_portions(image: Image, request: m.DeleteTopicsRequest) -> list[m.DeleteTopicsRequest]:
    """Raises TooManyChanges if the topics that exist are too many for one request."""

    def topic_of(row: Any) -> Any:
        if row.name is not None:
            return row.name
        known = image.topics.get(row.topic_id)
        return row.topic_id if known is None else known.name

    if len(request.topics) + len(request.topic_names) <= PORTION_CHANGES:
        return [request]
    named = {*request.topic_names, *map(topic_of, request.topics)}
    check_size(sum(name in image.topic_ids for name in named))
    by_name = _divided(request.topic_names, lambda name: name, lambda name: 1)
    by_row = _divided(request.topics, topic_of, lambda row: 1)
    return [replace(request, topic_names=part, topics=[]) for part in by_name] + [
        replace(request, topic_names=[], topics=part) for part in by_row
    ]


def is_large(request: Any) -> bool:
    """Whether one topic gets so many partitions that it makes a long decision by itself."""
    if isinstance(request, m.CreateTopicsRequest):
        return any(max(row.num_partitions, len(row.assignments)) > PORTION_CHANGES for row in request.topics)
    return isinstance(request, m.CreatePartitionsRequest) and any(row.count > PORTION_CHANGES for row in request.topics)


def _divided(
    rows: Iterable[Row], topic_of: Callable[[Row], Hashable], changes: Callable[[Row], int]
) -> Iterator[list[Row]]:
    rows = list(rows)
    counts = Counter(map(topic_of, rows))
    if repeated := [row for row in rows if counts[topic_of(row)] > 1]:
        yield repeated  # refused, so that there are no changes to count
    part: list[Row] = []
    size = 0
    for row in rows:
        if counts[topic_of(row)] > 1:
            continue
        if part and size + changes(row) > PORTION_CHANGES:
            yield part
            part, size = [], 0
        part.append(row)
        size += changes(row)
    if part:
        yield part
