"""Tells the controller who is in sync: what leaders here propose is sent in batches, one request at a time.

Leader and controller never change the ISR at the same moment. The race that this could be:

    1. Leader 1 of the ISR [1, 2] proposes [1, 2, 3], since 3 has caught up (`LeaderState.propose`).
    2. The controller commits that. Its answer is late, or lost.
    3. Record 50 is on 1 and 2, and not yet on 3.
    4. If 1 counted by its old ISR, it would now acknowledge record 50.
    5. 1 dies. By the controller's books 3 is in sync. It is elected, and record 50 is gone.

So from step 1 on the high watermark waits for everybody who is in the old ISR or in the proposed one
(`LeaderState.maximal_isr`): a proposal may be in force or not. That ends with the metadata that says so, or with an
answer by which the controller has certainly not done it (`NOT_DONE`), and not with an answer of success, before which
other metadata may be on its way (`_answered`). Leaving the ISR is the same race: until it is certain that 2 cannot be
elected, nothing is committed without it. A proposal that was refused for good waits for the metadata that explains why.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, NamedTuple

from headrace.broker.metadata_cache import Registration
from headrace.broker.metrics import Metrics
from headrace.broker.replicas.controller_client import ControllerClient
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.partition import Partition
from headrace.broker.runtime import Runtime
from headrace.broker.tasks import Tasks
from headrace.client.errors import err_of
from headrace.errors import Err, KafkaError
from headrace.protocol import messages as m
from headrace.protocol.api import ApiKey
from headrace.replication.partition import LeaderState, Proposal

logger = logging.getLogger("headrace.isr")

RETRY_MS = 50
RETRY_MS_MAX = 1_000
NAMED_MAX = 5
RECOVERED = 0

NOT_DONE = frozenset({Err.OPERATION_NOT_ATTEMPTED, Err.INELIGIBLE_REPLICA})
"""The controller has certainly not done it: whoever wants it may propose it anew."""
WAIT_FOR_METADATA = frozenset(
    {
        Err.UNKNOWN_TOPIC_OR_PARTITION,
        Err.UNKNOWN_TOPIC_ID,
        Err.FENCED_LEADER_EPOCH,
        Err.INVALID_UPDATE_VERSION,
        Err.INVALID_REQUEST,
        Err.NEW_LEADER_ELECTED,
    }
)
"""The controller knows something that this node will hear of."""


class Item(NamedTuple):
    """One partition's proposal, as it was made by one leader state."""

    partition: Partition
    leader: LeaderState
    leader_epoch: int
    proposal: Proposal
    broker_epochs: dict[int, int]
    """Of the followers in it, when it was made: of those that have started anew since, their last life is spoken of."""

    @property
    def is_current(self) -> bool:
        return self.partition.leader is self.leader and self.leader.pending is self.proposal


