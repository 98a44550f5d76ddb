"""From what is on the disk to a quorum that can be started: the one place where both are put together."""

from collections.abc import Callable

from headrace.clock import Clock
from headrace.config import LogConfig
from headrace.quorum import Network, QuorumError
from headrace.quorum.folder import Identity, Layout
from headrace.quorum.kraft import KraftQuorum, RunInThread
from headrace.quorum.loading import load
from headrace.quorum.mark import read_mark
from headrace.quorum.options import KraftOptions, check_voters
from headrace.raft.types import ReplicaKey
from headrace.storage.files import Disk
from headrace.storage.manager import METADATA_FOLDER


def open_quorum(
    disk: Disk,
    identity: Identity,
    layout: Layout,
    options: KraftOptions,
    clock: Clock,
    run_in_thread: RunInThread,
    network: Network | None = None,
    randrange: Callable[[int], int] | None = None,
) -> KraftQuorum:
    """Load what is on the disk. Blocking; raises QuorumError with one line for a person when it cannot be used.

    A quorum of several nodes needs a `network` and dice.
    """
    folder = f"{layout.metadata_log_dir}/{METADATA_FOLDER}"
    config = LogConfig(segment_bytes=options.segment_bytes, segment_ms=options.segment_ms, retention_ms=-1)
    key = ReplicaKey(identity.node_id, identity.directory_ids[layout.metadata_log_dir])
    mark = read_mark(disk, layout.metadata_log_dir, key.directory_id)
    loaded = load(disk, folder, config, options.static_voters, clock.wall_ms(), key, options.raft.is_controller, mark)
    try:
        check_voters(loaded.log.voters.last, key, layout, options.raft)
    except QuorumError:
        loaded.log.log.abandon()
        raise
    return KraftQuorum(disk, identity, layout, loaded, options, clock, run_in_thread, network, randrange)
