"""Levels of `metadata.version` and the other features: which record versions each writes, and what this build knows."""

from typing import NamedTuple

from headrace.metadata.image import METADATA_VERSION

KRAFT_VERSION = "kraft.version"
ELR_VERSION = "eligible.leader.replicas.version"
ELR_VERSION_LATEST = 1
"""1: who left an ISR that was too small may still lead (KIP-966)."""
GROUP_VERSION = "group.version"
GROUP_VERSION_LATEST = 1
"""1: the consumer protocol (KIP-848)."""
TRANSACTION_VERSION = "transaction.version"
TRANSACTION_VERSION_LATEST = 2
"""1: tagged fields in the records of transactions. 2: an epoch for each transaction (KIP-890)."""

METADATA_VERSION_LATEST = 30
"""4.3-IV0, what Kafka 4.3 formats a new cluster with."""


class Level(NamedTuple):
    level: int
    name: str
    partition_record: int
    partition_change_record: int
    register_broker_record: int
    metadata_changed: bool
    """Its records may hold what the level below cannot express, so going back could lose something."""


LEVELS: dict[int, Level] = {
    row.level: row
    for row in (
        Level(7, "3.3-IV3", 0, 0, 1, True),
        Level(8, "3.4-IV0", 0, 0, 2, True),
        Level(9, "3.5-IV0", 0, 0, 2, False),
        Level(10, "3.5-IV1", 0, 0, 2, False),
        Level(11, "3.5-IV2", 0, 0, 2, True),
        Level(12, "3.6-IV0", 0, 0, 2, False),
        Level(13, "3.6-IV1", 0, 0, 2, True),
        Level(14, "3.6-IV2", 0, 0, 2, True),
        Level(15, "3.7-IV0", 0, 0, 2, True),
        Level(16, "3.7-IV1", 0, 0, 2, False),
        Level(17, "3.7-IV2", 1, 1, 3, True),
        Level(18, "3.7-IV3", 1, 1, 3, False),
        Level(19, "3.7-IV4", 1, 1, 3, False),
        Level(20, "3.8-IV0", 1, 1, 3, False),
        Level(21, "3.9-IV0", 1, 1, 3, False),
        Level(22, "4.0-IV0", 1, 1, 3, False),
        Level(23, "4.0-IV1", 2, 2, 3, True),
        Level(24, "4.0-IV2", 2, 2, 3, False),
        Level(25, "4.0-IV3", 2, 2, 3, False),
        Level(26, "4.1-IV0", 2, 2, 3, False),
        Level(27, "4.1-IV1", 2, 2, 3, False),
        Level(28, "4.2-IV0", 2, 2, 3, False),
        Level(29, "4.2-IV1", 2, 2, 3, False),
        Level(30, "4.3-IV0", 2, 2, 4, True),
    )
}

CONTROLLER_REGISTRATION_LEVEL = 15
DIRECTORIES_LEVEL = 17
ELR_LEVEL = 23
CORDONED_DIRECTORIES_LEVEL = 30
EPOCH_BUMP_ON_SHRINK_BELOW = 12
"""From 3.6-IV0 on an ISR that only shrinks keeps its leader epoch."""

KNOWN_FEATURES: dict[str, tuple[int, int]] = {
    METADATA_VERSION: (7, METADATA_VERSION_LATEST),
    KRAFT_VERSION: (0, 1),
    ELR_VERSION: (0, ELR_VERSION_LATEST),
    GROUP_VERSION: (0, GROUP_VERSION_LATEST),
    TRANSACTION_VERSION: (0, TRANSACTION_VERSION_LATEST),
    "share.version": (0, 1),
    "streams.version": (0, 1),
}
"""Levels that this build starts on and its controller finalizes: all that Kafka 4.3 knows."""

SERVED_FEATURES: dict[str, tuple[int, int]] = {
    METADATA_VERSION: (7, METADATA_VERSION_LATEST),
    KRAFT_VERSION: (0, 1),
    ELR_VERSION: (0, ELR_VERSION_LATEST),
    GROUP_VERSION: (0, GROUP_VERSION_LATEST),
    TRANSACTION_VERSION: (0, TRANSACTION_VERSION_LATEST),
}
"""Levels that clients are told of, and may rely on."""

DEPENDENCIES: dict[tuple[str, int], dict[str, int]] = {
    (ELR_VERSION, 1): {METADATA_VERSION: ELR_LEVEL},
}
"""What else must be finalized, at least at which level."""


def level(metadata_version: int) -> Level:
    return LEVELS[metadata_version]
