"""Which partitions this node holds, which of them it leads and which it copies, kept in step with the metadata image."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from headrace.broker.fetchers import Fetchers
from headrace.broker.isr import IsrChanges
from headrace.broker.partition import Environment, Partition
from headrace.config import LogConfig
from headrace.errors import Err, KafkaError
from headrace.metadata.delta import Delta, PartitionChange
from headrace.metadata.directories import is_reserved
from headrace.metadata.image import LOST_DIRECTORY, NO_LEADER, TOPIC_CONFIG, Image
from headrace.metadata.image import Partition as Assignment
from headrace.metadata.versions import DIRECTORIES_LEVEL
from headrace.replication.throttle import Throttle
from headrace.storage.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS
from headrace.storage.files import NO_SPACE
from headrace.storage.log import Log

if TYPE_CHECKING:
    from headrace.broker.server import Broker

logger = logging.getLogger("headrace.replicas")

PORTION_SECONDS = 0.02
PORTION_CHANGES = 200
"""How much metadata is applied before others have their turn."""
EMPTIED = (
    "%s is empty, and had records up to %d: it is offline until another replica leads it. Restore the folder; or, to begin"
    " it anew without them, take its lines out of %s and %s while this node is stopped"
)
VANISHED = (
    "%s is gone, and so are the checkpoints that would tell what it had: it is offline until another replica leads it. Restore"
    " them; or, to begin it anew, take its lines out of %s and %s while this node is stopped"
)
LOST_END = (
    "%s: offsets %d to %d are lost, and no other replica has them. Reading them is an error, and new records come behind them. Stop"
    " this node and restore the files in %s from a backup; or give them up: delete records up to %d (DeleteRecords)"
)
CUT_OFF = "%s ends at %d, below its high watermark %d: with durability=replicated a power cut may take what was committed"
FULL_DISK_SECONDS = 1.0
"""How long after a replica could not be created for want of room that is tried again."""
ASSIGN_AGAIN_SECONDS = 1.0
DECISION_SECONDS = 1.0
"""How long a Produce whose leader was deposed waits for the next one to say whether its records are committed."""


class Replicas:
    """Partitions by topic name and by topic id: both maps hold the same inner dictionaries."""

    def __init__(self, broker: "Broker", environment: Environment) -> None:
        self._broker = broker
        self._environment = environment
        self.by_name: dict[str, dict[int, Partition]] = {}
        self.by_id: dict[bytes, dict[int, Partition]] = {}
        self._unassigned: dict[tuple[bytes, int], bytes] = {}
        """Directories of replicas that the metadata does not know of yet."""
        self._work: deque[Iterator[None]] = deque()
        """Deltas that are being applied, the first of them in part."""
        self._settled: list[asyncio.Future[None]] = []
        self._closed = False
        self.leader_throttle = Throttle()
        self.follower_throttle = Throttle()
        self.fetchers = Fetchers(broker)
        self.isr = IsrChanges(broker)
        environment.monotonic_ms = broker.runtime.clock.monotonic_ms
        environment.eligible = self._eligible
        environment.lag_ms_max = broker.config["replica.lag.time.max.ms"]

    def __len__(self) -> int:
        return sum(map(len, self.by_id.values()))

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self.by_id.values():
            yield from partitions.values()

    def find(self, topic: str | bytes, index: int) -> Partition:
        """The partition led here that a client means, by topic name or id; raises the error the client should see."""
        partition = self.known(topic, index)
        if partition is None:
            raise self._not_here(topic, index)
        return partition

    def known(self, topic: str | bytes, index: int) -> Partition | None:
        partitions = self.by_name.get(topic) if isinstance(topic, str) else self.by_id.get(topic)
        return partitions.get(index) if partitions is not None else None

    def leader(self, topic: str | bytes, index: int, epoch: int = -1) -> Partition:
        """Like `find`, and led here in the epoch the client knows (-1: it does not say)."""
        partition = self.find(topic, index)
        if partition.failed:
            raise KafkaError(Err.KAFKA_STORAGE_ERROR, "the log directory of this partition is offline")
        if epoch >= 0 and epoch != partition.leader_epoch:
            if epoch < partition.leader_epoch:
                raise KafkaError(Err.FENCED_LEADER_EPOCH)
            raise KafkaError(Err.UNKNOWN_LEADER_EPOCH)
        if partition.leader is None:
            raise KafkaError(Err.NOT_LEADER_OR_FOLLOWER)
        return partition

    def readable(self, topic: str | bytes, index: int, epoch: int = -1) -> Partition:
        """Like `leader`, or followed here: what is committed may be read from any replica (KIP-392)."""
        partition = self.known(topic, index)
        if (
            partition is not None
            and (partition.leader is not None or partition.copying is not None)
            and (epoch < 0 or epoch == partition.leader_epoch)
            and not partition.failed
        ):
            return partition
        return self.leader(topic, index, epoch)

    def _not_here(self, topic: str | bytes, index: int) -> KafkaError:
        image = self._broker.image
        known = image.topic_named(topic) if isinstance(topic, str) else image.topics.get(topic)
        if known is None:
            return KafkaError(Err.UNKNOWN_TOPIC_OR_PARTITION if isinstance(topic, str) else Err.UNKNOWN_TOPIC_ID)
        if index not in known.partitions:
            return KafkaError(Err.UNKNOWN_TOPIC_OR_PARTITION)
        if self._environment.node_id in known.partitions[index].replicas and not self._work:
            return KafkaError(Err.KAFKA_STORAGE_ERROR, "the log directory of this partition is offline")
        return KafkaError(Err.NOT_LEADER_OR_FOLLOWER)

    # ---- following the metadata

    def load(self, image: Image) -> None:
        """At start: open what this node has, leading nothing yet. Folders that the cluster disowns are set aside."""
        node_id, logs = self._environment.node_id, self._broker.logs
        for topic in image.topics.values():
            for index, assigned in topic.partitions.items():
                if node_id in assigned.replicas:
                    if not logs.has_heard_of((topic.name, index)):
                        directory = assigned.directory_of(node_id)
                        logs.suspect((topic.name, index), None if is_reserved(directory) else directory)
                    partition = self._replica(PartitionChange(topic.id, topic.name, index, assigned, assigned), image)
                    if partition is not None and assigned.leader != node_id:
                        self._follow(partition, assigned)
        for log in list(logs.logs.values()):
            if (log.topic not in self.by_name) or log.partition not in self.by_name[log.topic]:
                logger.warning("%s is not of this cluster's topics: set aside as %s", log.path, logs.remove(log, "-stray"))
        for topic_name, index in list(logs.missing):
            known = image.topic_named(topic_name)
            if known is None or index not in known.partitions or node_id not in known.partitions[index].replicas:
                logs.forget_missing((topic_name, index))
        self.isr.start()

    def lead_all(self, image: Image) -> None:
        """After registration: lead what the metadata says, including what it has said all along."""
        node_id = self._environment.node_id
        for partition in self:
            known = image.partition(partition.topic_id, partition.index)
            if known is not None and known.leader == node_id and partition.leader is None:
                self._lead(partition, known)

    def lead_nothing(self) -> None:
        """Others have taken over, and this node cannot hear of it: whoever asks should look for them.

        What is in sync nowhere else is led on. `lead_all` takes back what the metadata gives.
        """
        node_id = self._environment.node_id
        for partition in self:
            if partition.leader is not None and any(replica != node_id for replica in partition.leader.isr):
                partition.become_follower(NO_LEADER, partition.leader_epoch)

    def apply(self, delta: Delta, image: Image, then: Callable[[Delta, Image], None]) -> None:
        """Create, change and remove replicas as the delta says, then call `then`.

        At once, unless that would keep the loop: thousands of new folders take seconds, and a node that is silent for so
        long is taken for dead. What is left over is done in portions, and later deltas wait for their turn.
        """
        self._work.append(self._steps(delta, image, then))
        if len(self._work) == 1:
            self._go_on()

    def _go_on(self) -> None:
        until = self._broker.runtime.perf_counter() + PORTION_SECONDS
        left = PORTION_CHANGES
        try:
            while self._work:
                for _ in self._work[0]:
                    left -= 1
                    if not left or self._broker.runtime.perf_counter() > until:
                        self._broker.runtime.loop.call_soon(self._go_on)
                        return
                if self._work:  # closed meanwhile
                    self._work.popleft()
        except Exception as error:
            # The image has moved on without these replicas: nothing that this node says can be relied on.
            logger.critical("metadata could not be applied; stopping", exc_info=error)
            self._broker.fail(error)
            self._work.clear()
        settled, self._settled = self._settled, []
        for waiter in settled:
            if not waiter.done():
                waiter.set_result(None)

    async def settled(self) -> None:
        """Return when all that the metadata says by now has been done."""
        if self._work:
            waiter: asyncio.Future[None] = self._broker.runtime.loop.create_future()
            self._settled.append(waiter)
            await waiter

    def _steps(self, delta: Delta, image: Image, then: Callable[[Delta, Image], None]) -> Iterator[None]:
        for topic in delta.topics_deleted.values():
            self._delete_topic(topic.id, topic.name)
            yield
        for kind, name in delta.configs:
            if kind == TOPIC_CONFIG:
                self.reconfigure(name, image)  # first: an ISR is judged by min.insync.replicas
        node_id = self._environment.node_id
        for change in delta.partition_changes():
            yield
            if node_id in change.new.replicas:
                self._change(change, image)
            elif change.old is not None and node_id in change.old.replicas:
                removed = self.by_id.get(change.topic_id, {}).pop(change.partition, None)
                if removed is not None:
                    removed.leader_epoch = change.new.leader_epoch
                    self._remove(removed)
        if self._unassigned:
            self._broker.spawn(self._assign())
        if delta.brokers:
            self.fetchers.brokers_changed(list(delta.brokers))
            self.isr.brokers_changed(delta.brokers)
            for partition in [found for found in self if found.log.holes]:
                self._damaged(partition)  # one that can lead instead may be back
        then(delta, image)

    def close(self) -> None:
        """Copy nothing more, and tell nobody who is in sync: the broker stops."""
        self._closed = True
        self._work.clear()
        self.isr.stop()
        self.fetchers.close()

    def _eligible(self, replica: int, broker_epoch: int) -> bool:
        """May a broker stand in an ISR? Only the incarnation that is registered, and not while it is on its way out."""
        known = self._broker.image.brokers.get(replica)
        return known is not None and known.active and broker_epoch in (-1, known.epoch)

    async def assign_all(self) -> None:
        """Before this broker is given leadership: tell where every replica was found."""
        for partition in self:
            self._note_directory(partition)
        await self._assign()

    async def _assign(self) -> None:
        found, self._unassigned = self._unassigned, {}
        try:
            await self._broker.node.assign_directories(found)
        except KafkaError as error:
            # The next start tells again; a metadata log that has failed ends the broker by itself.
            logger.warning("directories of %d replicas could not be noted: %s", len(found), error)
            if error.error.retriable and not self._closed:
                self._unassigned = {**found, **self._unassigned}
                self._broker.runtime.loop.call_later(ASSIGN_AGAIN_SECONDS, self._assign_again)

    def _assign_again(self) -> None:
        if self._unassigned and not self._closed:
            self._broker.spawn(self._assign())

    def _note_directory(self, partition: Partition) -> None:
        known = self._broker.image.partition(partition.topic_id, partition.index)
        directory_id = self._broker.logs.dir_of(partition.log).directory_id
        if known is None or known.directory_of(self._environment.node_id) != directory_id:
            self._unassigned[partition.topic_id, partition.index] = directory_id

    def log_config(self, topic: str, image: Image) -> LogConfig:
        return LogConfig.from_topic(image.config(TOPIC_CONFIG, topic), self._broker.config)

    def reconfigure(self, topic: str, image: Image) -> None:
        """A topic's configuration has changed: it takes effect with the next append."""
        partitions = self.by_name.get(topic)
        if partitions:
            config = self.log_config(topic, image)
            for partition in partitions.values():
                partition.log.reconfigure(config)
                partition.configure()

    def _change(self, change: PartitionChange, image: Image) -> None:
        partition = self._replica(change, image)
        new = change.new
        if partition is None or new.leader_epoch < partition.leader_epoch:
            return  # no disk, or `lead_all` was faster: it goes by the latest image, whatever still waits to be applied
        if new.leader != self._environment.node_id:
            self._follow(partition, new)
        elif partition.leader is None or partition.leader_epoch != new.leader_epoch:
            self.fetchers.unfollow(partition)
            self._lead(partition, new)
        else:
            partition.reassign(new)
            self.isr.consider_all(partition)
            if partition.log.holes:
                self._damaged(partition)

    def _lead(self, partition: Partition, assigned: Assignment) -> None:
        if partition.failed:
            return  # its disk is gone; the controller hears of it, if it has not yet
        if self._is_unfit(partition, assigned):
            # The controller did not know. Better nobody leads than one who has lost what others may have.
            logger.critical("%s: records are lost here; not leading until another replica has led", partition)
            partition.become_follower(NO_LEADER, assigned.leader_epoch)
            self._give_up(partition)
        else:
            if partition.incomplete and not self._lead_on(partition):
                return
            partition.become_leader(assigned)

    def _lead_on(self, partition: Partition) -> bool:
        """The only replica has lost its end: it goes on behind it. False where the disk fails."""
        log = partition.log
        vouched_end = self._vouched_end(partition)
        if log.end_offset < vouched_end:
            logger.critical(LOST_END, partition, log.end_offset, vouched_end - 1, log.path, vouched_end)
            try:
                log.leave_end(vouched_end, self._broker.runtime.clock.wall_ms())
            except OSError as error:
                self._broker.dir_failed(log, error)
                return False
        else:
            logger.critical("%s: committed records are lost here, and no other replica has them", partition)
        self._broker.metrics.replicas_lost += 1
        partition.incomplete = False
        return True

    def _is_unfit(self, partition: Partition, assigned: Assignment) -> bool:
        """Whether a replica lacks records that it once had, and another one should lead."""
        if partition.incomplete and len(assigned.replicas) > 1:
            return True
        if not partition.log.holes:
            return False
        # Older controllers cannot be told, and would leave it without a leader.
        # One that has given up itself does not lead, either: the last one does, with what it has, and the others copy it.
        others = [
            replica
            for replica in (*assigned.isr, *assigned.elr)
            if replica != self._environment.node_id and self._eligible(replica, -1) and assigned.directory_of(replica) != LOST_DIRECTORY
        ]
        return bool(others) and self._broker.image.metadata_version >= DIRECTORIES_LEVEL

    def is_counted_on(self, partition: Partition) -> bool:
        """Whether it may be elected as it is, so that nothing of it may be dropped."""
        known = self._broker.image.partition(partition.topic_id, partition.index)
        node_id = self._environment.node_id
        if known is None or node_id not in (*known.isr, *known.elr):
            return False
        return node_id in known.isr or known.directory_of(node_id) != LOST_DIRECTORY

    def renounce(self, partition: Partition) -> None:
        """It is damaged and out of the ISR, but eligible: let the controller not count on it at all."""
        known = self._broker.image.partition(partition.topic_id, partition.index)
        if known is not None and self._environment.node_id not in known.isr and self._broker.image.metadata_version >= DIRECTORIES_LEVEL:
            self._give_up(partition)

    def whole_again(self, partition: Partition) -> None:
        """It has everything that is committed."""
        partition.incomplete = False
        known = self._broker.image.partition(partition.topic_id, partition.index)
        if known is not None:
            self._found_again(partition, known)
            self._assign_again()

    def _found_again(self, partition: Partition, assigned: Assignment) -> None:
        if self._environment.node_id in assigned.replicas and assigned.directory_of(self._environment.node_id) == LOST_DIRECTORY:
            self._note_directory(partition)

    def _give_up(self, partition: Partition) -> None:
        """Have the controller elect another: to it, this replica is on a disk that is lost."""
        self._unassigned[partition.topic_id, partition.index] = LOST_DIRECTORY
        self._broker.spawn(self._assign())

    def _hole_found(self, partition: Partition) -> None:
        """In whichever thread."""
        self._broker.runtime.loop.call_soon_threadsafe(self._damaged, partition)

    def _damaged(self, partition: Partition) -> None:
        """A segment was set aside. Where this node leads, in-sync followers have what is missing here."""
        self._broker.repairs.consider(partition)
        self.fetchers.holes_changed(partition)
        known = self._broker.image.partition(partition.topic_id, partition.index)
        if not self._closed and partition.leader is not None and known is not None and self._is_unfit(partition, known):
            logger.critical("%s: a segment is damaged; another in-sync replica is to lead", partition)
            self._give_up(partition)

    def _follow(self, partition: Partition, assigned: Assignment) -> None:
        if self._environment.node_id not in (*assigned.isr, *assigned.elr) and len(assigned.replicas) > 1:
            partition.incomplete = False  # nobody counts on it any more
        if assigned.leader != NO_LEADER and not partition.incomplete and not partition.log.holes:
            self._found_again(partition, assigned)
        if partition.leader_epoch == assigned.leader_epoch and partition.leader is None and partition.copying is not None:
            self.fetchers.isr_changed(partition)
            return  # the same leader
        partition.become_follower(assigned.leader, assigned.leader_epoch)
        if assigned.leader == NO_LEADER or partition.failed:
            self.fetchers.unfollow(partition)
        else:
            self.fetchers.follow(partition)
            if partition.ack_waiters:
                self._broker.runtime.loop.call_later(DECISION_SECONDS, partition.give_up_acks, assigned.leader_epoch)

    def _replica(self, change: PartitionChange, image: Image) -> Partition | None:
        """This node's copy of a partition, opened or created; None where its disk is gone."""
        partitions = self.by_id.get(change.topic_id)
        if partitions is None:
            partitions = self.by_id[change.topic_id] = self.by_name[change.topic_name] = {}
        partition = partitions.get(change.partition)
        if partition is None:
            lost = self._was_lost(change)
            log = self._open(change, image, lost)
            if log is not None:
                partition = Partition(change.topic_name, change.topic_id, change.partition, log, self._environment)
                saved = self._saved_watermark(partition)
                partition.restore(saved)
                partition.incomplete = log.end_offset == 0 if lost else log.end_offset < self._vouched_end(partition)
                if log.end_offset < saved and not partition.incomplete:
                    logger.warning(CUT_OFF, partition, log.end_offset, saved)
                log.on_hole = partial(self._hole_found, partition)
                partitions[change.partition] = partition
                self._broker.repairs.consider(partition)
                self._broker.room.admit(partition)
                if self._is_new(change):
                    self._note_directory(partition)
        return partition

    def _is_new(self, change: PartitionChange) -> bool:
        """Whether this node had no replica before: so there is nothing of it on any disk."""
        return change.old is None or self._environment.node_id not in change.old.replicas

    def _open(self, change: PartitionChange, image: Image, lost: bool) -> Log | None:
        logs = self._broker.logs
        topic, index = change.topic_name, change.partition
        log = logs.get(topic, index)
        if log is not None and log.topic_id is None:
            logs.adopt_topic_id(log, change.topic_id)
        elif log is not None and log.topic_id != change.topic_id:
            # The folder of a topic of the same name that was deleted while this node was away.
            logger.warning("%s belongs to another topic id: set aside as %s", log.path, logs.remove(log, "-stray"))
            log = None
        if log is not None:
            log.reconfigure(self.log_config(topic, image))
            return log
        directory = change.new.directory_of(self._environment.node_id)
        known = {log_dir.directory_id for log_dir in logs.live_dirs()}
        led_elsewhere = change.new.leader not in (NO_LEADER, self._environment.node_id)
        missing = logs.missing.get((topic, index))
        begins_anew = led_elsewhere and len(known) == len(logs.dirs)
        # Nobody else can lead it, ever, and whether it had any records nobody can tell: `_lead` says so.
        begins_anew = begins_anew or (missing is not None and not missing.is_known and len(change.new.replicas) == 1)
        if (topic, index) in logs.offline or (lost and not begins_anew):
            # Its records are on a disk that is gone: an empty log in its place would look like the truth.
            if missing is None:
                logger.error("%s-%d is offline: %s", topic, index, logs.offline.get((topic, index), "its log directory is not there"))
                if directory in known and self._environment.node_id in (*change.new.isr, *change.new.elr, *change.new.last_known_elr):
                    # The directory is there, and only what is in it cannot be used: nobody would know that others have to lead.
                    self._unassigned[change.topic_id, index] = LOST_DIRECTORY
            else:
                had = (missing.vouched_end,) if missing.is_known else ()
                logger.critical(EMPTIED if had else VANISHED, missing.folder, *had, RECOVERY_POINTS, HIGH_WATERMARKS)
                self._broker.metrics.replicas_lost += 1
                self._unassigned[change.topic_id, index] = LOST_DIRECTORY
            return None
        try:
            log = logs.create(
                topic, index, change.topic_id, self._broker.runtime.clock.wall_ms(),
                directory_id=directory if directory in known else None,
            )  # fmt: skip
            self._broker.maintenance.checkpoint_soon()
            return log
        except OSError as error:
            logger.error("cannot create %s-%d: %s", topic, index, error)
            if error.errno in NO_SPACE:
                self._broker.runtime.loop.call_later(FULL_DISK_SECONDS, self._create_again, change)
            return None

    def _create_again(self, change: PartitionChange) -> None:
        """There was no room for a replica; the metadata need not speak of it again before there is."""
        image = self._broker.image
        known = image.partition(change.topic_id, change.partition)
        is_here = change.partition in self.by_id.get(change.topic_id, {})
        if self._closed or is_here or known is None or self._environment.node_id not in known.replicas:
            return
        self._change(change._replace(new=known), image)
        if self._unassigned:
            self._broker.spawn(self._assign())
        self._broker.groups.refresh()

    def _was_lost(self, change: PartitionChange) -> bool:
        """Whether a replica that is not here is in a log dir that is not there now, or was in one that was exchanged.

        If all dirs are there, it was exchanged or emptied: then a follower may begin anew, as its leader has everything;
        but it must not lead until it has, too.
        """
        if self._is_new(change):
            return False
        logs = self._broker.logs
        if (change.topic_name, change.partition) in logs.missing:
            return self._environment.node_id in (*change.new.isr, *change.new.elr, *change.new.last_known_elr)
        directory = change.new.directory_of(self._environment.node_id)
        if is_reserved(directory):
            return any(log_dir.failed is not None for log_dir in logs.dirs)
        return all(log_dir.directory_id != directory for log_dir in logs.live_dirs())

    def _saved_watermark(self, partition: Partition) -> int:
        """The high watermark of the last run."""
        log_dir = self._broker.logs.dir_of(partition.log)
        return log_dir.high_watermarks.get((partition.topic, partition.index), partition.log.log_start_offset)

    def _vouched_end(self, partition: Partition) -> int:
        """The last run had all below it on its disk: by a sync, or since records only count with one."""
        saved = self._saved_watermark(partition) if self._environment.durable_acks else 0
        return max(saved, partition.log.recovery.synced_end)

    def _delete_topic(self, topic_id: bytes, name: str) -> None:
        partitions = self.by_id.pop(topic_id, None)
        if self.by_name.get(name) is partitions:
            self.by_name.pop(name, None)
        for partition in (partitions or {}).values():
            self._remove(partition)

    def _remove(self, partition: Partition) -> None:
        """The topic is gone, or its replica here was moved to another broker: so are its files, in a moment."""
        partition.leader_id = NO_LEADER
        self.fetchers.unfollow(partition)
        partition.stop()
        if partition.failed:
            return
        self._broker.maintenance.cleaner.forget(partition)
        # It leads back to the partition: a circle, which only the garbage collector would find, long after.
        partition.log.on_hole = None
        try:
            folder = self._broker.logs.remove(partition.log)
        except OSError as error:
            # The topic is gone all the same; what is left of it is set aside by the next start.
            logger.error("%s cannot be removed: %s", partition.log.path, error)
            return
        self._broker.maintenance.remove_folder_later(folder, partition.log.config.file_delete_delay_ms)

    def fail(self, path: str) -> None:
        """A log directory is gone: its partitions stop, the rest goes on."""
        for partition in self:
            if partition.log.path.startswith(path + "/"):
                self._fail(partition)

    def fail_log(self, log: Log) -> None:
        """One partition cannot be used: the others of its log directory go on, and another replica of it may lead."""
        for partition in self:
            if partition.log is log and not partition.failed:
                self._fail(partition)
                self._give_up(partition)

    def _fail(self, partition: Partition) -> None:
        partition.failed = True
        self.fetchers.unfollow(partition)
        partition.stop()
