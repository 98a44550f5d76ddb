"""Real ZooKeeper processes for clusters of tests, and a look at their znodes."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.local_cluster.ensemble import Ensemble, Unavailable
from headrace.local_cluster.layout import free_ports

CHROOT = "/kafka"


@contextmanager
def ensemble(
    folder: Path, servers: int = 1, options: Sequence[str] = (), system_properties: Sequence[str] = ()
) -> Iterator[Ensemble]:
    """Running; skips the test where ZooKeeper cannot run."""
    pytest.importorskip("kazoo")
    ports = list(free_ports(servers if servers == 1 else 3 * servers))
    found = Ensemble(folder, ports, options, system_properties)
    try:
        found.start()
    except Unavailable as missing:
        pytest.skip(str(missing))
    try:
        yield found
    finally:
        found.kill()


class ZNodes:
    """A client of its own, as a person with ZooKeeper's shell is."""

    def __init__(self, connect: str) -> None:
        from kazoo.client import KazooClient

        self.client: Any = KazooClient(connect + CHROOT)
        self.client.start(timeout=30)

    def json(self, path: str) -> Any:
        return json.loads(self.client.get(path)[0])

    def version(self, path: str) -> int:
        return int(self.client.get(path)[1].version)

    def close(self) -> None:
        self.client.stop()
        self.client.close()
