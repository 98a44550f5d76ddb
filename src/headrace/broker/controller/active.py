"""The active controller: what a node does while it leads the metadata quorum, and only then.

It answers what `registry.py` lists, keeps the sessions of brokers, fences those that are gone and
gives leadership back to preferred replicas. All decisions are made by `headrace.metadata`; here are clocks and sockets.
"""

import asyncio
import logging
from asyncio import TimerHandle
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

from msgspec.structs import replace

from headrace.broker.controller.balancer import CHECK_S, Balancer
from headrace.broker.controller.metrics import ControllerCounters
from headrace.broker.controller.partition_sizes import PartitionSizes
from headrace.broker.controller.probe import Presence, probe
from headrace.broker.controller.refusals import refusal
from headrace.broker.controller.registry import DECISIONS
from headrace.broker.net.connection import Connection
from headrace.broker.replicas.deltas import DeltaQueue
from headrace.broker.runtime import Runtime
from headrace.broker.tasks import Tasks
from headrace.config import BrokerConfig
from headrace.errors import Err, KafkaError
from headrace.metadata.balance.auto import next_moves
from headrace.metadata.controller import Controller
from headrace.metadata.heartbeats import BrokerState, Reply
from headrace.metadata.image import Broker, Endpoint, Image
from headrace.metadata.outcome import Outcome
from headrace.metadata.policy import UNCLEAN
from headrace.metadata.records import Record
from headrace.metadata.sessions import NO_OFFSET, Sessions
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.quorum import RAFT_APIS, Quorum

logger = logging.getLogger("headrace.controller")

ELECTIONS_AT_A_TIME = 1_000
PROBES_AT_A_TIME = 64
LOOK_AGAIN_S = (0.05, 0.2, 0.5, 0.0)
AGAIN_S = 1.0
"""When what could not be written, since the disk was full, is tried again."""
PREFERRED_SOON_S = 2.0
"""How soon a preferred replica that is in sync again leads again."""
LATE_MS = 250
"""A timer that is later than this tells of a loop that stood still, and with it the heartbeats it should have read."""

Chore = Callable[[], Coroutine[Any, Any, None]]


class Caller(NamedTuple):
    """Who asks: in which version, and over which connection. None is this node's own broker."""

    version: int
    connection: Connection | None = None

    @property
    def is_local(self) -> bool:
        return self.connection is None


