"""What a group subscribes to: topics counted by how they came in, patterns resolved to topics, and a hash that tells
whether any of these topics has changed."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from struct import Struct
from typing import NamedTuple

import xxhash

from headrace.coordinator.consumer_regex import TopicPattern
from headrace.errors import KafkaError
from headrace.metadata.image import Image, Topic

WORK_PER_SLICE = 50_000
"""Automaton steps between two turns of the loop: a few milliseconds."""
COMPILED_PER_SLICE = 16
WORK_MAX = 20_000_000
WORK_PER_TOPIC_MAX = 1_000
"""Together the most steps one pattern may take. Only patterns made for the purpose come near."""


class Counts(NamedTuple):
    """How many members name a topic, and how many patterns of the group match it."""

    by_name: int = 0
    by_regex: int = 0


TopicCounts = Mapping[str, Counts]


def count(counts: dict[str, Counts], topics: Iterable[str], by_name: int = 0, by_regex: int = 0) -> None:
    """Adds to (or takes from) the counts of each topic; what nobody wants any more goes."""
    moved: dict[Counts | None, Counts] = {}
    """Many topics have the same counts: to make these is most of the work, and done once."""
    for topic in topics:
        old = counts.get(topic)
        new = moved.get(old)
        if new is None:
            before = old or Counts()
            new = moved[old] = Counts(before.by_name + by_name, before.by_regex + by_regex)
        if new[0] > 0 or new[1] > 0:
            counts[topic] = new
        elif old is not None:
            del counts[topic]


def existing(image: Image, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Those of `names` that are topics, with their ids; by way of the smaller of the two, since a member may name many
    that are none."""
    known = image.topic_ids
    if len(names) <= len(known):
        for name in names:
            topic_id = known.get(name)
            if topic_id is not None:
                yield name, topic_id
    else:
        yield from ((name, topic_id) for name, topic_id in known.items() if name in names)


def is_homogeneous(topics: TopicCounts, regexes: Mapping[str, int], member_count: int) -> bool:
    """Whether all members subscribe to the same topics, as far as can be told without looking at each."""
    if not regexes:
        return all(counts.by_name == member_count for counts in topics.values())
    if next(iter(regexes.values())) != member_count:
        return False
    return all(counts.by_regex == 1 and counts.by_name == 0 for counts in topics.values())


class ResolvedRegex(NamedTuple):
    topics: frozenset[str]
    version: int
    """Offset of the metadata it was resolved with."""
    timestamp_ms: int


UNRESOLVED = ResolvedRegex(frozenset(), -1, -1)

# The hash -------------------------------------------------------------------------------------------------------------

_MAGIC = b"\x00"
_ID = Struct(">qq")
_HEAD = Struct("<qq")
_INT = Struct("<i")
_HASH = Struct("<q")


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def topic_hash(image: Image, topic: Topic) -> int:
    """XXH3 over the topic's id, name and partitions with the racks of their replicas, laid out as Kafka does it."""
    parts = [_MAGIC, _HEAD.pack(*_ID.unpack(topic.id)), _text(topic.name), _INT.pack(len(topic.partitions))]
    for number in range(len(topic.partitions)):
        parts.append(_INT.pack(number))
        for rack in sorted(_racks(image, topic, number)):
            parts.append(_INT.pack(len(rack.encode("utf-16-le")) // 2))
            parts.append(_text(rack))
    return _signed(xxhash.xxh3_64_intdigest(b"".join(parts)))


def _text(value: str) -> bytes:
    """UTF-16, followed by the number of its units."""
    data = value.encode("utf-16-le", "surrogatepass")
    return data + _INT.pack(len(data) // 2)


def _racks(image: Image, topic: Topic, number: int) -> Iterator[str]:
    partition = topic.partitions.get(number)
    for broker_id in () if partition is None else partition.replicas:
        broker = image.brokers.get(broker_id)
        if broker is not None and broker.rack is not None:
            yield broker.rack


class TopicHashes:
    """Hashes of topics, kept as long as the topic stands: the image shares what has not changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Topic, int]] = {}

    def of(self, image: Image, names: Collection[str]) -> int:
        """The hash of a group's topics; those that do not exist do not count. `names` is asked for each topic there
        is: a set or a dict."""
        hashes = []
        for name, topic_id in sorted(existing(image, names)):
            topic = image.topics[topic_id]
            known = self._known.get(name)
            if known is None or known[0] is not topic:
                known = self._known[name] = (topic, topic_hash(image, topic))
            hashes.append(_HASH.pack(known[1]))
        return _signed(xxhash.xxh3_64_intdigest(b"".join(hashes))) if hashes else 0

    def forget(self, name: str) -> None:
        self._known.pop(name, None)


# Patterns -------------------------------------------------------------------------------------------------------------


class Resolution:
    """Finds the topics that match patterns, a slice at a time, in the metadata of one moment."""

    def __init__(
        self,
        image: Image,
        regexes: Collection[str],
        now_ms: int,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._version = image.offset
        self._timestamp_ms = now_ms
        self._note = note
        self._found: dict[str, set[str]] = {regex: set() for regex in regexes}
        self._slices = self._run(image)

    def go_on(self) -> dict[str, ResolvedRegex] | None:
        """None until all is done."""
        for _ in self._slices:
            return None
        return {
            regex: ResolvedRegex(frozenset(topics), self._version, self._timestamp_ms)
            for regex, topics in self._found.items()
        }

    def _run(self, image: Image) -> Iterator[None]:
        patterns: list[TopicPattern] = []
        for number, regex in enumerate(self._found, 1):
            patterns += self._compiled(regex)
            if number % COMPILED_PER_SLICE == 0:
                yield
        work_max = WORK_MAX + WORK_PER_TOPIC_MAX * len(image.topic_ids)
        until = WORK_PER_SLICE
        for name in image.topic_ids:
            for pattern in patterns:
                if pattern.matches(name):
                    self._found[pattern.pattern].add(name)
            work = sum(pattern.work for pattern in patterns)
            if work < until:
                continue
            until = work + WORK_PER_SLICE
            for pattern in [p for p in patterns if p.work > work_max]:
                # All or nothing: part of what it matches would be a subscription that nobody asked for.
                self._note(f"gave up on the regular expression `{pattern.pattern[:200]}`: it costs too much")
                self._found[pattern.pattern].clear()
                patterns.remove(pattern)
                until -= pattern.work
            yield

    def _compiled(self, regex: str) -> list[TopicPattern]:
        try:
            return [TopicPattern(regex)]
        except KafkaError as e:
            # Checked when the member sent it; another broker, or an earlier version, may have been less strict.
            self._note(f"ignored a regular expression: {e.message}")
            return []
