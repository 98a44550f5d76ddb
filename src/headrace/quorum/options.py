"""What the configuration says about a node's part in the quorum."""

import logging
from typing import NamedTuple

from headrace.quorum import QuorumError
from headrace.quorum.cleaning import SnapshotLimits
from headrace.quorum.folder import Identity, Layout
from headrace.quorum.snapshots import Voter
from headrace.raft.types import RaftMember, RaftOptions, ReplicaKey
from headrace.raft.voters import VoterSet

logger = logging.getLogger("headrace.quorum")


class KraftOptions(NamedTuple):
    """The metadata.* options, those of the quorum itself, and what a new cluster begins with."""

    raft: RaftOptions = RaftOptions()
    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    limits: SnapshotLimits = SnapshotLimits()
    static_voters: tuple[Voter, ...] = ()
    """Who has a vote where the log does not say (kraft.version 0)."""
    min_insync_replicas: int = 1
    """What a new cluster begins with."""


def raft_member(identity: Identity, layout: Layout, *, is_controller: bool) -> RaftMember:
    """Who a node is in the quorum."""
    endpoints = layout.controller_endpoints
    return RaftMember(
        ReplicaKey(identity.node_id, identity.directory_ids[layout.metadata_log_dir]),
        endpoints if is_controller else (),
        endpoints[0][0] if endpoints else "CONTROLLER",
    )


def check_voters(voters: VoterSet, key: ReplicaKey, layout: Layout, options: RaftOptions) -> None:
    """A node without a vote may follow, if it can find somebody to follow."""
    others = [voter for voter in voters if voter.id != key.id]
    if others or (options.bootstrap_servers and not voters.has(key)):
        if options.is_controller and voters.get(key.id) is not None and not voters.has(key):
            logger.warning(
                "node %d has its vote in another directory than %s: it follows without one until the old is removed"
                " and it is added again",
                key.id,
                layout.metadata_log_dir,
            )
        return
    if not voters:
        raise QuorumError(
            f"{layout.metadata_log_dir} names no voters, and neither does controller.quorum.voters; if folders were"
            " exchanged, put them back"
        )
    if not voters.has(key):
        raise QuorumError(
            f"node {key.id} has its vote in another directory than {layout.metadata_log_dir}:"
            " this is a new or a foreign disk, and it must not vote"
        )
