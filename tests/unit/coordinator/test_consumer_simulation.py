"""Many members with lost and repeated heartbeats, crashes, slow revocations, failovers and changing topics.

At every moment: no partition belongs to two members, and no member believes to have what the coordinator would give to
another. When the trouble ends: everything is assigned once, evenly, and nothing moves any more.
"""

import random
from collections import Counter
from typing import Any

import pytest

from headrace.coordinator.consumer_group import ConsumerGroup
from headrace.coordinator.shard_state import ShardConfig
from headrace.errors import Err
from headrace.protocol import messages as m
from tests.unit.coordinator.driver import Driver, durable
from tests.unit.coordinator.sessions import make_image

TOPICS = ("orders", "payments", "clicks")
Owned = dict[bytes, set[int]]


class Member:
    """A consumer: takes partitions when it is told, gives them up some time after, and says what it has.

    After a lost answer it says everything, and so is told everything.
    """

    def __init__(self, name: str, topics: list[str], instance_id: str | None) -> None:
        self.name = name
        self.topics = topics
        self.instance_id = instance_id
        self.epoch = 0
        self.owned: Owned = {}
        self.told: Owned = {}
        self.alive = True
        self.says_all = False

    def request(self) -> m.ConsumerGroupHeartbeatRequest:
        request = m.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=self.name, member_epoch=self.epoch, instance_id=self.instance_id
        )
        if self.epoch == 0:
            self.owned, self.told = {}, {}
        if self.epoch == 0 or self.says_all:
            request.rebalance_timeout_ms = 60_000
            request.subscribed_topic_names = self.topics
        request.topic_partitions = [
            m.ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=t, partitions=sorted(p))
            for t, p in self.owned.items()
            if p
        ]
        return request

    def hear(self, response: m.ConsumerGroupHeartbeatResponse) -> None:
        self.says_all = False
        if response.error_code in (Err.FENCED_MEMBER_EPOCH, Err.UNKNOWN_MEMBER_ID, Err.GROUP_ID_NOT_FOUND):
            self.epoch, self.owned, self.told = 0, {}, {}
        elif not response.error_code:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.told = {t.topic_id: set(t.partitions) for t in response.assignment.topic_partitions}
                for topic_id, partitions in self.told.items():
                    self.owned.setdefault(topic_id, set()).update(partitions)

    def reconcile(self) -> None:
        self.owned = {t: set(p) for t, p in self.told.items()}


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        interval = self.random.choice([0, 1000])
        self.driver = Driver(ShardConfig(consumer_assignment_interval_ms=interval))
        self.driver.now_ms = 1_000_000
        self.counts = {"orders": 12, "payments": 5}
        self.offset = 0
        self.same_topics = seed % 2 == 0
        self.members: list[Member] = []
        self.born = 0
        self.change_topics()

    def change_topics(self) -> None:
        self.offset += 1
        topics = {name: (number, self.counts[name]) for number, name in enumerate(TOPICS, 9) if name in self.counts}
        self.driver.run(self.driver.shard.on_metadata(make_image(self.offset, topics), self.driver.now_ms))

    def add(self) -> None:
        self.born += 1
        count = self.random.randrange(1, 4)
        topics = list(TOPICS) if self.same_topics else sorted(self.random.sample(TOPICS, count))
        instance = f"static-{self.born}" if self.random.random() < 0.3 else None
        self.members.append(Member(f"member-{self.born}", topics, instance))

    def group(self) -> ConsumerGroup | None:
        group = self.driver.shard.state.groups.get("g")
        assert group is None or isinstance(group, ConsumerGroup)
        return group

    def beat(self, member: Member, *, lossy: bool) -> None:
        request = member.request()
        fate = self.random.random() if lossy else 1.0
        member.says_all = True
        if fate < 0.1:
            return  # lost on the way
        outcome = self.driver.ask(member.name, "consumer_group_heartbeat", request, 1)
        self.check()
        if fate < 0.2:
            # The answer is lost, and the member asks again at once.
            outcome = self.driver.ask(member.name, "consumer_group_heartbeat", member.request(), 1)
            self.check()
        elif fate < 0.3:
            return  # the answer is lost
        member.hear(outcome.response)
        self.check()

    def leave(self, member: Member) -> None:
        member.alive = False
        if member.epoch > 0:
            request = m.ConsumerGroupHeartbeatRequest(
                group_id="g", member_id=member.name, member_epoch=-1, instance_id=member.instance_id
            )
            self.driver.ask(member.name, "consumer_group_heartbeat", request, 1)
        self.members.remove(member)

    def fail_over(self) -> None:
        driver = self.driver
        shard = driver.reload()
        assert durable(shard) == durable(driver.shard)
        if (group := self.group()) is not None:
            again = shard.state.groups.get("g")
            assert isinstance(again, ConsumerGroup) and again.snapshot() == group.snapshot()
        driver.shard = shard
        driver.timers.clear()
        self.offset -= 1
        self.change_topics()
        driver.run(shard.loaded(driver.now_ms))

    def chaos(self) -> None:
        roll = self.random.random()
        if roll < 0.05 and len(self.members) < 12:
            self.add()
        elif roll < 0.07 and len(self.members) > 1:
            self.leave(self.random.choice(self.members))
        elif roll < 0.09 and len(self.members) > 1:
            self.random.choice(self.members).alive = False  # crashes: its session has to end
        elif roll < 0.11:
            name = self.random.choice(TOPICS)
            self.counts[name] = self.counts.get(name, 0) + self.random.randrange(1, 4)
            self.change_topics()
        elif roll < 0.12:
            self.fail_over()
        elif roll < 0.3:
            self.driver.elapse(self.random.choice([50, 500, 5_000]))
        else:
            living = [member for member in self.members if member.alive]
            if living:
                member = self.random.choice(living)
                if self.random.random() < 0.6:
                    member.reconcile()
                self.beat(member, lossy=True)
        self.check()

    def check(self) -> None:
        group = self.group()
        if group is None:
            return
        held = Counter(
            (t, p)
            for member in group.members.live.values()
            for epochs in (member.assigned, member.revoking)
            for t, partitions in epochs.items()
            for p in partitions
        )
        assert not [place for place, holders in held.items() if holders > 1], "a partition with two members"
        for believer in self.members:
            member = group.members.get(believer.name)
            if member is None or not believer.epoch:
                continue
            for t, partitions in believer.owned.items():
                known = {*member.assigned.get(t, ()), *member.revoking.get(t, ())}
                assert partitions <= known, "a member believes to have what is not its own"

    def settle(self) -> None:
        self.members = [member for member in self.members if member.alive]
        if not self.members:
            self.add()
        for _ in range(40):
            self.driver.elapse(5_000)
            for member in self.members:
                member.reconcile()
                self.beat(member, lossy=False)


