"""`headrace format`: make new data folders those of a node of a cluster, as Kafka's storage tool does.

A node that names its voters or controllers is never formatted by `up`: an empty folder may be a disk that was lost.
"""

import os
import random
import time
from collections.abc import Sequence
from typing import NamedTuple

from headrace.broker.cluster.opening import CONTROLLER_LISTENER, layout_of
from headrace.cli.up import load_config, parser
from headrace.client.errors import ClientError
from headrace.config import BrokerConfig, ConfigError
from headrace.quorum import QuorumError
from headrace.quorum.folder import open_folders
from headrace.quorum.snapshots import Voter
from headrace.storage.checkpoints import CorruptCheckpoint, decode_uuid, encode_uuid, new_uuid
from headrace.storage.files import RealDisk

STANDALONE, INITIAL, NO_INITIAL = "--standalone", "--initial-controllers", "--no-initial-controllers"


class Formatted(NamedTuple):
    """Whose folders they are; `formatted` is False if they were already."""

    formatted: bool
    log_dirs: list[str]
    node_id: int
    cluster_id: str


def format_folders(
    words: Sequence[str],
    cluster_id: str | None,
    standalone: bool = False,
    initial_controllers: str | None = None,
    no_initial_controllers: bool = False,
) -> Formatted:
    """`words` are options of `headrace up`. Raises ClientError."""
    try:
        loaded = load_config(parser().parse_args(list(words)), os.environ)
        if cluster_id is not None:
            decode_uuid(cluster_id)
        chosen = {STANDALONE: standalone, INITIAL: initial_controllers is not None, NO_INITIAL: no_initial_controllers}
        ways = [name for name, is_set in chosen.items() if is_set]
        voters = _first_voters(loaded, ways, initial_controllers, cluster_id)
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
            voters=voters,
        )
    except (ConfigError, QuorumError, CorruptCheckpoint, ValueError) as error:
        raise ClientError(str(error)) from None
    except OSError as error:
        raise ClientError(f"cannot format {error.filename}: {error.strerror}") from None
    return Formatted(fresh, list(layout.log_dirs), identity.node_id, identity.cluster_id)


def _first_voters(
    config: BrokerConfig, ways: list[str], initial_controllers: str | None, cluster_id: str | None
) -> list[Voter] | None:
    """As `open_folders` takes them: None for this node alone, none for controllers found elsewhere. Raises
    ConfigError."""
    if len(ways) > 1:
        raise ConfigError(f"{' and '.join(ways)}: only one of them can be meant")
    way = ways[0] if ways else None
    if config.quorum_voters:
        if way is not None:
            raise ConfigError(f"{way}: controller.quorum.voters is set, so the voters are fixed and need no beginning")
        way = NO_INITIAL
    elif "controller" not in config.roles:
        if way in (STANDALONE, INITIAL):
            raise ConfigError(f"{way}: this node is no controller (process.roles)")
        way = NO_INITIAL
    elif way is None and len(config.quorum_bootstrap_servers) > 1:
        raise ConfigError(
            f"say how the quorum begins: {INITIAL} for all of its first controllers at once, {STANDALONE} on one of"
            f" them and {NO_INITIAL} on those that are added later"
        )
    if way in (INITIAL, NO_INITIAL) and cluster_id is None:
        raise ConfigError(
            "--cluster-id: all nodes of a cluster need the same one; `headrace format --random-id` makes one up"
        )
    if way == INITIAL:
        assert initial_controllers is not None
        return parse_controllers(initial_controllers, next(iter(config.controller_listener_names), CONTROLLER_LISTENER))
    return [] if way == NO_INITIAL else None


def parse_controllers(text: str, listener: str) -> list[Voter]:
    """`1@host:9093:directory id,2@...`, as Kafka writes them. Raises ConfigError."""
    found = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        node, at, rest = item.partition("@")
        address, _, directory = rest.rpartition(":")
        host, _, port = address.rpartition(":")
        if not (at and node.isdecimal() and host and port.isdecimal() and 0 < int(port) < 65536):
            raise ConfigError(f"{INITIAL}: {item!r} is not ID@HOST:PORT:DIRECTORY-ID")
        try:
            directory_id = decode_uuid(directory)
        except ValueError as error:
            raise ConfigError(f"{INITIAL}: {item!r}: {error}") from None
        found.append(Voter(int(node), directory_id, ((listener, host.strip("[]"), int(port)),)))
    if not found:
        raise ConfigError(f"{INITIAL}: names nobody")
    return found


def random_id() -> str:
    return encode_uuid(new_uuid(random.SystemRandom()))
