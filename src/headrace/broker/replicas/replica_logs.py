"""The logs of this node's replicas: found, created, or missed, and removed with the replica."""

import logging

from headrace.broker.dynamic_config import DynamicBrokerConfig
from headrace.broker.metrics import Metrics
from headrace.broker.replicas.assignments import AssignmentsManager
from headrace.broker.replicas.checkpoints import Checkpoints
from headrace.broker.replicas.cleaner_manager import CleanerManager
from headrace.broker.replicas.deletions import DelayedDeletions
from headrace.broker.replicas.partition import Partition
from headrace.clock import Clock
from headrace.config import LogConfig
from headrace.metadata.delta import PartitionChange
from headrace.metadata.directories import is_reserved
from headrace.metadata.image import NO_LEADER, TOPIC_CONFIG, Image
from headrace.storage.checkpoints import HIGH_WATERMARKS, RECOVERY_POINTS
from headrace.storage.files import NO_SPACE
from headrace.storage.log import Log
from headrace.storage.manager import LogManager

logger = logging.getLogger("headrace.replicas")

EMPTIED = (
    "%s is empty, and had records up to %d: it is offline until another replica leads it. Restore the folder; or, to"
    " begin it anew without them, take its lines out of %s and %s while this node is stopped"
)
VANISHED = (
    "%s is gone, and so are the checkpoints that would tell what it had: it is offline until another replica leads it."
    " Restore them; or, to begin it anew, take its lines out of %s and %s while this node is stopped"
)


class NoSpaceForLog(Exception):
    """There is no room for a new log now; there may be later."""


