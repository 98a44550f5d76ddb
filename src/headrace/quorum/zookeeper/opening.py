"""From a configuration to a quorum that can be started: the session, the cluster's id, this node's folders."""

import asyncio
from collections.abc import Callable

from headrace.clock import Clock
from headrace.quorum import Network, QuorumError
from headrace.quorum.folder import Identity, Layout, holds_records, open_zookeeper_folders
from headrace.quorum.zookeeper import paths, znodes
from headrace.quorum.zookeeper.quorum import ZooKeeperQuorum
from headrace.quorum.zookeeper.session import KazooSession, ZooKeeperOptions
from headrace.storage.checkpoints import encode_uuid
from headrace.storage.files import Disk


def open_zookeeper(
    disk: Disk,
    layout: Layout,
    options: ZooKeeperOptions,
    clock: Clock,
    network: Network,
    uuid: Callable[[], bytes],
    *,
    is_controller: bool,
    min_insync_replicas: int,
) -> tuple[Identity, ZooKeeperQuorum]:
    """Connect, and settle which cluster this is: the ensemble's, or that of the folders where the ensemble is new.

    Blocks; raises QuorumError with one line for a person.
    """
    session = KazooSession(options, asyncio.get_running_loop())
    session.open()
    try:
        _refuse_half_a_copy(session, options.connect)
        known = open_zookeeper_folders(disk, layout, uuid=uuid, cluster_id=None, may_format=False)
        if known is not None:
            _refuse_to_forget(session, options.connect, known, holds_records(disk, layout))
        proposed = known.cluster_id if known is not None else encode_uuid(uuid())
        found = session.ensure(paths.CLUSTER_ID, znodes.encode_cluster_id(proposed))
        cluster_id = znodes.decode_cluster_id(paths.CLUSTER_ID, found)
        if known is not None and known.cluster_id != cluster_id:
            raise QuorumError(
                f"{layout.metadata_log_dir} belongs to cluster {known.cluster_id}, ZooKeeper at {options.connect} to"
                f" {cluster_id}: give it a folder of its own, or the right zookeeper.connect"
            )
        identity = open_zookeeper_folders(disk, layout, uuid=uuid, cluster_id=cluster_id, may_format=True)
        assert identity is not None
        session.ensure(paths.CONTROLLER_EPOCH, b"0")
        session.ensure(paths.FEATURE, znodes.encode_features({}))
        if session.read(paths.LEVELS) and session.read(paths.METADATA) is None:
            raise QuorumError(
                f"{paths.METADATA} is missing in ZooKeeper at {options.connect}, while the rest is there: restore it"
            )
        session.ensure(paths.METADATA, znodes.encode_head(znodes.Head(-1, 0, clock.wall_ms())))
    except BaseException:
        session.abandon()
        raise
    host_and_port = layout.controller_endpoints[0][1:]
    quorum = ZooKeeperQuorum(
        session,
        identity,
        host_and_port if is_controller else None,
        clock,
        network,
        session_timeout_ms=options.session_timeout_ms,
        min_insync_replicas=min_insync_replicas,
    )
    return identity, quorum


def _refuse_to_forget(session: KazooSession, connect: str, known: Identity, records: str | None) -> None:
    """Where there is nothing yet, a cluster begins, and nobody's records are any of its topics'."""
    if records is not None and session.read(paths.CLUSTER_ID) is None:
        raise QuorumError(
            f"{records} holds records of cluster {known.cluster_id}, and ZooKeeper at {connect} knows no cluster: check"
            " zookeeper.connect and the chroot in it, or restore what ZooKeeper had"
        )


def _refuse_half_a_copy(session: KazooSession, connect: str) -> None:
    found = session.read(paths.MIGRATION)
    if found is not None and not znodes.decode_copy(paths.MIGRATION, found).whole:
        raise QuorumError(
            f"a move of a cluster to ZooKeeper at {connect} was not finished: run `headrace cluster migrate` again"
        )