class IsrChanges:
    """See the module. All on the loop."""

    def __init__(
        self,
        runtime: Runtime,
        tasks: Tasks,
        metrics: Metrics,
        registration: Registration,
        replicas: Replicas,
        controller: ControllerClient,
        lag_ms_max: int,
    ) -> None:
        self._loop = runtime.loop
        self._clock = runtime.clock
        self._tasks = tasks
        self._metrics = metrics
        self._registration = registration
        self._replicas = replicas
        self._controller = controller
        self._lag_ms_max = lag_ms_max
        self._queue: dict[Partition, Item] = {}
        self._sending = False
        self._retry_ms = RETRY_MS
        self._timer: Any = None
        self._expected_ms = 0
        self._news: dict[str, list[Partition]] = {}
        """What was found since the last request, by what it is, for the log."""

    def start(self) -> None:
        """Look for followers that have fallen back, twice in the time they are given."""
        self._again()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _again(self) -> None:
        interval_ms = max(1, self._lag_ms_max // 2)
        self._expected_ms = self._clock.monotonic_ms() + interval_ms
        self._timer = self._loop.call_later(interval_ms / 1000, self._tick)

    def _tick(self) -> None:
        late_ms = self._clock.monotonic_ms() - self._expected_ms
        self._again()
        if late_ms > self._lag_ms_max // 10:
            # This node stood still, so it has not heard its followers: their Fetches are waiting to be read.
            logger.warning("%d ms late: followers are looked at the next time", late_ms)
        else:
            self.check_all()

    def check_all(self) -> None:
        """Propose to go on without those who are behind."""
        now_ms = self._clock.monotonic_ms()
        for partition in self._replicas:
            leader = partition.leader
            if leader is not None and leader.followers:
                self._shrink(partition, leader, now_ms)
                if leader.forget_joining(partition.log.end_offset, now_ms):
                    partition.advanced()
                self.consider_all(partition)

    def brokers_changed(self, brokers: Iterable[int]) -> None:
        """Brokers were fenced or unfenced: wait no longer for the ones, let the others in."""
        changed = set(brokers)
        now_ms = self._clock.monotonic_ms()
        for partition in self._replicas:
            leader = partition.leader
            if leader is not None and any(b in leader.followers and b not in leader.isr for b in changed):
                if leader.forget_joining(partition.log.end_offset, now_ms):
                    partition.advanced()
                self.consider_all(partition)

    def consider_all(self, partition: Partition) -> None:
        """A change is done, so another may be made: those who came in sync meanwhile do not say so again.

        Only of followers whose Fetch is here or near: what a dead one once said would have it taken in again.
        """
        if partition.leader is not None:
            now_ms = self._clock.monotonic_ms()
            for watcher in list(partition.watchers):
                if (replica := watcher.live_replica(now_ms)) in partition.leader.followers:
                    self.consider(partition, replica)

    def consider(self, partition: Partition, replica: int) -> None:
        """A follower has come further, or has shown that it lost something."""
        leader = partition.leader
        if leader is None or leader.pending is not None:
            return
        follower = leader.followers[replica]
        if replica not in leader.isr:
            if leader.may_join(follower):
                self._news.setdefault(f"{replica} is in sync again", []).append(partition)
                self._metrics.isr_expands += 1
                self._propose(partition, leader, (*leader.isr, replica))
        elif leader.has_lost(follower):
            self._shrink(partition, leader, self._clock.monotonic_ms())

    def _shrink(self, partition: Partition, leader: LeaderState, now_ms: int) -> None:
        behind = leader.out_of_sync(partition.log.end_offset, now_ms)
        if not behind:
            return
        self._metrics.isr_shrinks += len(behind)
        for replica in behind:
            follower = leader.followers[replica]
            reason = "has lost committed records" if leader.has_lost(follower) else "is behind"
            self._news.setdefault(f"{replica} {reason} and leaves the ISR", []).append(partition)
            logger.debug(
                "%s: %d %s: at %d, high watermark %d, end %d",
                partition, replica, reason, follower.end_offset, leader.high_watermark, partition.log.end_offset,
            )  # fmt: skip
        self._propose(partition, leader, tuple(replica for replica in leader.isr if replica not in behind))

    def _propose(self, partition: Partition, leader: LeaderState, isr: tuple[int, ...]) -> None:
        epochs = {replica: leader.broker_epoch_of(replica) for replica in isr if replica != leader.node_id}
        self._queue[partition] = Item(partition, leader, leader.leader_epoch, leader.propose(isr), epochs)
        self._send_soon()

    # ---- sending

    def _send_soon(self) -> None:
        """Not at once: a failing broker is behind in many partitions, and they share the request."""
        if not self._sending:
            self._sending = True
            self._loop.call_soon(lambda: self._tasks.spawn(self._send_all()))

    def _tell(self) -> None:
        """One line for all partitions of which the same is to be told: a lost broker is behind in thousands."""
        news, self._news = self._news, {}
        for what, partitions in news.items():
            named = ", ".join(map(str, partitions[:NAMED_MAX]))
            more = len(partitions) - NAMED_MAX
            logger.warning("%s: %s", f"{named} and {more} more" if more > 0 else named, what)

    async def _send_all(self) -> None:
        try:
            while self._queue:
                self._tell()
                items = [item for item in self._queue.values() if item.is_current]
                self._queue.clear()
                again = await self._send(items) if items else []
                if not again:
                    self._retry_ms = RETRY_MS
                    continue
                for item in again:
                    self._queue.setdefault(item.partition, item)
                await asyncio.sleep(self._retry_ms / 1000)
                self._retry_ms = min(2 * self._retry_ms, RETRY_MS_MAX)
        finally:
            self._sending = False

    async def _send(self, items: list[Item]) -> list[Item]:
        """Returns those to be tried again."""
        try:
            answer = await self._controller.request(ApiKey.ALTER_PARTITION, self._request(items))
        except KafkaError as error:
            logger.warning("in-sync replicas of %d partitions could not be changed yet: %s", len(items), error)
            return items
        if answer.error_code:
            # A stale or unknown broker epoch: this node is about to register anew, or to hear that it is fenced.
            logger.warning("the controller refused changes of in-sync replicas: %s", err_of(answer.error_code).name)
            return items
        rows = {(topic.topic_id, row.partition_index): row for topic in answer.topics for row in topic.partitions}
        return [
            item
            for item in items
            if not self._answered(item, rows.get((item.partition.topic_id, item.partition.index)))
        ]

    def _request(self, items: list[Item]) -> m.AlterPartitionRequest:
        R = m.AlterPartitionRequest
        own_epoch = self._registration.broker_epoch
        topics: dict[bytes, Any] = {}
        for item in items:
            partition = item.partition
            topic = topics.get(partition.topic_id)
            if topic is None:
                topic = topics[partition.topic_id] = R.TopicData(topic_id=partition.topic_id)
            isr = item.proposal.isr
            topic.partitions.append(
                R.PartitionData(
                    partition_index=partition.index,
                    leader_epoch=item.leader_epoch,
                    new_isr_with_epochs=[
                        R.BrokerState(broker_id=replica, broker_epoch=item.broker_epochs.get(replica, own_epoch))
                        for replica in isr
                    ],
                    leader_recovery_state=RECOVERED,
                    partition_epoch=item.proposal.partition_epoch,
                )
            )
        return R(broker_id=self._registration.node_id, broker_epoch=own_epoch, topics=list(topics.values()))

    def _answered(self, item: Item, row: Any) -> bool:
        """False when it should be tried again."""
        partition, leader = item.partition, item.leader
        if not item.is_current:
            return True  # the metadata was faster, or another node leads
        if row is None:
            return False
        error = row.error_code
        if not error:
            # Done, and in force here with the metadata. Before it there may be a new min.insync.replicas, by which the
            # controller has judged who may lead without this node: nothing is to be committed by the old one any more.
            return True
        if error in NOT_DONE:
            logger.info("%s: the controller keeps the ISR %s: %s", partition, list(leader.isr), err_of(error).name)
            if leader.refused(item.proposal):
                partition.advanced()
        elif error in WAIT_FOR_METADATA:
            logger.info("%s: ISR %s refused: %s", partition, list(item.proposal.isr), err_of(error).name)
        else:
            return False
        return True
