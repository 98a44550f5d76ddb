"""Keeps the replicas on this node in step with the metadata: which there are, which are led here, which are copied."""

import logging
from collections.abc import Callable, Iterator
from functools import partial

from headrace.broker.metadata_cache import MetadataCache
from headrace.broker.metrics import Metrics
from headrace.broker.replicas.assignments import AssignmentsManager
from headrace.broker.replicas.deltas import DeltaQueue
from headrace.broker.replicas.disk_space import DiskSpace
from headrace.broker.replicas.environment import Environment
from headrace.broker.replicas.fetchers import Fetchers
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.replicas.isr import IsrChanges
from headrace.broker.replicas.log_dir_failures import LogDirFailures
from headrace.broker.replicas.partition import Partition
from headrace.broker.replicas.repair import Repairs
from headrace.broker.replicas.replica_copy import holes_changed, isr_changed
from headrace.broker.replicas.replica_logs import NoSpaceForLog, ReplicaLogs
from headrace.broker.replicas.standing import Standing
from headrace.broker.runtime import Runtime
from headrace.metadata.delta import Delta, PartitionChange
from headrace.metadata.image import NO_LEADER, TOPIC_CONFIG, Image, Partition as Assignment
from headrace.storage.log import Log
from headrace.storage.manager import LogDir

logger = logging.getLogger("headrace.replicas")

LOST_END = (
    "%s: offsets %d to %d are lost, and no other replica has them. Reading them is an error, and new records come"
    " behind them. Stop this node and restore the files in %s from a backup; or give them up: delete records up to %d"
    " (DeleteRecords)"
)
CUT_OFF = (
    "%s ends at %d, below its high watermark %d: with durability=replicated a power cut may take what was committed"
)
FULL_DISK_SECONDS = 1.0
"""How long after a replica could not be created for want of room that is tried again."""
DECISION_SECONDS = 5.0
"""How long a Produce whose leader was deposed waits for the next one to say whether its records are committed. Two busy
cores make that last longer than a second, and who is refused too soon sends records again that are there."""


