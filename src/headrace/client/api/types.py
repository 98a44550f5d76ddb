"""What comes out of a consumer: records, batches of one partition, and what is left to read."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

from headrace.client.consume.records import Record as Record, TopicPartition as TopicPartition
from headrace.client.produce.transaction_offsets import GroupMetadata as GroupMetadata


class Batch(Sequence[Record]):
    """Consecutive records of one partition."""

    __slots__ = ("partition", "records", "topic")

    def __init__(self, topic: str, partition: int, records: list[Record]) -> None:
        self.topic = topic
        self.partition = partition
        self.records = records

    @property
    def topic_partition(self) -> TopicPartition:
        """Where all its records are from."""
        return TopicPartition(self.topic, self.partition)

    @property
    def next_offset(self) -> int:
        """Where to go on behind it: what a commit of the batch commits."""
        return self.records[-1].offset + 1

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        return self.records[index]

    def __repr__(self) -> str:
        first = self.records[0].offset if self.records else "-"
        return f"Batch({self.topic}-{self.partition} from {first}, {len(self.records)} records)"


class PartitionLag(NamedTuple):
    """How far a consumer is behind the end of a partition."""

    records: int
    seconds: float | None
    """How old the oldest unread record is. 0 at the end; None when that is not known."""
