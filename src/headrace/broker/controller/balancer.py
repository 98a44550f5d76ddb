"""Moves that the active controller makes by itself, with `auto.balance`. What to move, `metadata/balance/auto.py` says.

Here are the clocks: for how long a broker has been away, and when one was full last. A plan for 10,000 partitions is
too long for one turn of the loop, so it is made in a thread, and what has changed meanwhile is left to the next look.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from headrace.config import BrokerConfig
from headrace.metadata.balance.auto import Standing, still_right
from headrace.metadata.balance.plans import Replicas, TopicPartition
from headrace.metadata.disk_space import DiskSpace
from headrace.metadata.image import Image
from headrace.protocol import messages as m

logger = logging.getLogger("headrace.controller")

CHECK_S = 2.0
FULL_AGAIN_MS = 24 * 3600 * 1000
"""A broker that was full takes nothing for so long: what left it would soon come back."""


class _Rest(NamedTuple):
    topics: object
    brokers: object
    standing: Standing


class Look(NamedTuple):
    """What a plan is made from, in a thread: nothing of it changes."""

    image: Image
    standing: Standing
    moves_max: int


class Balancer:
    """Of one term as the active controller: what it has seen it forgets with `restart`."""

    def __init__(self, disk_space: DiskSpace, config: Callable[[Image], BrokerConfig]) -> None:
        self._disk_space = disk_space
        self._config = config
        self._away_since_ms: dict[int, int] = {}
        self._full_at_ms: dict[int, int] = {}
        self.has_just_rested = False
        """Everything is where it should be since the last look: now preferred replicas may lead."""
        self._rested: _Rest | None = None
        """What was looked at when nothing had to move: the whole cluster is not looked through again for the same."""

    def restart(self) -> None:
        """A new term: every broker that is away is waited for again."""
        self._away_since_ms.clear()
        self._full_at_ms.clear()

    def look(self, image: Image, now_ms: int) -> Look | None:
        """What to plan now; None if nothing has to be, or if a person does it."""
        config = self._config(image)
        self._note(image, now_ms)
        self.has_just_rested = False
        if not config["auto.balance"]:
            return None
        away_ms = config["auto.balance.lost.broker.ms"]
        standing = Standing(
            lost={node for node, since_ms in self._away_since_ms.items() if now_ms - since_ms >= away_ms},
            drained={int(node) for node in config["auto.balance.drained.brokers"]},
            full={node for node, at_ms in self._full_at_ms.items() if at_ms == now_ms},
            full_lately={node for node, at_ms in self._full_at_ms.items() if at_ms < now_ms},
        )
        rested = self._rested
        same = rested is not None and rested.topics is image.topics and rested.brokers is image.brokers
        if rested is not None and same and rested.standing == standing:
            return None
        return Look(image, standing, config["auto.balance.moves.max"])

    def conclude(
        self, look: Look, moves: dict[TopicPartition, Replicas], image: Image
    ) -> m.AlterPartitionReassignmentsRequest | None:
        """What to reassign, of what was planned for `look`, now that the metadata is `image`."""
        rested, self._rested = self._rested, None
        if not moves and not look.image.reassigning:
            self._rested = _Rest(look.image.topics, look.image.brokers, look.standing)
            self.has_just_rested = rested is None
        moves = still_right(moves, look.image, image)
        if not moves:
            return None
        logger.info("auto.balance: %d partitions are reassigned, %s-%d first", len(moves), *next(iter(moves)))
        return _request(moves)

    def _note(self, image: Image, now_ms: int) -> None:
        away = {broker.id for broker in image.brokers.values() if broker.fenced}
        self._away_since_ms = {node: self._away_since_ms.get(node, now_ms) for node in away}
        for node in image.brokers:
            if self._disk_space.is_full(node):
                self._full_at_ms[node] = now_ms
        self._full_at_ms = {n: at_ms for n, at_ms in self._full_at_ms.items() if now_ms - at_ms < FULL_AGAIN_MS}


def _request(moves: dict[TopicPartition, Replicas]) -> m.AlterPartitionReassignmentsRequest:
    kind = m.AlterPartitionReassignmentsRequest
    topics: dict[str, list[m.AlterPartitionReassignmentsRequest.ReassignablePartition]] = {}
    for (topic, index), replicas in moves.items():
        row = kind.ReassignablePartition(partition_index=index, replicas=list(replicas))
        topics.setdefault(topic, []).append(row)
    return kind(topics=[kind.ReassignableTopic(name=name, partitions=rows) for name, rows in topics.items()])