class ReplicaManager:
    """Creates, leads, follows and removes; `Replicas` is where others find the result."""

    def __init__(
        self,
        runtime: Runtime,
        metadata: MetadataCache,
        metrics: Metrics,
        environment: Environment,
        replicas: Replicas,
        deltas: DeltaQueue,
        replica_logs: ReplicaLogs,
        assignments: AssignmentsManager,
        standing: Standing,
        disk_space: DiskSpace,
        failures: LogDirFailures,
        repairs: Repairs,
        isr: IsrChanges,
        fetchers: Fetchers,
    ) -> None:
        self._runtime = runtime
        self._metadata = metadata
        self._metrics = metrics
        self._environment = environment
        self._node_id = environment.node_id
        self._replicas = replicas
        self._deltas = deltas
        self._logs = replica_logs
        self._assignments = assignments
        self._standing = standing
        self._disk_space = disk_space
        self._failures = failures
        self._repairs = repairs
        self._isr = isr
        self._fetchers = fetchers
        self._listeners: list[Callable[[], None]] = []
        self._leading: list[Callable[[Partition], None]] = []
        self._closed = False
        failures.listen(self._dir_failed, self._log_failed)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` when other partitions are led here than before, and no delta says so."""
        self._listeners.append(listener)

    def on_leading(self, begun: Callable[[Partition], None]) -> None:
        """Call `begun` with each partition that this node begins to lead."""
        self._leading.append(begun)

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    # ---- following the metadata

    def load(self, image: Image) -> None:
        """At start: open what this node has, leading nothing yet. Folders that the cluster disowns are set aside."""
        node_id = self._node_id
        for topic in image.topics.values():
            for index, assigned in topic.partitions.items():
                if node_id in assigned.replicas:
                    self._logs.note_expected(topic.name, index, assigned.directory_of(node_id))
                    partition = self._replica(PartitionChange(topic.id, topic.name, index, assigned, assigned), image)
                    if partition is not None and assigned.leader != node_id:
                        self._follow(partition, assigned)
        self._logs.set_strays_aside({(partition.topic, partition.index) for partition in self._replicas})
        self._logs.forget_missing(image)
        self._isr.start()

    def lead_all(self, image: Image) -> None:
        """After registration: lead what the metadata says, including what it has said all along."""
        node_id = self._node_id
        for partition in self._replicas:
            known = image.partition(partition.topic_id, partition.index)
            if known is not None and known.leader == node_id and partition.leader is None:
                self._lead(partition, known)
        self._tell()

    def lead_nothing(self) -> None:
        """Others have taken over, and this node cannot hear of it: whoever asks should look for them.

        What is in sync nowhere else is led on. `lead_all` takes back what the metadata gives.
        """
        node_id = self._node_id
        for partition in self._replicas:
            if partition.leader is not None and any(replica != node_id for replica in partition.leader.isr):
                partition.become_follower(NO_LEADER, partition.leader_epoch)
        self._tell()

    def apply(self, delta: Delta, image: Image, then: Callable[[Delta, Image], None]) -> None:
        """Create, change and remove replicas as the delta says, then call `then`: at once or, if that takes long, in
        portions."""
        self._deltas.add(self._steps(delta, image, then))

    def _steps(self, delta: Delta, image: Image, then: Callable[[Delta, Image], None]) -> Iterator[None]:
        for topic in delta.topics_deleted.values():
            for partition in self._replicas.remove_topic(topic.id, topic.name):
                self._remove(partition)
                yield
        for kind, name in delta.configs:
            if kind == TOPIC_CONFIG:
                self.reconfigure(name, image)  # first: an ISR is judged by min.insync.replicas
        node_id = self._node_id
        for change in delta.partition_changes():
            yield
            if node_id in change.new.replicas:
                self._change(change, image)
            elif change.old is not None and node_id in change.old.replicas:
                removed = self._replicas.by_id.get(change.topic_id, {}).pop(change.partition, None)
                if removed is not None:
                    removed.leader_epoch = change.new.leader_epoch
                    self._remove(removed)
        self._assignments.send()
        if delta.brokers:
            self._fetchers.brokers_changed(list(delta.brokers))
            self._isr.brokers_changed(delta.brokers)
            for partition in [found for found in self._replicas if found.log.holes]:
                self._damaged(partition)  # one that can lead instead may be back
        then(delta, image)

    def reconfigure(self, topic: str, image: Image) -> None:
        """A topic's configuration has changed: it takes effect with the next append."""
        partitions = self._replicas.by_name.get(topic)
        if partitions:
            config = self._logs.config_of(topic, image)
            for partition in partitions.values():
                partition.log.reconfigure(config)
                partition.configure()

    def reconfigure_all(self, image: Image) -> None:
        """The broker's own configuration has changed, and with it what topics leave to it."""
        for topic in list(self._replicas.by_name):
            self.reconfigure(topic, image)

    def close(self) -> None:
        """Copy nothing more, and tell nobody who is in sync: the broker stops."""
        self._closed = True
        self._deltas.clear()
        self._assignments.close()
        self._isr.stop()
        self._fetchers.close()
        self._repairs.stop()

    # ---- one replica

    def _change(self, change: PartitionChange, image: Image) -> None:
        partition = self._replica(change, image)
        new = change.new
        if partition is None or new.leader_epoch < partition.leader_epoch:
            return  # no disk, or `lead_all` was faster: it goes by the latest image, whatever still waits to be applied
        if new.leader != self._node_id:
            self._follow(partition, new)
        elif partition.leader is None or partition.leader_epoch != new.leader_epoch:
            self._fetchers.unfollow(partition)
            self._lead(partition, new)
        else:
            partition.reassign(new)
            self._isr.consider_all(partition)
            if partition.log.holes:
                self._damaged(partition)

    def _replica(self, change: PartitionChange, image: Image) -> Partition | None:
        """This node's copy of a partition, opened or created; None where its disk is gone."""
        partitions = self._replicas.of_topic(change.topic_id, change.topic_name)
        partition = partitions.get(change.partition)
        if partition is not None:
            return partition
        lost = self._logs.was_lost(change)
        try:
            log = self._logs.open(change, image, lost)
        except NoSpaceForLog:
            self._runtime.loop.call_later(FULL_DISK_SECONDS, self._create_again, change)
            return None
        if log is None:
            return None
        partition = Partition(change.topic_name, change.topic_id, change.partition, log, self._environment)
        saved = self._logs.saved_watermark(partition)
        partition.restore(saved)
        partition.incomplete = log.end_offset == 0 if lost else log.end_offset < self._logs.vouched_end(partition)
        if log.end_offset < saved and not partition.incomplete:
            logger.warning(CUT_OFF, partition, log.end_offset, saved)
        log.on_hole = partial(self._hole_found, partition)
        partitions[change.partition] = partition
        self._repairs.consider(partition)
        self._disk_space.admit(partition)
        if self._logs.is_new(change):
            self._assignments.found(partition)
        return partition

    def _create_again(self, change: PartitionChange) -> None:
        """There was no room for a replica; the metadata need not speak of it again before there is."""
        image = self._metadata.image
        known = image.partition(change.topic_id, change.partition)
        is_here = change.partition in self._replicas.by_id.get(change.topic_id, {})
        if self._closed or is_here or known is None or self._node_id not in known.replicas:
            return
        self._change(change._replace(new=known), image)
        self._assignments.send()
        self._tell()

    def _lead(self, partition: Partition, assigned: Assignment) -> None:
        if partition.failed:
            return  # its disk is gone; the controller hears of it, if it has not yet
        if self._standing.is_unfit(partition, assigned):
            # The controller did not know. Better nobody leads than one who has lost what others may have.
            logger.critical("%s: records are lost here; not leading until another replica has led", partition)
            partition.become_follower(NO_LEADER, assigned.leader_epoch)
            self._standing.give_up(partition)
        else:
            if partition.incomplete and not self._lead_on(partition):
                return
            begins = partition.leader is None
            partition.become_leader(assigned)
            if begins:
                for begun in self._leading:
                    begun(partition)

    def _lead_on(self, partition: Partition) -> bool:
        """The only replica has lost its end: it goes on behind it. False where the disk fails."""
        log = partition.log
        vouched_end = self._logs.vouched_end(partition)
        if log.end_offset < vouched_end:
            logger.critical(LOST_END, partition, log.end_offset, vouched_end - 1, log.path, vouched_end)
            try:
                log.leave_end(vouched_end, self._runtime.clock.wall_ms())
            except OSError as error:
                self._failures.failed(log, error)
                return False
        else:
            logger.critical("%s: committed records are lost here, and no other replica has them", partition)
        self._metrics.replicas_lost += 1
        partition.incomplete = False
        return True

    def _follow(self, partition: Partition, assigned: Assignment) -> None:
        partition.joining = self._node_id in assigned.adding
        if self._node_id not in (*assigned.isr, *assigned.elr) and len(assigned.replicas) > 1:
            partition.incomplete = False  # nobody counts on it any more
        if assigned.leader != NO_LEADER and not partition.incomplete and not partition.log.holes:
            self._standing.take_back(partition, assigned)
        if (
            partition.leader_epoch == assigned.leader_epoch
            and partition.leader is None
            and partition.copying is not None
        ):
            isr_changed(partition)
            return  # the same leader
        partition.become_follower(assigned.leader, assigned.leader_epoch)
        if assigned.leader == NO_LEADER or partition.failed:
            self._fetchers.unfollow(partition)
        else:
            self._fetchers.follow(partition)
            if partition.ack_waiters:
                self._runtime.loop.call_later(DECISION_SECONDS, partition.give_up_acks, assigned.leader_epoch)

    def _hole_found(self, partition: Partition) -> None:
        """In whichever thread."""
        self._runtime.loop.call_soon_threadsafe(self._damaged, partition)

    def _damaged(self, partition: Partition) -> None:
        """A segment was set aside. Where this node leads, in-sync followers have what is missing here."""
        self._repairs.consider(partition)
        holes_changed(partition)
        if self._closed or partition.leader is None:
            return
        known = self._metadata.image.partition(partition.topic_id, partition.index)
        if known is not None and self._standing.is_unfit(partition, known):
            logger.critical("%s: a segment is damaged; another in-sync replica is to lead", partition)
            self._standing.give_up(partition)

    def _remove(self, partition: Partition) -> None:
        """The topic is gone, or its replica here was moved to another broker: so are its files, in a moment."""
        partition.leader_id = NO_LEADER
        self._fetchers.unfollow(partition)
        partition.stop()
        if not partition.failed:
            self._logs.remove(partition)

    # ---- what fails

    def _dir_failed(self, log_dir: LogDir) -> None:
        """A log directory is gone: its partitions stop, the rest goes on."""
        for partition in self._replicas:
            if partition.log.path.startswith(log_dir.path + "/"):
                self._fail(partition)

    def _log_failed(self, log: Log) -> None:
        """One partition cannot be used: the others of its log directory go on, and another replica of it may lead."""
        for partition in self._replicas:
            if partition.log is log and not partition.failed:
                self._fail(partition)
                self._standing.give_up(partition)

    def _fail(self, partition: Partition) -> None:
        partition.failed = True
        self._fetchers.unfollow(partition)
        partition.stop()
