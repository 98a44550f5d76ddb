"""How a local cluster is stopped, without running one."""

import asyncio
from pathlib import Path
from typing import Any

from headrace.cli.supervisor import NodeProcess, Supervisor
from headrace.local_cluster.layout import Wish, open_cluster


class Recorded(NodeProcess):
    """A node that is only told to stop."""

    stopped: list[int] = []

    @property
    def is_running(self) -> bool:
        return self.node.node_id not in self.stopped

    async def stop(self) -> None:
        if self.is_running:
            self.stopped.append(self.node.node_id)


def test_voters_are_stopped_after_brokers_that_need_them_and_their_leader_last(tmp_path: Path) -> None:
    async def stop() -> None:
        supervisor = Supervisor(open_cluster(tmp_path, Wish(5, port=0)), [])
        supervisor.nodes = [Recorded(process.node, []) for process in supervisor.nodes]
        supervisor.voters, supervisor.leader = {1, 2, 3}, 2
        await supervisor._stop_all()

    asyncio.run(stop())
    assert Recorded.stopped == [4, 5, 1, 3, 2]


def test_the_last_words_of_a_node_are_not_signed_twice(tmp_path: Path) -> None:
    (node,) = open_cluster(tmp_path, Wish(1, port=0)).nodes.values()
    node.log.write_text("12:00:00 INFO up\nheadrace: cannot listen on 127.0.0.1:9092\n")
    assert asyncio.run(last_words_of(node)) == "cannot listen on 127.0.0.1:9092"


async def last_words_of(node: Any) -> Any:
    return NodeProcess(node, []).last_words()
