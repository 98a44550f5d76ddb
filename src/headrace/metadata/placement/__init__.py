"""Which brokers hold the replicas of new partitions, by one of two placers: `shifted` and `striped` (decision 0025).

Both are pure. The dice is an argument: `dice(n)` returns a number in [0, n).
"""

from collections.abc import Callable, Mapping, Sequence

from headrace.errors import Err, KafkaError

from .brokers import Dice, UsableBroker
from .shifted import place_shifted
from .striped import place_striped

Placer = Callable[[Sequence[UsableBroker], int, int, Dice], list[list[int]]]

PLACERS: Mapping[str, Placer] = {"shifted": place_shifted, "striped": place_striped}
"""By the values of `replica.placement`."""
DEFAULT_PLACER = "shifted"

__all__ = ["DEFAULT_PLACER", "PLACERS", "Dice", "UsableBroker", "place"]


def place(
    brokers: Sequence[UsableBroker],
    partitions: int,
    replication_factor: int,
    dice: Dice,
    placer: str = DEFAULT_PLACER,
) -> list[list[int]]:
    """Replicas for each of `partitions` new partitions, the preferred leader first; no broker twice in one."""
    if replication_factor <= 0:
        raise KafkaError(Err.INVALID_REPLICATION_FACTOR, f"replication factor {replication_factor} is not positive")
    if all(broker.fenced for broker in brokers):
        raise KafkaError(Err.INVALID_REPLICATION_FACTOR, "all brokers are currently fenced")
    if replication_factor > len(brokers):
        raise KafkaError(
            Err.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} needs as many brokers, and only {len(brokers)} are registered",
        )
    return PLACERS[placer](brokers, partitions, replication_factor, dice)
