"""One member of a consumer group, by the protocol of KIP-848: heartbeats and the assignment.

The coordinator says in heartbeats what the member should have; the member says what it has. What it must give up it
keeps until its owner has finished with it: `ConsumerCore` drives that, here is only the talk with the coordinator.
"""

import asyncio
import uuid
from collections.abc import Iterable

from headrace.client.admin.groups import TopicPartition
from headrace.client.consume.membership import Membership, Subscription
from headrace.client.consume.offsets import EXPELLED, Identity, is_transient
from headrace.client.errors import ClientError, RequestFailed, check
from headrace.client.net.cluster import BACKOFF_S_MAX, BACKOFF_S_MIN
from headrace.client.net.connection import Connection
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

JOINING, LEAVING, LEAVING_FOR_A_WHILE = 0, -1, -2
"""Epochs with a meaning of their own."""
HEARTBEAT_S_BEFORE_TOLD = 1.0
IMPATIENCE_S = 0.05
"""The first wait of a member that has joined and got nothing: the coordinator may still look for the topics of a
pattern, or others have to give up partitions first. It asks again after twice as long each time, up to the usual
interval."""
REGEX_VERSION = 1

Heartbeat = m.ConsumerGroupHeartbeatRequest


class ConsumerMember(Membership):
    """A member by the consumer protocol; the broker assigns."""

    def __init__(self, subscription: Subscription, *, remote_assignor: str | None = None) -> None:
        super().__init__(subscription)
        self.member_id = str(uuid.uuid4())
        """Chosen here, so that a lost answer to the first heartbeat leaves no second member behind."""
        self.epoch = JOINING
        self._may_be_known = False
        """Whether the coordinator may count on this member, heard or unheard."""
        self._assignor = remote_assignor
        self._said: frozenset[TopicPartition] | None = None
        self._ids: dict[bytes, str] = {}
        self._impatience_s = IMPATIENCE_S

    @property
    def identity(self) -> Identity:
        return Identity(self.member_id, self.epoch, self.instance_id, names_epoch=True)

    # -- membership

    def is_alive(self) -> None:
        super().is_alive()
        if self.epoch == LEAVING:
            self.epoch = JOINING
            self._wake.set()

    def owns(self, partitions: Iterable[TopicPartition]) -> None:
        """What is held from now on; the coordinator is told at once, since others may wait for the rest."""
        self._owned = frozenset(partitions)
        if self._owned != self._said:
            self._wake.set()

    async def _leave(self) -> None:
        # Also one that has not heard that it has joined: it would hold partitions until its session is over.
        if self.epoch >= JOINING and self._may_be_known:
            await self._say_goodbye(LEAVING if self.instance_id is None else LEAVING_FOR_A_WHILE)

    async def _say_goodbye(self, epoch: int) -> None:
        self.epoch = epoch
        await self._tell_that_it_leaves(self._beat)

    async def _run(self) -> None:
        pause_s = BACKOFF_S_MIN
        loop = asyncio.get_running_loop()
        while True:
            if self._has_hung(loop.time()):
                await self._say_goodbye(LEAVING)
                self._be_expelled()
                while self.epoch == LEAVING:
                    await self._wake.wait()
                    self._wake.clear()
            try:
                wait_s = await self._offsets.ask(self._beat)
                pause_s = BACKOFF_S_MIN
            except ClientError as error:
                # After a failure everything is said again: nobody knows what the coordinator has heard.
                self._said = None
                if not self._survives(error):
                    self.failure = error
                    self._on_change()
                    return
                wait_s, pause_s = pause_s, min(pause_s * 2, BACKOFF_S_MAX)
            try:
                async with asyncio.timeout(min(wait_s, self._hangs_in_s(loop.time()))):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    def _survives(self, error: ClientError) -> bool:
        if isinstance(error, RequestFailed) and error.error in EXPELLED:
            self.epoch = JOINING
            self._be_expelled()
            return True
        return is_transient(error)

    def _be_expelled(self) -> None:
        self._said = None
        super()._be_expelled()

    async def _beat(self, connection: Connection) -> float:
        """One heartbeat; returns when the next one is due."""
        request = self._heartbeat()
        said = self._owned
        self._may_be_known = True
        answer: m.ConsumerGroupHeartbeatResponse = await connection.request(
            ApiKey.CONSUMER_GROUP_HEARTBEAT, request, timeout_s=self._offsets.cluster.request_timeout_s
        )
        check(answer.error_code, f"member of group {self.group_id!r}", answer.error_message)
        if self.epoch < JOINING:
            return 0.0
        if self.epoch == JOINING:
            self._impatience_s = IMPATIENCE_S
        self.epoch = answer.member_epoch
        self.member_id = answer.member_id or self.member_id
        self._said = said
        if answer.assignment is not None:
            await self._assign(answer.assignment)
        interval_s = answer.heartbeat_interval_ms / 1000 or HEARTBEAT_S_BEFORE_TOLD
        if self.wanted:
            return interval_s
        wait_s, self._impatience_s = self._impatience_s, 2 * self._impatience_s
        return min(wait_s, interval_s)

    def _heartbeat(self) -> Heartbeat:
        request = Heartbeat(
            group_id=self.group_id, member_id=self.member_id, member_epoch=self.epoch, instance_id=self.instance_id
        )
        if self.epoch < JOINING:
            return request
        if self.epoch == JOINING or self._said is None:
            request.rack_id = self.subscription.rack
            request.rebalance_timeout_ms = self.subscription.max_poll_interval_ms
            if self.subscription.pattern is None:
                request.subscribed_topic_names = self.subscription.topics
            else:
                request.subscribed_topic_regex = self.subscription.pattern
            request.server_assignor = self._assignor
        if self._owned != self._said or self.epoch == JOINING:
            owned: dict[bytes, list[int]] = {}
            for topic, index in sorted(self._owned):
                owned.setdefault(self.topic_ids[topic], []).append(index)
            request.topic_partitions = [Heartbeat.TopicPartitions(topic_id=i, partitions=p) for i, p in owned.items()]
        return request

    async def _assign(self, assignment: m.ConsumerGroupHeartbeatResponse.Assignment) -> None:
        rows = assignment.topic_partitions
        if any(row.topic_id not in self._ids for row in rows):
            await self._find_topics()
            self._ids = {topic.topic_id: topic.name for topic in self.cluster.topics.values()}
        # A topic that is not known here yet is taken when it is: the next full heartbeat names it again.
        known = {self._ids[row.topic_id]: row for row in rows if row.topic_id in self._ids}
        if len(known) < len(rows):
            self._said = None
        replaced = {name for name, row in known.items() if self.topic_ids.get(name, row.topic_id) != row.topic_id}
        self.topic_ids.update((name, row.topic_id) for name, row in known.items())
        self.replaced |= replaced
        wanted = frozenset((name, index) for name, row in known.items() for index in row.partitions)
        if wanted != self.wanted or replaced:
            self.wanted = wanted
            self._on_change()
