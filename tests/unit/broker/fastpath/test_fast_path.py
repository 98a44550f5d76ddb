"""The same history twice, with the fast path and without: every answer is the same, and so is
all that the leader knows."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from headrace.broker.handlers.fetch.consumers import RepeatedFetch
from headrace.broker.handlers.fetch.followers import RepeatedFollowerFetch
from headrace.broker.handlers.produce.handler import RepeatedProduce
from headrace.broker.replicas.partition import Partition
from headrace.config.broker import HEADRACE_DEFAULTS
from headrace.protocol import messages as m
from headrace.records.layout import TRANSACTIONAL, iter_headers
from tests.compat.raw import batch
from tests.unit.broker.replicated import TOPIC_ID, Brokers, T, run
from tests.unit.broker.sim import Wire, records

PARTITIONS = 2
STEPS = 350
WAIT_MS = 50
REPLICAS = [1, 2, 3]
"""1 is a broker and leads; the others are played."""
VERSIONS = (7, 8, 9, 12, 13)
READ_VERSIONS = (11, 12, 13, 17)
SETTINGS = (
    {"min_insync_replicas": "1"}, {"min_insync_replicas": "2"}, {"min_insync_replicas": "3"},
    {"message_timestamp_type": "LogAppendTime"}, {"message_timestamp_type": "CreateTime"},
    {"max_message_bytes": "500"}, {"max_message_bytes": "1000000"},
    {"compression_type": "gzip"}, {"compression_type": "producer"},
    {"flush_messages": "1"}, {"flush_messages": "1000"},
)  # fmt: skip


class Peer:
    """A connection to the leader. Answers go into the story when they come."""

    def __init__(self, name: str, wire: Wire, story: list[str]) -> None:
        self.name = name
        self.wire = wire
        self.unanswered = 0
        self.closed = False
        self.last: Any = None
        self._story = story
        self._asked: asyncio.Queue[None] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    def say(self, api: str, version: int, fields: dict[str, Any], is_answered: bool = True) -> None:
        self.wire.send(api, version, fields)
        if is_answered:
            self.unanswered += 1
            self._asked.put_nowait(None)
        else:
            self.wire.unanswered()

    async def _read(self) -> None:
        try:
            while True:
                await self._asked.get()
                self.last = await self.wire.receive()
                self.unanswered -= 1
                self._story.append(f"{self.name}: {_told(self.last)}")
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed = True
            self._story.append(f"{self.name} was closed")

    def leave(self) -> None:
        self._reading.cancel()
        self.wire.close()


class PlayedFollower(Peer):
    """Asks as a follower would, and now and then as none would."""

    def __init__(self, name: str, wire: Wire, story: list[str], node_id: int, epoch: int) -> None:
        super().__init__(name, wire, story)
        self.node_id = node_id
        self.epoch = epoch
        self.session = (0, 0)

    def begin_anew(self) -> None:
        self.session, self.last = (0, 0), None


class PlayedConsumer(Peer):
    """Reads one partition at a time, most of the time where it left off; with a session or without."""

    def __init__(
        self, name: str, wire: Wire, story: list[str], version: int, isolation: int, has_session: bool
    ) -> None:
        super().__init__(name, wire, story)
        self.bytes_min = 1
        self.leader_epoch = -1
        self.last_epoch = -1
        self.limits = {"bytes_max": 50 << 20, "partition_bytes_max": 500}
        self.rack = ""
        self.version = version
        self.isolation = isolation
        self.has_session = has_session
        self.session = (0, 0 if has_session else -1)
        self.offset = 0

    def heard(self) -> None:
        """Go on behind what the last answer brought."""
        if self.last is None:
            return
        if self.has_session:
            known, epoch = self.last.session_id, self.session[1]
            self.session = (known, epoch) if known and not self.last.error_code else (0, 0)
        for topic in self.last.responses:
            for row in topic.partitions:
                for _, header in iter_headers(bytes(row.records or b"")):
                    self.offset = header.end_offset
                self.offset = 0 if row.error_code else self.offset
        self.last = None


class History:
    """What happens is decided by the seed alone, and by what the leader's logs have."""

    def __init__(self, brokers: Brokers, seed: int, story: list[str]) -> None:
        self.brokers = brokers
        self.dictator = brokers.dictator
        self.dice = random.Random(seed)
        self.story = story
        self.followers: dict[int, PlayedFollower] = {}
        self.producers: list[Peer] = []
        self.consumers: list[PlayedConsumer] = []
        self.sequences: Counter[int] = Counter()
        self.busy = 0  # the partition that nearly all is about
        self.epoch = 100
        self.exists = True

    def chance(self, probability: float) -> bool:
        return self.dice.random() < probability

    def partition(self, index: int) -> Partition | None:
        return self.brokers.broker(1).replicas.by_name.get(T, {}).get(index)

    async def play(self) -> None:
        for node_id in REPLICAS[1:]:
            self.dictator.register(node_id, f"b{node_id}", 10 * node_id)
        self.dictator.create(REPLICAS, PARTITIONS)
        for node_id in REPLICAS[1:]:
            wire = await self.brokers.wire(1)
            self.followers[node_id] = PlayedFollower(f"follower {node_id}", wire, self.story, node_id, 10 * node_id)
        self.producers = [Peer(f"producer {n}", await self.brokers.wire(1), self.story) for n in range(2)]
        styles = [(self.dice.choice(VERSIONS), self.dice.choice((None, None, "one"))) for _ in self.producers]
        for number in range(3):
            told = self.dice.choice(READ_VERSIONS), self.dice.randrange(2), number > 0
            self.consumers.append(PlayedConsumer(f"consumer {number}", await self.brokers.wire(1), self.story, *told))
            self.consumers[-1].bytes_min = self.dice.choice((1, 1, 300))
        for _ in range(STEPS):
            kind = self.dice.random()
            if self.chance(0.5):
                await self._consume(self.dice.choice(self.consumers))
            elif kind < 0.45:
                await self._fetch(self.followers[self.dice.choice((2, 2, 3))])
            elif kind < 0.85:
                number = self.dice.randrange(len(self.producers))
                await self._produce(number, *styles[number])
            elif kind < 0.95:
                await self._decide()
            else:
                await asyncio.sleep(self.dice.choice((0.001, 0.03, 0.2, 0.6)))
            self._note()
        await asyncio.sleep(3)
        self._note()
        for peer in (*self.followers.values(), *self.producers, *self.consumers):
            assert peer.closed or not peer.unanswered, f"{peer.name} waits for {peer.unanswered} answers"
            peer.leave()

    async def _fetch(self, follower: PlayedFollower) -> None:
        dice = self.dice
        if follower.unanswered and self.chance(0.7):
            await asyncio.sleep(2 * WAIT_MS / 1000)
        if follower.closed:
            return
        if follower.last is not None:
            if follower.last.error_code:
                follower.begin_anew()
            else:
                follower.session = follower.last.session_id, follower.session[1]
        session_id, session_epoch = follower.session
        said_epoch = dice.choice((0, -1, session_epoch + 1, session_epoch - 1)) if self.chance(0.04) else session_epoch
        replica_epoch = follower.epoch + (dice.choice((-1, 1)) if self.chance(0.03) else 0)
        indexes = [self.busy] if self.chance(0.9) else dice.choice(([0, 1], [], [1 - self.busy]))
        rows = [self._row(index) for index in indexes]
        query = {
            "max_wait_ms": WAIT_MS if self.chance(0.95) else 0, "min_bytes": 1, "max_bytes": 50 << 20,
            "session_id": session_id, "session_epoch": said_epoch,
            "replica_state": {"replica_id": follower.node_id, "replica_epoch": replica_epoch},
            "topics": [{"topic_id": TOPIC_ID, "partitions": rows}] if rows or self.chance(0.2) else [],
        }  # fmt: skip
        if self.chance(0.03):
            query["forgotten_topics_data"] = [{"topic_id": TOPIC_ID, "partitions": [dice.randrange(PARTITIONS)]}]
        follower.say("Fetch", 18 if self.chance(0.98) else 16, query)
        follower.session = session_id, 1 if said_epoch == 0 else session_epoch + 1
        if self.chance(0.6):
            await asyncio.sleep(0.02)

    async def _consume(self, consumer: PlayedConsumer) -> None:
        dice = self.dice
        if consumer.unanswered and self.chance(0.8):
            await asyncio.sleep(2 * WAIT_MS / 1000)
        if consumer.closed:
            return
        consumer.heard()
        session_id, epoch = consumer.session
        index = self.busy if self.chance(0.95) else 1 - self.busy
        row = self._row(index)
        row["fetch_offset"] = dice.choice((0, row["fetch_offset"])) if self.chance(0.15) else consumer.offset
        if self.chance(0.1):  # it hears of another epoch, or it need not be of this one
            consumer.leader_epoch = dice.choice((-1, row["current_leader_epoch"], row["current_leader_epoch"]))
        if self.chance(0.15):
            self._change_habits(consumer)
        row |= {
            "current_leader_epoch": consumer.leader_epoch, "log_start_offset": -1,
            "partition_max_bytes": consumer.limits["partition_bytes_max"],
            "last_fetched_epoch": consumer.last_epoch if consumer.version >= 12 else -1,
        }  # fmt: skip
        topic = {"topic_id": TOPIC_ID} if consumer.version >= 13 else {"topic": T}
        query = {
            "max_wait_ms": WAIT_MS if self.chance(0.95) else 0, "min_bytes": consumer.bytes_min,
            "max_bytes": consumer.limits["bytes_max"], "isolation_level": consumer.isolation, "session_id": session_id,
            "session_epoch": epoch + dice.choice((-1, 1)) if self.chance(0.03) else epoch,
            "rack_id": consumer.rack, "topics": [{**topic, "partitions": [row]}],
        }  # fmt: skip
        if consumer.has_session and session_id and self.chance(0.05):
            query["forgotten_topics_data"] = [{**topic, "partitions": [dice.randrange(PARTITIONS)]}]
        consumer.say("Fetch", consumer.version, query)
        if consumer.has_session:
            consumer.session = session_id, epoch + 1
        if self.chance(0.6):
            await asyncio.sleep(0.02)

    def _change_habits(self, consumer: PlayedConsumer) -> None:
        """What it says from now on with each request."""
        dice = self.dice
        match dice.randrange(5):
            case 0:
                consumer.last_epoch = dice.choice((-1, -1, -1, 0, 99))
            case 1:
                consumer.limits["partition_bytes_max"] = dice.choice((500, 500, 100, 1 << 20, 1 << 20, -1))
            case 2:
                consumer.limits["bytes_max"] = dice.choice((200, 50 << 20, 50 << 20, 50 << 20, -1))
            case 3:
                consumer.rack = dice.choice(("", "", "rack-1", "rack-2"))
            case _:
                consumer.isolation = dice.choice((0, 0, 1, 1, 2))

    def _row(self, index: int) -> dict[str, int]:
        dice, partition = self.dice, self.partition(index)
        end, leader_epoch, log_start = 3, 0, 0
        if partition is not None:
            end, leader_epoch, log_start = (
                partition.log.end_offset,
                partition.leader_epoch,
                partition.log.log_start_offset,
            )
        offset = end if self.chance(0.6) else dice.choice((max(0, end - 1), end + 1, 0, dice.randint(0, end)))
        last_epoch = partition.log.epochs.epoch_for(max(0, offset - 1)) if partition is not None else 0
        return {
            "partition": index,
            "current_leader_epoch": leader_epoch + (dice.choice((-1, 1)) if self.chance(0.05) else 0),
            "fetch_offset": offset,
            "last_fetched_epoch": dice.choice((-1, 0, last_epoch + 1)) if self.chance(0.06) else last_epoch,
            "log_start_offset": dice.choice((0, log_start)),
            "partition_max_bytes": 1 if self.chance(0.03) else 1 << 20,
        }

    async def _produce(self, number: int, version: int, transactional_id: str | None) -> None:
        dice, producer = self.dice, self.producers[number]
        if producer.closed:
            producer = self.producers[number] = Peer(producer.name, await self.brokers.wire(1), self.story)
        if self.chance(0.05):
            version = dice.choice(VERSIONS)
        for _ in range(dice.choice((1, 1, 2, 5))):
            acks = dice.choice((-1, 1)) if self.chance(0.1) else 0 if self.chance(0.03) else -1
            index = self.busy if self.chance(0.9) else dice.choice((0, 1, 7))
            topic: dict[str, Any] = {"partition_data": [{"index": index, "records": self._batch(number)}]}
            topic |= {"topic_id": TOPIC_ID} if version >= 13 else {"name": T}
            query = {"transactional_id": transactional_id, "acks": acks, "timeout_ms": 80, "topic_data": [topic]}
            producer.say("Produce", version, query, acks != 0)
            if self.chance(0.1):
                producer.say("Metadata", 12, {"topics": []})  # what follows waits for the answers before it
        if self.chance(0.5):
            await asyncio.sleep(0.01)

    def _batch(self, number: int) -> bytes:
        kind = self.dice.random()
        if kind < 0.05:
            return batch(b"broken", crc_error=1)
        if kind < 0.25:
            sequence = self.sequences[number]
            if self.chance(0.7):
                self.sequences[number] += 1
            return batch(b"in order", producer=(500 + number, 0, max(0, sequence - self.dice.randrange(2))))
        if kind < 0.28:
            return batch(b"of a transaction", attributes=TRANSACTIONAL, producer=(600, 0, 0))
        if kind < 0.31:
            return batch(bytes(2_000))
        return b"" if kind < 0.33 else records(self.dice.randint(1, 3))

    async def _decide(self) -> None:  # noqa: C901 - one case for each kind
        dice, dictator, index = self.dice, self.dictator, self.dice.randrange(PARTITIONS)
        if not self.exists:
            dictator.create(REPLICAS, PARTITIONS)
            self.exists = True
            return
        match dice.choice(("elect", "move away and back", "isr", "isr", "settings", "settings", "register", "fence",
            "replicas",
                           "delete", "delete records", "other partition")):  # fmt: skip
            case "elect":
                dictator.change(index, leader=1)
            case "move away and back":
                dictator.change(index, leader=2)
                await asyncio.sleep(dice.choice((0, 0.03)))
                for consumer in self.consumers:
                    await self._consume(consumer)
                dictator.change(index, leader=1, isr=REPLICAS)
            case "isr":
                dictator.change(index, isr=dice.choice(([1], [1, 2], [1, 2, 3], [1, 3])))
            case "settings":
                dictator.configure(**dice.choice(SETTINGS))
            case "register":
                follower = self.followers[dice.choice(REPLICAS[1:])]
                self.epoch += 2
                dictator.register(follower.node_id, f"b{follower.node_id}", self.epoch)
                follower.epoch = self.epoch if self.chance(0.8) else follower.epoch
                if self.chance(0.5):
                    follower.begin_anew()
            case "fence":
                dictator.fence(dice.choice(REPLICAS[1:]))
            case "replicas":
                dictator.change(index, replicas=dice.choice(([1, 2], [1, 2, 3])), isr=[1, 2])
            case "delete":
                dictator.decide(m.RemoveTopicRecord(topic_id=TOPIC_ID))
                self.exists = False
            case "delete records":
                if (partition := self.partition(index)) is not None and partition.leader is not None:
                    partition.delete_up_to(min(partition.high_watermark, partition.log.log_start_offset + 2))
            case _:
                self.busy = 1 - self.busy

    def _note(self) -> None:
        """All that the leader knows."""
        for index in range(PARTITIONS):
            if (partition := self.partition(index)) is None:
                self.story.append(f"{index} is not there")
                continue
            leader, log = partition.leader, partition.log
            self.story.append(
                f"{index}: {log.log_start_offset} to {log.end_offset}, committed {partition.high_watermark},"
                f" epoch {partition.leader_epoch}, {len(partition.ack_waiters)} wait"
            )
            if leader is not None:
                followers = [
                    (
                        f.node_id,
                        f.end_offset,
                        f.log_start_offset,
                        f.broker_epoch,
                        f.joining,
                        f.caught_up_ms,
                        f.fetched_ms,
                    )
                    for f in leader.followers.values()
                ]
                self.story.append(f"in sync {leader.isr}, too few: {leader.too_few}, {followers}")