@pytest.mark.parametrize("seed", range(24))
def test_never_two_owners_and_always_settles(seed: int) -> None:
    world = World(seed)
    for _ in range(3):
        world.add()
    for _ in range(400):
        world.chaos()
    world.settle()
    group = world.group()
    assert group is not None
    assert group.state_name(committed=True) == "Stable"
    assert set(group.members.live) == {member.name for member in world.members}
    image = world.driver.shard.state.image
    subscribed = {name for member in world.members for name in member.topics} & set(world.counts)
    owned = Counter((t, p) for member in world.members for t, ps in member.owned.items() for p in ps)
    assert owned == Counter({(image.topic_ids[name], p): 1 for name in subscribed for p in range(world.counts[name])})
    if world.same_topics:
        sizes = [sum(map(len, member.owned.values())) for member in world.members]
        assert max(sizes) - min(sizes) <= 1
    written = len(world.driver.log)
    world.settle()
    assert len(world.driver.log) == written, "nothing moves once all is in place"


def test_the_checker_sees_a_partition_given_twice() -> None:
    world = World(0)
    for _ in range(2):
        world.add()
        world.settle()
    group = world.group()
    assert group is not None
    group.holder_epoch = lambda topic_id, partition: -1  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match=r"two members|not its own"):
        for _ in range(300):
            world.chaos()


def test_a_heartbeat_without_news_writes_nothing() -> None:
    world = World(1)
    for _ in range(5):
        world.add()
    world.settle()
    written, timers = len(world.driver.log), set(world.driver.timers)
    for member in world.members:
        request = m.ConsumerGroupHeartbeatRequest(group_id="g", member_id=member.name, member_epoch=member.epoch)
        request.instance_id = member.instance_id
        outcome = world.driver.ask(member.name, "consumer_group_heartbeat", request, 1)
        assert not outcome.records
        assert [timer.key for timer in outcome.timers] == [("consumer-session", "g", member.name)]
        assert outcome.response.assignment is None
        assert outcome.response.member_epoch == member.epoch
    assert len(world.driver.log) == written and set(world.driver.timers) == timers


class Unseen(dict[Any, Any]):
    """Looked up in, never walked through."""

    def __iter__(self) -> Any:
        raise AssertionError("looked at all of them")

    keys = values = items = __iter__


def test_a_heartbeat_costs_the_same_however_much_the_group_subscribes_to() -> None:
    driver = Driver(ShardConfig(consumer_assignment_interval_ms=0))
    driver.run(driver.shard.on_metadata(make_image(1, {f"t{number}": (number + 1, 1) for number in range(50)}), 0))
    for number in range(20):
        request = m.ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=f"m{number}", rebalance_timeout_ms=60_000, topic_partitions=[],
            subscribed_topic_names=[f"t{number}"], subscribed_topic_regex=f"t{number}.*",
        )  # fmt: skip
        driver.ask(f"m{number}", "consumer_group_heartbeat", request, 1)
    driver.elapse(20_000)
    for _ in range(2):
        for number in range(20):
            beat(driver, f"m{number}")
        driver.elapse(20_000)
    group = driver.shard.state.groups.get("g")
    assert isinstance(group, ConsumerGroup) and len(group.resolved) == 20
    group.topics, group.regexes = Unseen(group.topics), Unseen(group.regexes)
    for number in range(20):
        beat(driver, f"m{number}")


def beat(driver: Driver, member_id: str) -> None:
    group = driver.shard.state.groups.get("g")
    assert isinstance(group, ConsumerGroup)
    request = m.ConsumerGroupHeartbeatRequest(
        group_id="g", member_id=member_id, member_epoch=group.member(member_id).epoch
    )
    assert driver.ask(member_id, "consumer_group_heartbeat", request, 1).response.error_code == Err.NONE
