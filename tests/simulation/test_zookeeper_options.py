"""Options that others change in `/config`, while clients change them too: nothing that was acknowledged is undone, and
nothing that was noted is passed over."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from headrace.errors import Err, KafkaError
from headrace.metadata.image import TOPIC_CONFIG
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.quorum.zookeeper import paths, znodes
from headrace.quorum.zookeeper.operations import Create, Delete, Set
from headrace.testing.simulator.loop import SimLoop
from tests.simulation.zookeeper_nodes import Member
from tests.unit.metadata.paper_cluster import Cluster
from tests.unit.quorum.zookeeper.world import new_model

TOPIC, OTHER = "noted", "other"
PATH = paths.config(TOPIC_CONFIG, TOPIC)


class One:
    """A controller upon a model of ZooKeeper, with one topic; the real core decides."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.loop = SimLoop(Random(seed))
        self.model = new_model(seed, self.loop)
        self.member = Member(self.model, 1)
        self.quorum = self.member.quorum
        self.core = Cluster().controller
        self.refusals = 0
        """How many requests are refused for now."""
        self.attempts = 0
        self.poison: str | None = None
        """The value of an option at which the controller stumbles."""
        self.quorum.on_request(self._answer)

    async def _answer(self, key: ApiKey, message: Any, version: int) -> Any:
        assert key is ApiKey.ALTER_CONFIGS
        if self.refusals:
            self.refusals -= 1
            raise KafkaError(Err.REQUEST_TIMED_OUT, "not now")
        self.attempts += 1
        values = [config.value for resource in message.resources for config in resource.configs]
        if self.poison in values:
            raise ArithmeticError("nobody foresaw this")
        return await self.quorum.write(lambda image: self.core.alter_configs(image, message))

    async def change(self, value: str | None) -> None:
        """As a client asks for it, by way of the broker."""
        record = m.ConfigRecord(resource_type=TOPIC_CONFIG, resource_name=TOPIC, name="retention.ms", value=value)
        await self.quorum.append([(record, 0)])

    def write(self, config: dict[str, str] | None, topic: str = TOPIC) -> None:
        """As an old tool does it."""
        path = paths.config(TOPIC_CONFIG, topic)
        if config is None:
            self.model.multi(0, [Delete(path)])
        else:
            self.put(path, znodes.encode_config(config))
        self.note(znodes.encode_config_change(TOPIC_CONFIG, topic))

    def put(self, path: str, data: bytes) -> None:
        self.model.multi(0, [Set(path, data) if path in self.model.nodes else Create(path, data)])

    def note(self, data: bytes) -> None:
        self.model.multi(0, [Create(paths.CONFIG_CHANGE, data, sequence=True)])

    def write_unheard(self, config: dict[str, str]) -> None:
        """Like `write`, while no watch is set."""
        watches, self.member.session._watches = self.member.session._watches, set()
        self.write(config)
        self.member.session._watches = watches

    def stands(self, topic: str = TOPIC) -> dict[str, str]:
        node = self.model.nodes.get(paths.config(TOPIC_CONFIG, topic))
        return json.loads(node.data)["config"] if node is not None else {}

    def known(self, topic: str = TOPIC) -> dict[str, str]:
        return dict(self.quorum.image.config(TOPIC_CONFIG, topic))

    def run(self, life: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            await self.quorum.start()
            await self._until_active()
            topics = [m.TopicRecord(name=name, topic_id=bytes([n] * 16)) for n, name in enumerate((TOPIC, OTHER), 1)]
            await self.quorum.append([(topic, 0) for topic in topics])
            await life()
            await self.quorum.close()

        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(whole())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()

    async def _until_active(self) -> None:
        async with asyncio.timeout(60):
            while not self.quorum.is_active:
                await asyncio.sleep(0.01)

    async def elect_again(self) -> None:
        self.model.multi(0, [Delete(paths.CONTROLLER)])
        async with asyncio.timeout(60):
            while self.quorum.is_active:
                await asyncio.sleep(0.001)
        await self._until_active()


@pytest.mark.parametrize("seed", range(10))
def test_a_clients_changes_in_quick_succession_all_stay(seed: int) -> None:
    world = One(seed)

    async def life() -> None:
        epoch = world.quorum.leader_epoch
        for number in range(60):
            wanted = None if number % 3 == 2 else str(1_000 + number)
            await world.change(wanted)
            await asyncio.sleep(world.random.random() * 0.02)
            assert world.known().get("retention.ms") == wanted, "an acknowledged change was undone"
        await asyncio.sleep(5)
        assert world.known() == world.stands() == {}
        assert world.quorum.leader_epoch == epoch, "the controller stumbled over its own notes"

    world.run(life)


@pytest.mark.parametrize("seed", range(10))
def test_others_changes_and_clients_end_in_the_same_options(seed: int) -> None:
    world = One(seed)

    async def life() -> None:
        for number in range(40):
            if world.random.random() < 0.5:
                config = {"retention.ms": str(number), "max.message.bytes": "1000"}
                world.write(config if PATH not in world.model.nodes or world.random.random() < 0.7 else None)
            elif world.quorum.is_active:
                try:
                    await world.change(str(1_000 + number))
                except KafkaError:
                    pass  # what the tool did was in the way; the controller reads everything again
            await asyncio.sleep(world.random.random() * 0.03)
        await asyncio.sleep(5)
        assert world.known() == world.stands()

    world.run(life)


def test_a_change_that_is_refused_for_now_is_tried_again() -> None:
    world = One(0)

    async def life() -> None:
        world.refusals = 3
        world.write({"retention.ms": "2222"})
        await asyncio.sleep(5)
        assert not world.refusals
        assert world.known() == world.stands() == {"retention.ms": "2222"}

    world.run(life)


@pytest.mark.parametrize("seed", range(20))
def test_a_change_during_an_election_is_not_passed_over(seed: int) -> None:
    world = One(seed)

    async def life() -> None:
        await world.change("1000")
        await asyncio.sleep(1)
        world.loop.call_later(world.random.random() * 0.06, world.write, {"retention.ms": "2222"})
        await world.elect_again()
        await asyncio.sleep(5)
        assert world.known() == world.stands() == {"retention.ms": "2222"}

    world.run(life)


def test_a_change_at_which_the_controller_stumbles_holds_up_no_other() -> None:
    """Neither is a change that came after it lost, nor is it itself, once nothing is in its way any more."""
    world = One(0)

    async def life() -> None:
        world.poison = "2222"
        world.write({"retention.ms": "2222"})
        world.write({"retention.ms": "3333"}, OTHER)
        await asyncio.sleep(1)
        assert world.known(OTHER) == {"retention.ms": "3333"}, "it waits for one that fails"
        world.write({"retention.ms": "4444"}, OTHER)
        await asyncio.sleep(60)
        assert world.known(OTHER) == {"retention.ms": "4444"}
        assert world.known() == {}
        assert world.attempts < 20, "it is tried without a pause"
        world.poison = None
        await asyncio.sleep(40)
        assert world.known() == world.stands() == {"retention.ms": "2222"}

    world.run(life)


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[1]", b'{"version":1,"config":[1]}', b'{"version":1,"config":"retention.ms"}', b"\xff\x00"]
)
def test_a_znode_that_holds_no_options_holds_up_no_other(data: bytes) -> None:
    world = One(0)

    async def life() -> None:
        await world.change("1000")
        world.put(PATH, data)
        world.note(znodes.encode_config_change(TOPIC_CONFIG, TOPIC))
        world.note(data)
        world.write({"retention.ms": "3333"}, OTHER)
        await asyncio.sleep(1)
        assert world.known(OTHER) == {"retention.ms": "3333"}
        await world.elect_again()
        assert world.known() == world.stands(), "it was left there for the next controller"

    world.run(life)


def test_a_wake_up_at_the_end_of_a_look_is_not_lost() -> None:
    """The watch has fired, and is told of after the last look has ended and before anybody was told that it has."""
    world = One(0)

    async def life() -> None:
        ways_in = world.quorum._ways_in
        ways_in.look()
        task = ways_in._task
        assert task is not None
        while not task.done():
            await asyncio.sleep(0)
        assert ways_in._task is task, "the moment has passed"
        world.write_unheard({"retention.ms": "2222"})
        ways_in.look()
        await asyncio.sleep(5)
        assert world.known() == {"retention.ms": "2222"}

    world.run(life)


def test_a_controller_that_is_elected_again_at_once_writes_in_its_new_epoch() -> None:
    world = One(0)

    async def life() -> None:
        for number in range(5):
            await world.elect_again()
            await world.change(str(number))
            assert world.known() == world.stands() == {"retention.ms": str(number)}

    world.run(life)