def _told(answer: Any) -> str:
    if isinstance(answer, m.MetadataResponse):
        return "metadata"
    if isinstance(answer, m.FetchResponse):
        for topic in answer.responses:
            for row in topic.partitions:
                row.records = bytes(row.records or b"")
    return str(answer)


def told(seed: int) -> list[str]:
    story: list[str] = []
    durability = "fsync" if seed % 2 else "replicated"
    more: dict[str, Any] = {}
    if seed % 3 == 0:
        more["replica_selector_class"] = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    if seed % 4 == 0:
        more["fetch_max_bytes"] = "1024"
    run(lambda brokers: History(brokers, seed, story).play(), 1, seed=seed, durability=durability, **more)
    return story


@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, 1000), marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_a_history_with_the_fast_path_is_the_one_without(seeds: range, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: Counter[type] = Counter()
    kinds = RepeatedFetch, RepeatedFollowerFetch, RepeatedProduce
    for kind in kinds:
        monkeypatch.setattr(kind, "serve", _counted(kind, taken))
    stories = {seed: told(seed) for seed in seeds}
    before = taken.copy()
    assert all(before[kind] > 20 * len(seeds) for kind in kinds), before
    monkeypatch.setitem(HEADRACE_DEFAULTS, "fast.path", "off")
    for seed, story in stories.items():
        for recognised, read in zip(story, told(seed), strict=True):
            assert recognised == read, f"seed {seed}"
    assert taken == before


def _counted(kind: Any, taken: Counter[type]) -> Callable[..., Any]:
    serve = kind.serve

    def counted(self: Any, *frame: Any) -> Any:
        answer = serve(self, *frame)
        taken[kind] += answer is not None
        return answer

    return counted