class ReplicaLogs:
    """See the module."""

    def __init__(
        self,
        node_id: int,
        clock: Clock,
        config: DynamicBrokerConfig,
        logs: LogManager,
        assignments: AssignmentsManager,
        checkpoints: Checkpoints,
        cleaner: CleanerManager,
        deletions: DelayedDeletions,
        metrics: Metrics,
        durable_acks: bool,
    ) -> None:
        self._node_id = node_id
        self._clock = clock
        self._config = config
        self._logs = logs
        self._assignments = assignments
        self._checkpoints = checkpoints
        self._cleaner = cleaner
        self._deletions = deletions
        self._metrics = metrics
        self._durable_acks = durable_acks

    def config_of(self, topic: str, image: Image) -> LogConfig:
        """As the topic's configuration and the broker's have it."""
        return LogConfig.from_topic(image.config(TOPIC_CONFIG, topic), self._config.current)

    # ---- at start

    def note_expected(self, topic: str, index: int, directory: bytes) -> None:
        """The metadata gives this node a replica: if no disk has ever heard of it, something may be missing."""
        if not self._logs.has_heard_of((topic, index)):
            self._logs.suspect((topic, index), None if is_reserved(directory) else directory)

    def set_strays_aside(self, hosted: set[tuple[str, int]]) -> None:
        """Folders that the cluster disowns are renamed, and what is missing of theirs is not missed."""
        logs = self._logs
        for log in list(logs.logs.values()):
            if (log.topic, log.partition) not in hosted:
                logger.warning(
                    "%s is not of this cluster's topics: set aside as %s", log.path, logs.remove(log, "-stray")
                )

    def forget_missing(self, image: Image) -> None:
        """What the metadata does not give to this node is not missed."""
        for topic, index in list(self._logs.missing):
            known = image.topic_named(topic)
            if known is None or index not in known.partitions or self._node_id not in known.partitions[index].replicas:
                self._logs.forget_missing((topic, index))

    # ---- one replica

    def is_new(self, change: PartitionChange) -> bool:
        """Whether this node had no replica before: so there is nothing of it on any disk."""
        return change.old is None or self._node_id not in change.old.replicas

    def was_lost(self, change: PartitionChange) -> bool:
        """Whether a replica that is not here is in a log dir that is not there now, or was in one that was exchanged.

        If all dirs are there, it was exchanged or emptied: then a follower may begin anew, as its leader has
        everything; but it must not lead until it has, too.
        """
        if self.is_new(change):
            return False
        logs = self._logs
        if (change.topic_name, change.partition) in logs.missing:
            return self._node_id in (*change.new.isr, *change.new.elr, *change.new.last_known_elr)
        directory = change.new.directory_of(self._node_id)
        if is_reserved(directory):
            return any(log_dir.failed is not None for log_dir in logs.dirs)
        return all(log_dir.directory_id != directory for log_dir in logs.live_dirs())

    def open(self, change: PartitionChange, image: Image, lost: bool) -> Log | None:
        """The log of a replica, found or created; None where it cannot be used. Raises NoSpaceForLog."""
        found = self._found(change, image)
        if found is not None:
            return found
        logs, node_id = self._logs, self._node_id
        topic, index = change.topic_name, change.partition
        directory = change.new.directory_of(node_id)
        known = {log_dir.directory_id for log_dir in logs.live_dirs()}
        if (topic, index) in logs.offline or (lost and not self._begins_anew(change, len(known))):
            # Its records are on a disk that is gone: an empty log in its place would look like the truth.
            self._tell_missing(change, is_dir_known=directory in known)
            return None
        try:
            log = logs.create(
                topic, index, change.topic_id, self._clock.wall_ms(),
                directory_id=directory if directory in known else None,
            )  # fmt: skip
            self._checkpoints.soon()
            return log
        except OSError as error:
            logger.error("cannot create %s-%d: %s", topic, index, error)
            if error.errno in NO_SPACE:
                raise NoSpaceForLog from error
            return None

    def _found(self, change: PartitionChange, image: Image) -> Log | None:
        logs, topic = self._logs, change.topic_name
        log = logs.get(topic, change.partition)
        if log is None:
            return None
        if log.topic_id is None:
            logs.adopt_topic_id(log, change.topic_id)
        elif log.topic_id != change.topic_id:
            # The folder of a topic of the same name that was deleted while this node was away.
            logger.warning("%s belongs to another topic id: set aside as %s", log.path, logs.remove(log, "-stray"))
            return None
        log.reconfigure(self.config_of(topic, image))
        return log

    def _begins_anew(self, change: PartitionChange, live_dirs: int) -> bool:
        """Whether a replica that was lost may be begun with an empty log."""
        led_elsewhere = change.new.leader not in (NO_LEADER, self._node_id)
        if led_elsewhere and live_dirs == len(self._logs.dirs):
            return True
        # Nobody else can lead it, ever, and whether it had any records nobody can tell: who leads it says so.
        missing = self._logs.missing.get((change.topic_name, change.partition))
        return missing is not None and not missing.is_known and len(change.new.replicas) == 1

    def _tell_missing(self, change: PartitionChange, *, is_dir_known: bool) -> None:
        topic, index = change.topic_name, change.partition
        missing = self._logs.missing.get((topic, index))
        if missing is not None:
            had = (missing.vouched_end,) if missing.is_known else ()
            logger.critical(EMPTIED if had else VANISHED, missing.folder, *had, RECOVERY_POINTS, HIGH_WATERMARKS)
            self._metrics.replicas_lost += 1
            self._assignments.lost(change.topic_id, index)
            return
        reason = self._logs.offline.get((topic, index), "its log directory is not there")
        logger.error("%s-%d is offline: %s", topic, index, reason)
        new = change.new
        if is_dir_known and self._node_id in (*new.isr, *new.elr, *new.last_known_elr):
            # The directory is there, and only what is in it cannot be used: nobody would know that others have to
            # lead.
            self._assignments.lost(change.topic_id, index)

    def saved_watermark(self, partition: Partition) -> int:
        """The high watermark of the last run."""
        log_dir = self._logs.dir_of(partition.log)
        return log_dir.high_watermarks.get((partition.topic, partition.index), partition.log.log_start_offset)

    def vouched_end(self, partition: Partition) -> int:
        """The last run had all below it on its disk: by a sync, or since records only count with one."""
        saved = self.saved_watermark(partition) if self._durable_acks else 0
        return max(saved, partition.log.recovery.synced_end)

    def remove(self, partition: Partition) -> None:
        """The replica is gone, and so are its files, in a moment."""
        self._cleaner.forget(partition)
        # It leads back to the partition: a circle, which only the garbage collector would find, long after.
        partition.log.on_hole = None
        try:
            folder = self._logs.remove(partition.log)
        except OSError as error:
            # The topic is gone all the same; what is left of it is set aside by the next start.
            logger.error("%s cannot be removed: %s", partition.log.path, error)
            return
        self._deletions.folder(folder, partition.log.config.file_delete_delay_ms)