class ActiveController:
    """Silent on a node that does not lead: whoever asks is told NOT_CONTROLLER."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        config: BrokerConfig,
        quorum: Quorum,
        core: Controller,
        deltas: DeltaQueue,
    ) -> None:
        self.quorum = quorum
        self.core = core
        self._loop = runtime.loop
        self._clock = runtime.clock
        self._perf_counter = runtime.perf_counter
        self._tasks = tasks
        self._config = config
        self._deltas = deltas
        self._sessions = Sessions(config["broker.session.timeout.ms"])
        self._connections: dict[int, Connection] = {}
        """On which connection each broker's heartbeats come."""
        self._suspected: set[int] = set()
        self.counters = ControllerCounters()
        self._active = False
        self._last_leader = -1
        self._expiry: TimerHandle | None = None
        self._expiry_due_ms = 0
        self._balancer = Balancer(core.policy.disk_space, core.config_of)
        self._sizes = PartitionSizes(f"headrace-controller-{quorum.node_id}", self._between_brokers)
        self._is_planning = False
        self._run_in_thread = runtime.run_in_thread
        self._preferred_soon_s = PREFERRED_SOON_S
        self._intervals_s: dict[Chore, float] = {}
        self._chores: dict[Chore, TimerHandle] = {}
        """When each has its next turn."""
        quorum.on_leadership(self._leadership)
        quorum.on_departure(self._departed)
        quorum.on_request(lambda key, message, version: self.answer(key, message, Caller(version)))

    # ---- being asked

    async def handle(self, key: ApiKey, message: Any, caller: Caller) -> Any:
        """The answer to a request, whatever becomes of it."""
        try:
            return await self.answer(key, message, caller)
        except KafkaError as error:
            return refusal(key, message, error)

    async def answer(self, key: ApiKey, message: Any, caller: Caller) -> Any:
        """Like `handle`, but raises what refuses the whole request."""
        if key in RAFT_APIS:
            peer = caller.connection.peer_host if caller.connection is not None else "this node"
            return await self.quorum.serve(key, message, caller.version, peer)
        if not self._active:
            raise KafkaError(Err.NOT_CONTROLLER, "this node is not the active controller")
        try:
            return await DECISIONS[key](self, message, caller)
        except KafkaError as error:
            if error.error is Err.KAFKA_STORAGE_ERROR:
                # Of several batches the first ones may be written: a broker unfenced, say, and its partitions not yet
                # led.
                self._again(self._elect_leaderless)
            raise

    async def settled(self) -> None:
        """Once this node's own replicas follow what was decided: a client may ask for a new topic the moment it hears
        of it."""
        await self._deltas.settled()

    async def decide(self, decision: Callable[[Image], Outcome[Any]]) -> Any:
        """Make a decision durable, then answer."""

        perf_counter, counters = self._perf_counter, self.counters
        began = perf_counter()

        def decide(image: Image) -> Outcome[Any]:
            outcome = decision(image)
            counters.decisions.observe(perf_counter() - began)
            self._note(image, outcome.records)
            return outcome

        response = await self.quorum.write(decide)
        counters.commits.observe(perf_counter() - began)
        return response

    async def decide_ahead(self, decision: Callable[[Image], Outcome[Any]]) -> Any:
        """The same for a decision that takes long: it is made in a thread. If anything has changed by then, it does not
        count, and is made again."""
        seen = self.quorum.tip
        outcome = await self._run_in_thread(decision, seen)
        return await self.decide(lambda image: outcome if image is seen else decision(image))

    def _note(self, image: Image, records: list[Record]) -> None:
        """An unclean election is allowed where somebody said so, and never silent."""
        for lossy in self.counters.note_elections(image, records):
            topic = image.topics[lossy.topic_id]
            logger.error(
                "unclean election: broker %d leads %s-%d without having been in sync; records may be lost"
                " (offline before: ISR %s)",
                lossy.leader, topic.name, lossy.partition_id, list(topic.partitions[lossy.partition_id].isr),
            )  # fmt: skip
        if any(_in_sync_again(image, record) for record, _ in records):
            self._balance_soon()
        if any(isinstance(record, m.ConfigRecord) and record.name == UNCLEAN for record, _ in records):
            self._loop.call_soon(self._run_chore, self._elect_leaderless)

    # ---- coming and going of the duty

    def _leadership(self, leader_id: int, leader_epoch: int, active: bool) -> None:
        if active and not self._active:
            self._begin(leader_epoch)
        elif not active and self._active:
            self._end()
        if leader_id not in (-1, self.quorum.node_id):
            self._last_leader = leader_id

    def _begin(self, leader_epoch: int) -> None:
        """Everybody gets a whole session, since nobody could heartbeat to this node before; dead ones are found by
        asking."""
        self._active = True
        image, now_ms = self.quorum.tip, self._clock.monotonic_ms()
        silent_ms = {}
        if self._last_leader not in (-1, self.quorum.node_id):
            # It was deposed because it had not been heard of for this long.
            silent_ms[self._last_leader] = self._config["controller.quorum.fetch.timeout.ms"]
        unfenced = {broker.id: broker.epoch for broker in image.brokers.values() if not broker.fenced}
        self._sessions.restart(unfenced, now_ms, silent_ms)
        self.core.policy.disk_space.forget()
        self._balancer.restart()
        self._connections.clear()
        self._suspected.clear()
        logger.log(self._level, "node %d is the active controller in epoch %d", self.quorum.node_id, leader_epoch)
        self._watch_expiry()
        self._start_chores()
        self._run_chore(self._elect_leaderless)
        others = [broker_id for broker_id in unfenced if broker_id != self.quorum.node_id]
        self._look_around(others)

    def _end(self) -> None:
        self._active = False
        logger.log(self._level, "node %d is no longer the active controller", self.quorum.node_id)
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        for timer in self._chores.values():
            timer.cancel()
        self._chores.clear()

    def close(self) -> None:
        if self._active:
            self._end()

    # ---- brokers in touch

    def in_touch(self, broker_id: int) -> bool:
        """Whether the incarnation of a broker that is registered has been heard of lately."""
        broker: Broker | None = self.quorum.tip.brokers.get(broker_id)
        return broker is not None and self._sessions.alive(broker_id, broker.epoch, self._clock.monotonic_ms())

    def heard_of(self, broker_id: int, epoch: int, caller: Caller, metadata_offset: int | None = None) -> None:
        self._sessions.touch(broker_id, epoch, self._clock.monotonic_ms(), metadata_offset)
        if self._expiry is None:
            self._watch_expiry()
        connection = caller.connection
        if connection is not None and self._connections.get(broker_id) is not connection:
            self._connections[broker_id] = connection
            connection.when_lost = lambda: self._connection_lost(broker_id, connection)

    def forget(self, broker_id: int) -> None:
        self._sessions.forget(broker_id)
        self._connections.pop(broker_id, None)

    def heartbeat(self, message: m.BrokerHeartbeatRequest) -> tuple[Reply, Awaitable[Any] | None]:
        """Decide now; what to wait for before the answer may leave, if anything has changed."""
        if not self.quorum.is_present(message.broker_id):
            message = replace(message, want_fence=True)  # it may not lead what others could lead at any moment
        image = self.quorum.tip
        outcome = self.core.heartbeat(image, message, lambda: self._others_know(image, message.broker_id))
        records, reply = outcome
        committed = None
        if records:
            self._note(image, records)
            before = image.brokers[message.broker_id]
            committed = self.quorum.append(records)
            self._tell_state(before, reply)
            if reply.state is BrokerState.CONTROLLED_SHUTDOWN:
                session = self._sessions.touch(before.id, before.epoch, self._clock.monotonic_ms())
                session.shutdown_offset = self.quorum.next_offset - 1
        return reply, committed

    @property
    def _level(self) -> int:
        """What every start and stop brings is worth a line only where others could have taken part."""
        return logging.INFO if len(self.quorum.image.brokers) > 1 else logging.DEBUG

    def _tell_state(self, before: Broker, reply: Reply) -> None:
        if reply.is_fenced != before.fenced or reply.state is BrokerState.CONTROLLED_SHUTDOWN:
            logger.log(self._level, "broker %d (epoch %d) is now: %s", before.id, before.epoch, reply.state.value)

    def _others_know(self, image: Image, broker_id: int) -> bool:
        """Whether all brokers have read that `broker_id` leads nothing any more."""
        session = self._sessions.get(broker_id)
        if session is None:
            return False
        if session.shutdown_offset == NO_OFFSET:
            # Another controller began this: it has read all that is written by now.
            session.shutdown_offset = image.offset
        active = (broker.id for broker in image.brokers.values() if broker.active)
        lowest = self._sessions.lowest_offset(active)
        return lowest is None or lowest >= session.shutdown_offset

    # ---- brokers out of touch

    def _watch_expiry(self) -> None:
        """One timer, for the session that ends first; heartbeats only move that end."""
        due_ms = self._sessions.next_expiry_ms()
        if due_ms is None:
            self._expiry = None
            return
        self._expiry_due_ms = due_ms
        delay_ms = max(0, due_ms - self._clock.monotonic_ms())
        self._expiry = self._loop.call_later(delay_ms / 1000, self._check_expiry)

    def _check_expiry(self) -> None:
        now_ms = self._clock.monotonic_ms()
        late_ms = now_ms - self._expiry_due_ms
        if late_ms > LATE_MS:
            logger.warning("this controller stood still for %d ms: all sessions last longer", late_ms)
            self._sessions.forgive(late_ms, now_ms)
        while (session := self._sessions.expired(now_ms)) is not None:
            self._sessions.forget(session.broker_id)
            if self._is_alone(now_ms) and self.quorum.give_way():
                return
            self._tasks.spawn(
                self._fence(session.broker_id, session.epoch, f"silent for {self._sessions.timeout_ms} ms")
            )
        self._watch_expiry()

    def _is_alone(self, now_ms: int) -> bool:
        """Whether most of the brokers that the quorum says are there have fallen silent: then the one that is cut off
        is this node."""
        there = [broker for broker in self.quorum.tip.brokers.values() if self.quorum.is_present(broker.id)]
        heard = sum(
            broker.id == self.quorum.node_id or self._sessions.alive(broker.id, broker.epoch, now_ms)
            for broker in there
        )
        return 2 * heard < len(there)

    async def _fence(self, broker_id: int, epoch: int, reason: str) -> None:
        if not self._active:
            return
        image = self.quorum.tip
        broker: Broker | None = image.brokers.get(broker_id)
        if broker is None or broker.fenced or broker.epoch != epoch:
            return
        logger.warning("broker %d (epoch %d) is fenced: %s", broker_id, epoch, reason)
        self._sessions.forget(broker_id)
        try:
            records = self.core.fence_broker(image, broker_id)
            self._note(image, records)
            await self.quorum.append(records)
            self.counters.fenced += 1
        except KafkaError as error:
            # Whoever is the active controller next finds the same. If that is still this node, its disk was full.
            logger.warning("broker %d could not be fenced: %s", broker_id, error)
            self._loop.call_later(AGAIN_S, self._fence_again, broker_id, epoch, reason)

    def _fence_again(self, broker_id: int, epoch: int, reason: str) -> None:
        if self._active and self._sessions.get(broker_id) is None:  # not heard of since
            self._tasks.spawn(self._fence(broker_id, epoch, reason))

    def _connection_lost(self, broker_id: int, connection: Connection) -> None:
        """The socket of a broker's heartbeats is closed: a dead process, or a passing trouble of the network."""
        if self._connections.get(broker_id) is connection:
            del self._connections[broker_id]
            self.suspect(broker_id, "its connection is closed")

    def _departed(self, broker_id: int) -> None:
        broker: Broker | None = self.quorum.tip.brokers.get(broker_id)
        if self._active and broker is not None and not broker.fenced:
            self._tasks.spawn(self._fence(broker_id, broker.epoch, "its session has ended"))

    def suspect(self, broker_id: int, why: str) -> None:
        """Ask at once whether a broker's process is there, instead of waiting for its session to end."""
        broker: Broker | None = self.quorum.tip.brokers.get(broker_id)
        if not self._active or broker is None or broker.fenced or broker_id in self._suspected:
            return
        self._suspected.add(broker_id)
        self._tasks.spawn(self._look_at(broker, why))

    async def _look_at(self, broker: Broker, why: str) -> None:
        """More than once: a process that is being killed closes its sockets one by one, the port among the last."""
        try:
            session = self._sessions.get(broker.id)
            heard_ms = session.last_contact_ms if session is not None else -1
            for pause_s in LOOK_AGAIN_S:
                presence = await probe(self._between_brokers(broker))
                session = self._sessions.get(broker.id)
                if session is not None and session.last_contact_ms != heard_ms:
                    return
                if presence is Presence.GONE:
                    await self._fence(broker.id, broker.epoch, f"{why}, and its port is closed")
                    return
                await asyncio.sleep(pause_s)
        finally:
            self._suspected.discard(broker.id)

    def _between_brokers(self, broker: Broker) -> Endpoint | None:
        """Where other nodes reach a broker; what it tells clients may mean nothing here."""
        name = self._config.inter_broker_listener
        return next((e for e in broker.endpoints if e.name == name), next(iter(broker.endpoints), None))

    def _look_around(self, broker_ids: list[int]) -> None:
        """A new controller: who of those that should be there is dead?"""
        slots = asyncio.Semaphore(PROBES_AT_A_TIME)

        async def look(broker_id: int) -> None:
            async with slots:
                broker: Broker | None = self.quorum.tip.brokers.get(broker_id)
                if self._active and broker is not None and not broker.fenced:
                    await self._look_at(broker, "a new controller looked for it")

        for broker_id in broker_ids:
            self._tasks.spawn(look(broker_id))

    # ---- by the clock

    def _start_chores(self) -> None:
        config = self._config
        self._preferred_soon_s = PREFERRED_SOON_S
        self._intervals_s = {
            self._elect_leaderless: config["unclean.leader.election.interval.ms"] / 1000,
            self._move_replicas: CHECK_S,
        }
        if config["auto.leader.rebalance.enable"]:
            self._intervals_s[self._balance] = config["leader.imbalance.check.interval.seconds"]
        for chore, interval_s in self._intervals_s.items():
            self._schedule(chore, interval_s)

    def _schedule(self, chore: Chore, delay_s: float) -> None:
        """Its next turn, in place of the one that it had."""
        if chore in self._chores:
            self._chores[chore].cancel()
        self._chores[chore] = self._loop.call_later(delay_s, self._due, chore)

    def _due(self, chore: Chore) -> None:
        if chore == self._balance:
            self._preferred_soon_s = PREFERRED_SOON_S
        self._schedule(chore, self._intervals_s[chore])
        self._run_chore(chore)

    def _again(self, chore: Chore) -> None:
        """Soon: what it is for could not be written, or not all of it."""
        if self._active:
            self._schedule(chore, AGAIN_S)

    def _run_chore(self, chore: Chore) -> None:
        async def run() -> None:
            try:
                await chore()
            except KafkaError as error:
                logger.warning("%s failed: %s", chore.__name__.strip("_"), error)
                self._again(chore)

        if self._active:
            self._tasks.spawn(run())

    def _balance_soon(self) -> None:
        """A preferred replica is in sync again, and should not wait for minutes until it leads.

        All that are back at about the same time are elected together. Each time takes twice as long as the one before,
        until the regular interval has passed: a broker that comes and goes does not take leaders back and forth.
        """
        turn = self._chores.get(self._balance)
        delay_s = self._preferred_soon_s
        if turn is None or turn.when() <= self._loop.time() + delay_s or delay_s >= self._intervals_s[self._balance]:
            return
        self._preferred_soon_s = 2 * delay_s
        turn.cancel()
        self._chores[self._balance] = self._loop.call_later(delay_s, self._balance_early)

    def _balance_early(self) -> None:
        self._schedule(self._balance, self._intervals_s[self._balance])
        self._run_chore(self._balance)

    async def _move_replicas(self) -> None:
        """With `auto.balance`, partitions are kept whole and even as brokers come and go."""
        now_ms = self._clock.monotonic_ms()
        look = self._balancer.look(self.quorum.tip, now_ms) if not self._is_planning else None
        if look is None:
            return
        self._is_planning = True
        try:
            sizes = await self._sizes.get(look.image, now_ms)
            moves = await self._run_in_thread(next_moves, look.image, look.standing, look.moves_max, sizes)
        finally:
            self._is_planning = False
        if not self._active:
            return
        request = self._balancer.conclude(look, moves, self.quorum.tip)
        if request is not None:
            await self.decide(lambda image: self.core.alter_reassignments(image, request))
        elif self._balancer.has_just_rested:
            await self._balance()

    async def _balance(self) -> None:
        """Leadership goes back to preferred replicas, so that brokers share the work as placement meant it."""
        while await self._elect(lambda image: self.core.balance_leaders(image, ELECTIONS_AT_A_TIME)):
            pass

    async def _elect_leaderless(self) -> None:
        """By the clock, since a topic may have come to allow unclean elections; at once by a new controller, since the
        last one may have died between two batches."""
        await self._elect(self.core.elect_leaderless)

    async def _elect(self, choose: Callable[[Image], list[Record]]) -> bool:
        """True when there may be more to do."""
        count: int = await self.decide(lambda image: _counted(choose(image)))
        if count:
            logger.info("%d partitions have new leaders", count)
        return count >= ELECTIONS_AT_A_TIME


def _in_sync_again(image: Image, record: Any) -> bool:
    """Whether a record puts a preferred replica that does not lead back in sync, or prefers another that is."""
    if not isinstance(record, m.PartitionChangeRecord) or not (record.isr or record.replicas):
        return False
    partition = image.partition(record.topic_id, record.partition_id)
    if partition is None or not partition.replicas:
        return False
    preferred = (record.replicas or partition.replicas)[0]
    leader = partition.leader if record.leader < 0 else record.leader
    new = preferred not in partition.isr or preferred != partition.replicas[0]
    return new and leader != preferred and preferred in (record.isr or partition.isr)


def _counted(records: list[Record]) -> Outcome[int]:
    return Outcome(records, len(records))
