"""What the configuration says about a node's part in the quorum."""

import logging
from typing import NamedTuple

from headrace.quorum import Address, QuorumError
from headrace.quorum.cleaning import SnapshotLimits
from headrace.quorum.folder import Identity, Layout
from headrace.quorum.snapshots import Voter
from headrace.raft.types import RaftOptions, ReplicaKey
from headrace.raft.voters import VoterSet

logger = logging.getLogger("headrace.quorum")


class KraftOptions(NamedTuple):
    """The metadata.* and controller.quorum.* options, and whether this node is a controller at all."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 604_800_000
    limits: SnapshotLimits = SnapshotLimits()
    static_voters: tuple[Voter, ...] = ()
    """Who has a vote where the log does not say (kraft.version 0)."""
    is_controller: bool = True
    """False for a node that only follows: it never votes, whatever the voters say."""
    bootstrap_servers: tuple[Address, ...] = ()
    """Where to ask who leads, while no voters are known or none of them answers."""
    election_timeout_ms: int = 1000
    fetch_timeout_ms: int = 2000
    election_backoff_ms_max: int = 1000
    request_timeout_ms: int = 2000
    retry_backoff_ms: int = 20
    min_insync_replicas: int = 1
    """What a new cluster begins with."""
    auto_join: bool = False
    """controller.quorum.auto.join.enable: a controller without a vote asks for one."""


def raft_options(identity: Identity, layout: Layout, options: KraftOptions) -> RaftOptions:
    return RaftOptions(
        key=ReplicaKey(identity.node_id, identity.directory_ids[layout.metadata_log_dir]),
        endpoints=layout.controller_endpoints if options.is_controller else (),
        listener=layout.controller_endpoints[0][0] if layout.controller_endpoints else "CONTROLLER",
        is_controller=options.is_controller,
        bootstrap_servers=options.bootstrap_servers,
        election_timeout_ms=options.election_timeout_ms,
        fetch_timeout_ms=options.fetch_timeout_ms,
        election_backoff_ms_max=options.election_backoff_ms_max,
        request_timeout_ms=options.request_timeout_ms,
        retry_backoff_ms=options.retry_backoff_ms,
        auto_join=options.auto_join,
    )


def check_voters(voters: VoterSet, key: ReplicaKey, layout: Layout, options: KraftOptions) -> None:
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
            f"{layout.metadata_log_dir} names no voters, and neither does controller.quorum.voters"
        )
    if not voters.has(key):
        raise QuorumError(
            f"node {key.id} has its vote in another directory than {layout.metadata_log_dir}:"
            " this is a new or a foreign disk, and it must not vote"
        )
