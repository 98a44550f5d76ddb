"""The demo's brokers: one, or a cluster, as processes of their own in the demo's folder.

They end with the demo however it ends; Ctrl-C in the terminal is not for them, the demo stops them in order.
"""

from pathlib import Path

from headrace.demo.status import NodeState
from headrace.local_cluster.process import BrokerProcess

SETTINGS = {
    # A worker that comes or goes is seen to do so: members look in twice a second and not every five.
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "4",
}


class LocalBrokers:
    """`count` brokers in `folder`. Node ids begin at 1."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.count = count
        self._processes: dict[int, BrokerProcess] = {}

    @property
    def replication_factor(self) -> int:
        return min(self.count, 3)

    @property
    def bootstrap(self) -> str:
        return ",".join(process.address for process in self._processes.values())

    def nodes(self) -> list[NodeState]:
        return [
            NodeState(node_id, process.address, process.is_running, "" if process.is_running else "killed")
            for node_id, process in self._processes.items()
        ]

    def start(self) -> str:
        """Lay out, start and wait until all are ready; returns a line that says so."""
        if self.count == 1:
            words = ["--data", str(self.folder / "node-1"), "--node-id", "1"]
            self._processes[1] = BrokerProcess(
                self.folder / "node-1", self.folder / "node-1.log", [*words, *_settings()]
            )
        else:
            from headrace.local_cluster.layout import Wish, open_cluster

            cluster = open_cluster(self.folder, Wish(self.count, port=0))
            for node_id, node in cluster.nodes.items():
                words = ["--config", str(node.properties), *_settings()]
                self._processes[node_id] = BrokerProcess(node.data, node.log, words, node.port)
        for process in self._processes.values():
            process.launch()
        lines = [process.await_ready() for process in self._processes.values()]
        return lines[0] if self.count == 1 else f"{self.count} brokers ready on {self.bootstrap.replace(',', ', ')}"

    def kill9(self, node_id: int) -> None:
        self._processes[node_id].kill9()

    def revive(self, node_id: int) -> None:
        self._processes[node_id].start()

    def close(self) -> None:
        """Stop all in order; kill what does not stop."""
        for process in self._processes.values():
            try:
                process.stop()
            except RuntimeError:
                # The verdict is about data; a broker that had to be killed in the end has its reasons in its log.
                continue


def _settings() -> list[str]:
    return ["--supervised", *(word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}"))]
