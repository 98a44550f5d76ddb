"""`headrace format`: make new data folders the first node of a cluster, as Kafka's storage tool does.

A node that names its voters or controllers is never formatted by `up`: an empty folder may be a disk that was lost.
"""

import argparse
import os
import random
import sys
import time

from headrace.broker.node import layout_of
from headrace.cli.up import load_config
from headrace.config import ConfigError
from headrace.quorum import QuorumError
from headrace.quorum.folder import open_folders
from headrace.storage.checkpoints import CorruptCheckpoint, decode_uuid, new_uuid
from headrace.storage.files import RealDisk


def format_folders(
    config: str | None, data: str | None, node_id: int | None, cluster_id: str | None, settings: list[str]
) -> int:
    """Returns the exit code."""
    try:
        loaded = load_config(
            argparse.Namespace(
                config=config, data=data, node_id=node_id, settings=settings, host=None, port=None, metrics_port=None
            ),
            os.environ,
        )
        if cluster_id is not None:
            decode_uuid(cluster_id)
        layout = layout_of(loaded)
        dice = random.SystemRandom()
        fresh = not any(os.path.exists(f"{path}/meta.properties") for path in layout.log_dirs)
        identity = open_folders(
            RealDisk(),
            layout,
            standalone=True,
            uuid=lambda: new_uuid(dice),
            now_ms=time.time_ns() // 1_000_000,
            cluster_id=cluster_id,
        )
    except (ConfigError, QuorumError, CorruptCheckpoint, ValueError) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    what = "formatted" if fresh else "already formatted, nothing changed:"
    print(f"{what} {', '.join(layout.log_dirs)} for node {identity.node_id} of cluster {identity.cluster_id}")
    return 0
