"""Which broker each partition is fetched from. Only partitions that were touched are looked at again. Pure.

A consumer may have ten thousand partitions of which a few have records: what a fetch costs must follow the few.
"""

from collections.abc import Callable, Iterable
from math import inf

from headrace.client.admin.groups import TopicPartition


class Route:
    """What one broker is asked for."""

    __slots__ = ("changed", "partitions")

    def __init__(self) -> None:
        self.partitions: dict[TopicPartition, None] = {}
        self.changed: dict[TopicPartition, None] = {}
        """Came, went, or may be asked for otherwise, since the broker was last told."""


class Routes:
    """`touch` whatever may have changed; `settle` finds the brokers of just those."""

    __slots__ = ("_nodes", "_touched", "by_node", "due_s")

    def __init__(self) -> None:
        self.by_node: dict[int, Route] = {}
        self.due_s = inf
        """When all have to be touched: a replica is read from for a while only."""
        self._nodes: dict[TopicPartition, int] = {}
        self._touched: dict[TopicPartition, None] = {}

    def touch(self, at: TopicPartition) -> None:
        self._touched[at] = None

    def touch_all(self, partitions: Iterable[TopicPartition]) -> None:
        self._touched.update(dict.fromkeys(partitions))

    def settle(self, node_of: Callable[[TopicPartition], int | None]) -> None:
        """`node_of` tells whom to ask, or None where nothing more is wanted."""
        touched, self._touched = self._touched, {}
        for at in touched:
            before, node = self._nodes.get(at), node_of(at)
            if before is not None and before != node:
                route = self.by_node[before]
                del route.partitions[at]
                route.changed[at] = None
                del self._nodes[at]
            if node is not None:
                found = self.by_node.get(node)
                if found is None:
                    found = self.by_node[node] = Route()
                found.partitions[at] = found.changed[at] = None
                self._nodes[at] = node
