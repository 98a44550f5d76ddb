"""What a controller decision returns: the records to commit, and the answer to give once they are."""

from typing import Generic, NamedTuple, TypeVar

from headrace.errors import Err, KafkaError
from headrace.metadata.records import Record

T = TypeVar("T")

RECORDS_PER_BATCH_MAX = 10_000
"""As Kafka: a batch has to stay bounded. What a client asks for is one atomic batch, or refused. What comes of a broker
that holds more partitions is written in several, and a controller may die between them: the next one must be able to
finish."""


class Outcome(NamedTuple, Generic[T]):
    records: list[Record]
    response: T


class TooManyChanges(KafkaError):
    """Refuses a whole request, where other errors refuse one of its parts."""

    def __init__(self) -> None:
        message = f"the request makes more than {RECORDS_PER_BATCH_MAX} changes; ask for less at once"
        super().__init__(Err.POLICY_VIOLATION, message)


def check_size(changes: int) -> None:
    """Also before work is done for them: a request for two thousand million partitions must cost no more than a no."""
    if changes > RECORDS_PER_BATCH_MAX:
        raise TooManyChanges
