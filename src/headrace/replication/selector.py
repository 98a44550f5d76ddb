"""Which replica a consumer should read from (KIP-392): one in its own rack, if any of those is in sync.

Pure. Only Kafka's own two selectors exist: the leader, and the rack-aware one.
"""

from collections.abc import Iterable
from typing import NamedTuple

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class Candidate(NamedTuple):
    """A replica in sync that has the offset asked for."""

    node_id: int
    rack: str | None
    end_offset: int
    caught_up_ms: int


def in_rack(rack: str, leader: Candidate, followers: Iterable[Candidate]) -> int:
    """The replica to read from: the leader where it is as near as any, else the one that is furthest on."""
    if not rack or leader.rack == rack:
        return leader.node_id
    near = [candidate for candidate in followers if candidate.rack == rack]
    if not near:
        return leader.node_id
    return max(near, key=lambda one: (one.end_offset, one.caught_up_ms, -one.node_id)).node_id
