"""A member that leaves its group says so until the coordinator has heard it: else the others wait for its session."""

from typing import Any

import pytest

from headrace.client.consume.classic_member import ClassicMember
from headrace.client.consume.member import LEAVING, ConsumerMember
from headrace.client.consume.membership import Membership, Subscription
from headrace.client.net.cluster import Cluster
from headrace.errors import Err
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from tests.unit.client.fake import SILENT, FakeBroker
from tests.waiting import run, until


class Coordinator(FakeBroker):
    """`goodbyes` are its answers to those who leave, in turn; the last one stays."""

    def __init__(self, *goodbyes: Err, heartbeat: Any = None) -> None:
        super().__init__()
        self.goodbyes = [*goodbyes]
        self.heartbeat = heartbeat
        self.left = 0
        self.handlers |= {
            ApiKey.FIND_COORDINATOR: self.find,
            ApiKey.CONSUMER_GROUP_HEARTBEAT: self.beat,
            ApiKey.LEAVE_GROUP: lambda request, version: m.LeaveGroupResponse(error_code=self.goodbye()),
        }

    def find(self, request: m.FindCoordinatorRequest, version: int) -> m.FindCoordinatorResponse:
        kind = m.FindCoordinatorResponse
        row = kind.Coordinator(key="g", node_id=self.node_id, host=self.host, port=self.port)
        return kind(coordinators=[row])

    def goodbye(self) -> Err:
        self.left += 1
        return self.goodbyes.pop(0) if len(self.goodbyes) > 1 else self.goodbyes[0]

    def beat(self, request: m.ConsumerGroupHeartbeatRequest, version: int) -> Any:
        kind = m.ConsumerGroupHeartbeatResponse
        if request.member_epoch == LEAVING:
            return kind(error_code=self.goodbye(), member_epoch=LEAVING)
        return self.heartbeat or kind(member_id=request.member_id, member_epoch=3, heartbeat_interval_ms=60_000)


def subscription(cluster: Cluster) -> Subscription:
    return Subscription(cluster, cluster, "g", lambda: None, topics=["t"])


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
@pytest.mark.parametrize(
    ("goodbyes", "said"),
    [([Err.NOT_COORDINATOR, Err.COORDINATOR_LOAD_IN_PROGRESS, Err.NONE], 3), ([Err.UNKNOWN_MEMBER_ID], 1)],
)
def test_a_coordinator_that_has_moved_is_told_where_it_is_now(protocol: str, goodbyes: list[Err], said: int) -> None:
    async def play() -> None:
        async with Coordinator(*goodbyes) as broker, Cluster(broker.address) as cluster:
            member: Membership
            if protocol == "consumer":
                member = ConsumerMember(subscription(cluster))
                member.start()
                await until(lambda: member.identity.epoch == 3, "it has joined")
            else:
                member = ClassicMember(subscription(cluster), ["range"])
                member.member_id = "joined before"
            await member.leave()
            assert broker.left == said

    run(play())


def test_who_has_not_heard_that_it_joined_leaves_all_the_same() -> None:
    async def play() -> None:
        async with Coordinator(Err.NONE, heartbeat=SILENT) as broker, Cluster(broker.address) as cluster:
            member = ConsumerMember(subscription(cluster))
            member.start()
            await broker.received(ApiKey.CONSUMER_GROUP_HEARTBEAT)
            await member.leave()
            assert broker.left == 1
            unheard = ConsumerMember(subscription(cluster))
            await unheard.leave()
            assert broker.left == 1, "nobody knows one that never asked to join"

    run(play())
