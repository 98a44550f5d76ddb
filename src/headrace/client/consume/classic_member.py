"""One member of a consumer group, by the classic protocol: JoinGroup, SyncGroup, heartbeats; a member assigns.

With `cooperative-sticky` alone a member keeps what it has through a rebalance, gives up what is wanted elsewhere, and
joins again (KIP-429). With any other assignor it gives everything up before it joins.
"""

import asyncio
from collections.abc import Iterable, Sequence

from headrace.client.admin.groups import TopicPartition
from headrace.client.consume.assignors import ASSIGNORS, COOPERATIVE_STICKY
from headrace.client.consume.classic_messages import (
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from headrace.client.consume.membership import LEAVE_LIMIT_S, Membership, Subscription, matching
from headrace.client.consume.offsets import EXPELLED, Identity, is_transient
from headrace.client.errors import ClientError, RequestFailed, check
from headrace.client.net.cluster import BACKOFF_S_MAX, BACKOFF_S_MIN
from headrace.client.net.connection import Connection
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey

PROTOCOL_TYPE = "consumer"
NO_GENERATION = -1
SEVERAL_MEMBERS_VERSION = 3
REBALANCING = frozenset({Err.REBALANCE_IN_PROGRESS})


class ClassicMember(Membership):
    """A member by the classic protocol."""

    def __init__(self, subscription: Subscription, assignors: Sequence[str]) -> None:
        super().__init__(subscription)
        unknown = [name for name in assignors if name not in ASSIGNORS]
        if unknown or not assignors:
            raise ClientError(f"option assignors is {list(assignors)}: known are {', '.join(ASSIGNORS)}")
        self.generation = NO_GENERATION
        self._assignors = list(assignors)
        self._is_cooperative = self._assignors == [COOPERATIVE_STICKY]
        self._must_join = True
        self._watched: dict[str, int] = {}
        """Partitions of each topic at the last join, for whoever leads the group to notice that there are more."""
        self._leads = False
        self._joins = subscription.cluster.beside()
        """A join is answered when all members have joined: on connections of its own it holds back nothing else."""

    @property
    def identity(self) -> Identity:
        return Identity(self.member_id, self.generation, self.instance_id)

    def owns(self, partitions: Iterable[TopicPartition]) -> None:
        before, self._owned = self._owned, frozenset(partitions)
        if self._is_cooperative and before - self._owned:
            # What was given up goes to its next owner in another rebalance.
            self._must_join = True
        self._wake.set()

    async def _leave(self) -> None:
        if self.member_id and self.instance_id is None:
            kind = m.LeaveGroupRequest

            async def ask(connection: Connection) -> None:
                request = kind(group_id=self.group_id)
                if connection.version_of(ApiKey.LEAVE_GROUP) < SEVERAL_MEMBERS_VERSION:
                    request.member_id = self.member_id
                else:
                    request.members = [kind.MemberIdentity(member_id=self.member_id)]
                answer = await connection.request(ApiKey.LEAVE_GROUP, request, timeout_s=LEAVE_LIMIT_S)
                check(answer.error_code, f"member of group {self.group_id!r}")

            await self._tell_that_it_leaves(ask)
        self.member_id, self.generation = "", NO_GENERATION
        self._joins.close()

    async def _run(self) -> None:
        try:
            await self._stay()
        finally:
            self._joins.close()

    async def _stay(self) -> None:
        pause_s = BACKOFF_S_MIN
        loop = asyncio.get_running_loop()
        look_s = loop.time() + self.subscription.metadata_max_age_s
        while True:
            if self._has_hung(loop.time()):
                await self._leave()
                self._be_expelled()
                alive_s = self._alive_s
                while self._alive_s == alive_s:
                    await self._nap(1.0)
                self._must_join = True
            try:
                if self._must_join and self._may_join():
                    await self._rejoin()
                elif self.generation != NO_GENERATION:
                    await self._offsets.ask(self._beat)
                if loop.time() >= look_s:
                    look_s = loop.time() + self.subscription.metadata_max_age_s
                    await self._look_for_changes()
                pause_s, wait_s = BACKOFF_S_MIN, self.subscription.heartbeat_interval_ms / 1000
                if self._must_join and self._may_join():
                    continue
            except ClientError as error:
                if not self._survives(error):
                    self.failure = _explained(error, self._assignors)
                    self._on_change()
                    return
                wait_s, pause_s = pause_s, min(pause_s * 2, BACKOFF_S_MAX)
            await self._nap(min(wait_s, self._hangs_in_s(loop.time())))

    async def _nap(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    def _may_join(self) -> bool:
        """Whether nothing is held that a rebalance may give to another member meanwhile."""
        if self._is_cooperative:
            return self._owned <= self.wanted
        if self.wanted:
            self.wanted = frozenset()
            self._on_change()
        return not self._owned

    def _survives(self, error: ClientError) -> bool:
        if not isinstance(error, RequestFailed):
            return is_transient(error)
        if error.error in EXPELLED:
            if error.error is Err.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            self.generation, self._must_join = NO_GENERATION, True
            self._be_expelled()
            return True
        if error.error in REBALANCING:
            self._must_join = True
            return True
        return is_transient(error)

    async def _beat(self, connection: Connection) -> None:
        request = m.HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        answer: m.HeartbeatResponse = await connection.request(
            ApiKey.HEARTBEAT, request, timeout_s=self._offsets.cluster.request_timeout_s
        )
        check(answer.error_code, f"member of group {self.group_id!r}")

    async def _look_for_changes(self) -> None:
        """New topics of a pattern concern every member; more partitions, the one that assigns."""
        await self._find_topics()
        new_topics = self.subscription.pattern is not None and self._topics() != sorted(self._watched)
        if new_topics or (self._leads and self._watched != self._counts(self._watched)):
            self._must_join = True

    def _topics(self) -> list[str]:
        if self.subscription.pattern is None:
            return self.subscription.topics
        return matching(self.cluster, self.subscription.pattern)

    def _counts(self, topics: Iterable[str]) -> dict[str, int]:
        known = self.cluster.topics
        return {topic: len(known[topic].partitions) for topic in topics if topic in known}

    # -- joining

    async def _rejoin(self) -> None:
        """One rebalance: join, assign if this member leads, and learn what it was given."""
        self._must_join = False
        try:
            await self._find_topics()
            joined: m.JoinGroupResponse = await self._offsets.ask(self._join, self._joins)
            self.member_id, self.generation = joined.member_id, joined.generation_id
            self._leads = joined.leader == joined.member_id
            plan = await self._plan(joined) if self._leads and not joined.skip_assignment else {}
            self._watched = self._watched if self._leads else self._counts(self._topics())
            rows = [m.SyncGroupRequest.SyncGroupRequestAssignment(member_id=k, assignment=v) for k, v in plan.items()]
            given = await self._offsets.ask(lambda connection: self._sync(connection, joined, rows), self._joins)
        except BaseException:
            self._must_join = True
            raise
        await self._take(given)

    async def _join(self, connection: Connection) -> m.JoinGroupResponse:
        kind = m.JoinGroupRequest
        subscription = write_subscription(self._topics(), self._owned, self.generation, self.subscription.rack)
        request = kind(
            group_id=self.group_id,
            session_timeout_ms=self.subscription.session_timeout_ms,
            rebalance_timeout_ms=self.subscription.max_poll_interval_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[kind.JoinGroupRequestProtocol(name=name, metadata=subscription) for name in self._assignors],
        )
        limit_s = self.subscription.max_poll_interval_ms / 1000 + self._offsets.cluster.request_timeout_s
        answer: m.JoinGroupResponse = await connection.request(ApiKey.JOIN_GROUP, request, timeout_s=limit_s)
        if answer.error_code == Err.MEMBER_ID_REQUIRED:
            self.member_id = request.member_id = answer.member_id
            answer = await connection.request(ApiKey.JOIN_GROUP, request, timeout_s=limit_s)
        check(answer.error_code, f"member of group {self.group_id!r}")
        return answer

    async def _plan(self, joined: m.JoinGroupResponse) -> dict[str, bytes]:
        members = {row.member_id: read_subscription(bytes(row.metadata), row) for row in joined.members}
        topics = sorted({topic for one in members.values() for topic in one.topics})
        await self.cluster.refresh(topics)
        self._watched = self._counts(topics)
        assigned = ASSIGNORS[joined.protocol_name or self._assignors[0]](members, self._watched)
        return {member: write_assignment(partitions) for member, partitions in assigned.items()}

    async def _sync(
        self,
        connection: Connection,
        joined: m.JoinGroupResponse,
        rows: list[m.SyncGroupRequest.SyncGroupRequestAssignment],
    ) -> bytes:
        request = m.SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=rows,
        )
        limit_s = self.subscription.max_poll_interval_ms / 1000 + self._offsets.cluster.request_timeout_s
        answer: m.SyncGroupResponse = await connection.request(ApiKey.SYNC_GROUP, request, timeout_s=limit_s)
        check(answer.error_code, f"member of group {self.group_id!r}")
        return bytes(answer.assignment)

    async def _take(self, given: bytes) -> None:
        wanted = read_assignment(given)
        unknown = {topic for topic, _ in wanted} - self.cluster.topics.keys()
        if unknown:
            await self.cluster.refresh(sorted(unknown))
        known = self.cluster.topics
        ids = {topic: known[topic].topic_id for topic, _ in wanted if topic in known}
        self.replaced |= {topic for topic, topic_id in ids.items() if self.topic_ids.get(topic, topic_id) != topic_id}
        self.topic_ids.update(ids)
        self.wanted = frozenset(at for at in wanted if at[0] in ids)
        self._on_change()


def _explained(error: ClientError, assignors: Sequence[str]) -> ClientError:
    if isinstance(error, RequestFailed) and error.error is Err.INCONSISTENT_GROUP_PROTOCOL:
        message = (
            f"no member of the group knows any of the assignors {', '.join(assignors)}, or it is no group "
            "of consumers: give all its members an assignor in common"
        )
        return RequestFailed(error.what, error.error, message)
    return error
