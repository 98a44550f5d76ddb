"""All logs of one broker, over one or more log dirs: identity, loading, creation, deletion, checkpoints.

A log dir that fails takes its partitions offline and nothing else. Folders that are not known to be ours are reported
and left alone.
"""

import errno
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from random import SystemRandom

from headrace.config import LogConfig
from headrace.replication.producers import ProducerStates
from headrace.storage.checking import OldFormat
from headrace.storage.checkpointing import CheckpointFiles
from headrace.storage.checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOCK,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    VOUCHED,
    CorruptCheckpoint,
    MetaProperties,
    TopicPartition,
    decode_clean_shutdown,
    decode_offsets,
    encode_clean_shutdown,
    encode_uuid,
    new_uuid,
    written_by_headrace,
)
from headrace.storage.files import Disk, make_durable_dirs
from headrace.storage.log import Log
from headrace.storage.log_dir import CheckpointPlan, LogDir, LogDirError, ToLoad, unknown
from headrace.storage.not_files import set_aside_in_log_dir, set_aside_in_partition
from headrace.storage.ownership import stranger
from headrace.storage.pool import OPEN_FILES_DEFAULT, FilePool
from headrace.storage.segment import CorruptSegment
from headrace.storage.snapshots import PRODUCER_EXPIRATION_MS

__all__ = ["CheckpointPlan", "LogDir", "LogDirError", "LogManager"]

METADATA_FOLDER = "__cluster_metadata-0"
NOT_LOGS = frozenset({METADATA_FOLDER, "remote-log-index-cache"})
STARTED_FROM = (CLEAN_SHUTDOWN, VOUCHED, RECOVERY_POINTS, HIGH_WATERMARKS, LOG_STARTS, CLEANER_OFFSETS)
FOLDER_NAME_MAX = 255
CLOSE_TOGETHER = 256
SHRINK_FROM = 1_000
"""Logs. The room that tables keep for fewer is not worth a look."""
_PARTITION_FOLDER = re.compile(r"([a-zA-Z0-9._-]{1,249})-(0|[1-9][0-9]*)")
_MOVED_FOLDER = re.compile(r"\S+-[0-9]+\.\S+-(delete|future|stray)")
_system_uuid = partial(new_uuid, SystemRandom())


def is_log_folder(name: str) -> bool:
    return name not in NOT_LOGS and _PARTITION_FOLDER.fullmatch(name) is not None


class LogManager:
    """See the module. `open` and `load` may run in a thread before anything is served; the rest is the loop's."""

    def __init__(
        self,
        disk: Disk,
        log_dirs: Iterable[str],
        *,
        node_id: int,
        cluster_id: str | None = None,
        config_of: Callable[[str], LogConfig] = lambda topic: LogConfig(),
        may_format: bool = True,
        make_uuid: Callable[[], bytes] = _system_uuid,
        open_files_max: int = OPEN_FILES_DEFAULT,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
        verify_transactions: bool = True,
        meta_version: int = 1,
    ) -> None:
        """`meta_version`: of meta.properties, 0 for a node whose metadata is in ZooKeeper."""
        self.disk = disk
        self.pool = FilePool(disk, open_files_max)
        self.dirs = [LogDir(path.rstrip("/")) for path in log_dirs]
        for log_dir in self.dirs:
            log_dir.checkpoints = CheckpointFiles(disk, log_dir.path)
        self.node_id = node_id
        self.cluster_id = cluster_id
        self.config_of = config_of
        self.may_format = may_format
        self.make_uuid = make_uuid
        self.meta_version = meta_version
        self.producer_expiration_ms = producer_expiration_ms
        self.verify_transactions = verify_transactions
        self.logs: dict[TopicPartition, Log] = {}
        self.offline: dict[TopicPartition, str] = {}
        """Partitions whose folder cannot be served, and why. Nothing is created in their place."""
        self.missing: dict[TopicPartition, ToLoad] = {}
        """Partitions that had records, as checkpoints say, and have no file any more."""
        self.lost = False
        """Whether loading found that records are missing which the last run had on its disk."""
        self.notes: list[str] = []
        """What loading found that a person should know."""
        self._dir_of: dict[Log, LogDir] = {}
        self._most = 0
        """How many logs there were at once since the tables were last made anew."""

    # -- identity

    def lock(self) -> None:
        """Keep other brokers out of every dir. A dir whose disk fails is set aside; without any, LogDirError."""
        for log_dir in self.live_dirs():
            if log_dir.lock is not None:
                continue
            try:
                make_durable_dirs(self.disk, log_dir.path)
                log_dir.lock = self.disk.lock(f"{log_dir.path}/{LOCK}")
            except OSError as error:
                self.fail_dir(log_dir, error)
                continue
            if log_dir.lock is None:
                raise LogDirError(
                    f"{log_dir.path} is in use by another broker: stop it, or choose another with --data or log.dirs"
                )
        if not self.live_dirs():
            raise LogDirError(self._why_none())

    def _why_none(self) -> str:
        if not self.dirs:
            return "log.dirs is empty"
        first, error = self.dirs[0].path, self.dirs[0].failed
        if isinstance(error, FileExistsError):
            reason = "it is a file"
        elif isinstance(error, OSError) and error.strerror:
            reason = f"{error.strerror.lower()} ({error.filename or first})"
        else:
            reason = str(error)
        return f"cannot use {first} as data folder: {reason}; choose another with --data or log.dirs"

    def open(self) -> None:
        """Lock every dir and settle who owns it."""
        self.lock()
        found: dict[LogDir, MetaProperties | None] = {}
        for log_dir in self.live_dirs():
            try:
                found[log_dir] = self._read_meta(log_dir)
            except OSError as error:
                self.fail_dir(log_dir, error)
        self._settle_cluster_id(found)
        for log_dir, meta in found.items():
            self._settle_identity(log_dir, meta)
        ids = [log_dir.directory_id for log_dir in found]
        if len(set(ids)) != len(ids):
            raise LogDirError("two log.dirs have the same directory.id: one is a copy of the other, remove it")

    def _read_meta(self, log_dir: LogDir) -> MetaProperties | None:
        path = f"{log_dir.path}/{META_PROPERTIES}"
        try:
            return MetaProperties.decode(self.disk.read_bytes(path))
        except FileNotFoundError:
            return None
        except CorruptCheckpoint as error:
            raise LogDirError(f"{path} is unreadable ({error}): restore it, or empty the folder") from None

    def _settle_cluster_id(self, found: Mapping[LogDir, MetaProperties | None]) -> None:
        for log_dir, meta in found.items():
            if meta is None:
                continue
            if meta.node_id is not None and meta.node_id != self.node_id:
                raise LogDirError(
                    f"{log_dir.path} belongs to node {meta.node_id}, this is node {self.node_id}: "
                    f"set node.id={meta.node_id} or choose another log.dirs"
                )
            if meta.cluster_id is None:
                continue
            if self.cluster_id is None:
                self.cluster_id = meta.cluster_id
            elif self.cluster_id != meta.cluster_id:
                raise LogDirError(
                    f"{log_dir.path} belongs to cluster {meta.cluster_id}, this node to {self.cluster_id}: "
                    "choose another log.dirs, or empty the folder if its data is not needed"
                )
        if self.cluster_id is None:
            self.cluster_id = encode_uuid(self.make_uuid())

    def _settle_identity(self, log_dir: LogDir, meta: MetaProperties | None) -> None:
        if meta is None and not self.may_format:
            raise LogDirError(f"{log_dir.path} is not formatted: run `headrace format` for this node first")
        directory_id = meta.directory_id if meta is not None else None
        log_dir.directory_id = directory_id or self.make_uuid()
        wanted = MetaProperties(self.cluster_id, self.node_id, log_dir.directory_id, self.meta_version)
        if meta != wanted:
            self.disk.replace_bytes(f"{log_dir.path}/{META_PROPERTIES}", wanted.encode())

    # -- loading

    def load(self, now_ms: int) -> Iterator[tuple[int, int, str]]:
        """Open every log, yielding (done, total, what was opened) so that the caller can show progress."""
        work: list[ToLoad] = []
        for log_dir in self.live_dirs():
            try:
                work.extend(self._survey(log_dir))
            except OSError as error:
                self.fail_dir(log_dir, error)
        seen: set[TopicPartition] = set()
        for item in work:
            if item.partition in seen:
                raise LogDirError(f"{item.folder} is in another log dir as well: remove the folder that is out of date")
            seen.add(item.partition)
        self._find_missing(seen)
        for done, item in enumerate(work):
            yield done, len(work), item.folder
            if item.log_dir.failed is None:
                self._load_log(item, now_ms)
        yield len(work), len(work), ""

    def _find_missing(self, found: set[TopicPartition]) -> None:
        """Checkpoints of logs whose folder is in no dir: deleted a moment before a crash, or gone by another hand."""
        for log_dir in self.live_dirs():
            for partition, item in log_dir.checkpointed.items():
                if partition not in found:
                    self.missing[partition] = item if item.vouched_end > item.log_start else unknown(item)

    def _survey(self, log_dir: LogDir) -> "list[ToLoad]":
        """What there is to load, and whether the last run ended in order. Its mark is gone from here on."""
        self.notes += set_aside_in_log_dir(self.disk, log_dir.path, STARTED_FROM)
        marker = f"{log_dir.path}/{CLEAN_SHUTDOWN}"
        log_dir.clean = self.disk.exists(marker)
        if log_dir.clean:
            log_dir.broker_epoch = decode_clean_shutdown(self.disk.read_bytes(marker))
            self.disk.remove(marker)
            # Durably: a mark that came back after a crash would vouch for a run that ended otherwise.
            self.disk.sync_dir(log_dir.path)
        elif self.disk.exists(f"{log_dir.path}/{VOUCHED}"):
            log_dir.broker_epoch = decode_clean_shutdown(self.disk.read_bytes(f"{log_dir.path}/{VOUCHED}"))
        recovery_points = self._read_offsets(log_dir, RECOVERY_POINTS)
        log_starts = self._read_offsets(log_dir, LOG_STARTS)
        log_dir.high_watermarks = self._read_offsets(log_dir, HIGH_WATERMARKS)
        log_dir.cleaned = self._read_offsets(log_dir, CLEANER_OFFSETS)
        log_dir.manifests_trusted = written_by_headrace(
            *map(partial(self._read_file, log_dir), (RECOVERY_POINTS, HIGH_WATERMARKS))
        )
        log_dir.checkpoints.loaded(recovery_points, log_starts, log_dir.high_watermarks)

        def item(partition: TopicPartition) -> ToLoad:
            folder = f"{log_dir.path}/{partition[0]}-{partition[1]}"
            recovery_point, log_start = recovery_points.get(partition, 0), log_starts.get(partition, 0)
            return ToLoad(log_dir, partition, folder, recovery_point, log_start)

        log_dir.checkpointed = {key: item(key) for key in {**recovery_points, **log_dir.high_watermarks}}
        work = []
        for name in self.disk.list(log_dir.path):
            folder = f"{log_dir.path}/{name}"
            if name in NOT_LOGS or not self.disk.is_dir(folder):
                continue
            match = _PARTITION_FOLDER.fullmatch(name)
            if match is None:
                self._note_folder(folder, name)
                continue
            work.append(item((match[1], int(match[2]))))
        return work

    def whole_since(self) -> int:
        """The broker epoch of the last run, if all that it had promised is still here; else -1."""
        epochs = {log_dir.broker_epoch for log_dir in self.live_dirs()}
        doubted = self.lost or self.missing or self.offline or any(log_dir.forgetful for log_dir in self.live_dirs())
        return -1 if doubted or len(epochs) != 1 else epochs.pop()

    def vouch(self, broker_epoch: int) -> None:
        """Note that this run loses nothing, however it ends. A dir that cannot be written will show soon enough."""
        for log_dir in self.live_dirs():
            with suppress(OSError):
                self.disk.replace_bytes(f"{log_dir.path}/{VOUCHED}", encode_clean_shutdown(broker_epoch))

    def _note_folder(self, folder: str, name: str) -> None:
        moved = _MOVED_FOLDER.fullmatch(name)
        if moved is not None and moved[1] == "delete":
            self.disk.remove_tree(folder)
        elif moved is not None:
            self.notes.append(f"{folder}: left alone ({moved[1]})")
        else:
            self.notes.append(f"{folder}: not a partition of this broker, left alone")

    def _read_file(self, log_dir: LogDir, name: str) -> bytes:
        path = f"{log_dir.path}/{name}"
        return self.disk.read_bytes(path) if self.disk.exists(path) else b""

    def _read_offsets(self, log_dir: LogDir, name: str) -> dict[TopicPartition, int]:
        try:
            return decode_offsets(self.disk.read_bytes(f"{log_dir.path}/{name}"))
        except FileNotFoundError:
            pass
        except CorruptCheckpoint as error:
            if name == CLEANER_OFFSETS:
                return {}  # Apache Kafka leaves it empty until it has cleaned something
            # Safe to do without: recovery then looks at everything.
            self.notes.append(f"{log_dir.path}/{name} is unreadable ({error}), going on without it")
            log_dir.clean = log_dir.clean and name != RECOVERY_POINTS
        log_dir.forgetful = log_dir.forgetful or name not in (LOG_STARTS, CLEANER_OFFSETS)
        return {}

    def _load_log(self, item: "ToLoad", now_ms: int) -> None:
        partition = topic, number = item.partition
        try:
            self.notes += set_aside_in_partition(self.disk, item.folder)
            may_have_had = item.vouched_end > item.log_start or item.log_dir.forgetful
            if (owner := stranger(self.disk, item.folder)) is not None:
                self._set_stranger_aside(item, owner)
                # There are files, whoever they belong to: a broker must not start an empty log in their place.
                self.missing[partition] = (
                    item if item.vouched_end > item.log_start else unknown(item)._replace(is_known=True)
                )
                return
            if may_have_had and not (
                self.disk.exists(item.folder) and any(".log" in name for name in self.disk.list(item.folder))
            ):
                self.missing[partition] = item if item.vouched_end > item.log_start else unknown(item)
                return
            log = Log.open(
                self.disk,
                item.folder,
                self.config_of(topic),
                clean=item.log_dir.clean,
                recovery_point=item.recovery_point,
                log_start=item.log_start,
                committed=item.log_dir.high_watermarks.get(item.partition),
                cleaned=item.log_dir.cleaned.get(item.partition, 0),
                manifest_trusted=item.log_dir.manifests_trusted,
                now_ms=now_ms,
                pool=self.pool,
                producers=ProducerStates(verify_transactions=self.verify_transactions),
                producer_expiration_ms=self.producer_expiration_ms,
            )
        except (OSError, OldFormat, CorruptSegment) as error:
            self.offline[partition] = str(error)
            item.log_dir.unopened[partition] = item
            self.notes.append(f"{topic}-{number} is offline: {error}")
            return
        self.notes.extend(log.recovery.lines)
        vouched_end = max(item.vouched_end, log.recovery.synced_end)
        self.lost = self.lost or log.recovery.quarantined or log.end_offset < vouched_end
        self._add(item.log_dir, log)

    def _set_stranger_aside(self, item: "ToLoad", owner: str) -> None:
        """Another partition's folder is in this one's place. What was in it is missing, and may be found elsewhere."""
        aside = f"{item.folder}.{self.make_uuid().hex()}-stray"
        self.disk.rename(item.folder, aside)
        self.disk.sync_dir(item.log_dir.path)
        self.notes.append(
            f"{item.folder} holds the files of {owner}: renamed to {aside}; stop this node and put folders back in"
            " their places"
        )

    def _add(self, log_dir: LogDir, log: Log) -> None:
        self.logs[log.topic, log.partition] = log
        log_dir.logs.add(log)
        self._dir_of[log] = log_dir
        self._most = max(self._most, len(self.logs))

    # -- the logs

    def get(self, topic: str, partition: int) -> Log | None:
        return self.logs.get((topic, partition))

    def live_dirs(self) -> list[LogDir]:
        return [log_dir for log_dir in self.dirs if log_dir.failed is None]

    def dir_of(self, log: Log) -> LogDir:
        return self._dir_of[log]

    def create(
        self, topic: str, partition: int, topic_id: bytes, now_ms: int, *, directory_id: bytes | None = None
    ) -> Log:
        """A new empty log, in the dir asked for or else in the one with the fewest logs."""
        assert (topic, partition) not in self.logs, (topic, partition)
        if (topic, partition) in self.offline:
            raise OSError(f"{topic}-{partition} is offline: {self.offline[topic, partition]}")
        candidates = [
            log_dir for log_dir in self.live_dirs() if directory_id is None or log_dir.directory_id == directory_id
        ]
        if not candidates:
            raise OSError(f"no usable log dir for {topic}-{partition}")
        log_dir = min(candidates, key=lambda candidate: len(candidate.logs))
        if log_dir.checkpoints.names((topic, partition)):
            # Of a log that had this name before. After a crash its start would be taken for this one's.
            log_dir.high_watermarks.pop((topic, partition), None)
            self._checkpoint([log_dir], None).run()
        folder = f"{log_dir.path}/{topic}-{partition}"
        if self.missing.pop((topic, partition), None) is not None and self.disk.exists(folder):
            self.disk.remove_tree(folder)  # what is left beside records that are gone
        log = Log.open(
            self.disk,
            folder,
            self.config_of(topic),
            now_ms=now_ms,
            topic_id=topic_id,
            pool=self.pool,
            producers=ProducerStates(verify_transactions=self.verify_transactions),
            producer_expiration_ms=self.producer_expiration_ms,
        )
        self._add(log_dir, log)
        return log

    def has_heard_of(self, partition: TopicPartition) -> bool:
        """Whether a log is here, or known to be missing or offline."""
        return partition in self.logs or partition in self.missing or partition in self.offline

    def suspect(self, partition: TopicPartition, directory_id: bytes | None) -> None:
        """The metadata says that a log is in a dir (None: in the only one), and there is no folder of it.

        A crash may come before the folder is made, but it takes no checkpoints away: where these are gone, too,
        somebody has removed files, and what is not here is missing.
        """
        for log_dir in self.live_dirs():
            is_there = len(self.dirs) == 1 if directory_id is None else log_dir.directory_id == directory_id
            if is_there and log_dir.forgetful:
                folder = f"{log_dir.path}/{partition[0]}-{partition[1]}"
                self.missing[partition] = unknown(ToLoad(log_dir, partition, folder, 0, 0))

    def forget_missing(self, partition: TopicPartition) -> None:
        """Nobody counts on it: it was deleted, or is copied anew."""
        item = self.missing.pop(partition)
        item.log_dir.high_watermarks.pop(partition, None)

    def adopt_topic_id(self, log: Log, topic_id: bytes) -> None:
        """Give a log from before topic ids the one its topic has."""
        log.write_topic_id(topic_id)

    def remove(self, log: Log, suffix: str = "-delete") -> str:
        """Take a log out of service under another name; returns the folder, for `remove_folder` in a thread.

        With `-stray` the folder stays: the cluster says it is not ours, and a person may know better.
        """
        del self.logs[log.topic, log.partition]
        log_dir = self._dir_of.pop(log)
        log_dir.logs.discard(log)
        log_dir.high_watermarks.pop((log.topic, log.partition), None)
        ending = f"-{log.partition}.{self.make_uuid().hex()}{suffix}"
        folder = f"{log_dir.path}/{log.topic[: FOLDER_NAME_MAX - len(ending)]}{ending}"
        log.abandon()
        log.move_folder(folder)
        if self._most >= SHRINK_FROM and len(self.logs) < self._most // 8:
            self._shrink()
        return folder

    def _shrink(self) -> None:
        """Tables keep the room of the most that they ever held: 200 bytes for each log that is gone."""
        self._most = len(self.logs)
        self.logs = dict(self.logs)
        self._dir_of = dict(self._dir_of)
        for log_dir in self.dirs:
            log_dir.logs = set(log_dir.logs)
            log_dir.high_watermarks = dict(log_dir.high_watermarks)
        self.pool.shrink()

    def remove_folder(self, folder: str) -> None:
        """In a thread, `file.delete.delay.ms` after `remove`."""
        try:
            self.disk.remove_tree(folder)
        except FileNotFoundError:
            pass

    def truncate_to(self, offsets: Mapping[Log, int]) -> CheckpointPlan:
        """Truncate followers that diverged. Run the plan before anything is appended to them again.

        A recovery point above what was rewritten would vouch for bytes that nobody has checked; and after a crash what
        was cut would count as missing, if the checkpoint still spoke of it: so it is lowered before, too.
        """
        vouched = set()
        for log, offset in offsets.items():
            log_dir, key = self._dir_of[log], (log.topic, log.partition)
            unchanged = log.unchanged_below(offset)
            if log.recovery_point > unchanged or log_dir.high_watermarks.get(key, 0) > offset:
                vouched.add(log_dir)
                log.recovery_point = min(log.recovery_point, unchanged)
                if log_dir.high_watermarks.get(key, 0) > offset:
                    log_dir.high_watermarks[key] = offset
        if vouched:
            self._checkpoint(vouched, None).run()
        for log, offset in offsets.items():
            log.truncate_to(offset)
        return self._checkpoint({self._dir_of[log] for log in offsets}, None)

    def fail_dir(self, log_dir: LogDir, error: Exception) -> list[Log]:
        """A dir's disk has failed: its logs are out of service from now on. Returns them."""
        if log_dir.failed is not None:
            return []
        log_dir.failed = error
        self.notes.append(f"{log_dir.path} is offline: {error}")
        logs = list(log_dir.logs)
        for log in logs:
            self.offline[log.topic, log.partition] = f"{log_dir.path}: {error}"
            self.logs.pop((log.topic, log.partition), None)
            log.abandon()
        log_dir.logs.clear()
        return logs

    # -- checkpoints and the end

    def checkpoint_plan(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> CheckpointPlan:
        """All checkpoints of all dirs as of now. Without high watermarks, those last given stay."""
        return self._checkpoint(self.live_dirs(), high_watermarks)

    def _checkpoint(
        self, log_dirs: Iterable[LogDir], high_watermarks: Mapping[TopicPartition, int] | None
    ) -> CheckpointPlan:
        plans = []
        for log_dir in log_dirs:
            if log_dir.failed is not None:
                continue
            recovery_points = {key: item.recovery_point for key, item in log_dir.unopened.items()}
            log_starts = {key: item.log_start for key, item in log_dir.unopened.items() if item.log_start}
            for key, item in self.missing.items():
                if item.log_dir is log_dir:
                    recovery_points[key] = item.recovery_point
            for log in log_dir.logs:
                key = log.topic, log.partition
                recovery_points[key] = log.recovery_point
                if log.log_start_offset > log.segments[0].base_offset:
                    log_starts[key] = log.log_start_offset
                if high_watermarks is not None and key in high_watermarks:
                    log_dir.high_watermarks[key] = high_watermarks[key]
            plans.append(log_dir.checkpoints.plan(recovery_points, log_starts, log_dir.high_watermarks))
        return CheckpointPlan(plans)

    def close(
        self,
        *,
        clean: bool = True,
        broker_epoch: int = -1,
        high_watermarks: Mapping[TopicPartition, int] | None = None,
        run_all: Callable[[list[Callable[[], None]]], None] | None = None,
    ) -> None:
        """Make everything durable and say so, dir by dir. `run_all` may run the syncs in threads; they may raise."""
        for log_dir in self.live_dirs():
            if clean:
                try:
                    self._close_logs(log_dir, run_all or _run_in_turn)
                    self._checkpoint([log_dir], high_watermarks).run()
                    if not log_dir.unopened:
                        # The mark speaks for every log of the dir, and nobody has looked at those.
                        marker = encode_clean_shutdown(broker_epoch)
                        self.disk.replace_bytes(f"{log_dir.path}/{CLEAN_SHUTDOWN}", marker)
                except OSError as error:
                    self.notes.append(f"{log_dir.path} could not be closed in order: {error}")
            for log in log_dir.logs:
                log.abandon()
        for log_dir in self.dirs:
            if log_dir.lock is not None:
                with suppress(OSError):
                    if not self.disk.exists(f"{log_dir.path}/{META_PROPERTIES}"):
                        self.disk.remove(f"{log_dir.path}/{LOCK}")  # refused: it is somebody else's folder, or nobody's
                self.disk.unlock(log_dir.lock)
                log_dir.lock = None

    def _close_logs(self, log_dir: LogDir, run_all: Callable[[list[Callable[[], None]]], None]) -> None:
        """Some at a time: a plan holds its files open, and there may be more logs than descriptors."""
        logs = list(log_dir.logs)
        group = max(1, min(CLOSE_TOGETHER, self.pool.open_files_max // 4))
        for at in range(0, len(logs), group):
            plans = [(log, plan) for log in logs[at : at + group] if (plan := log.close_plan()) is not None]
            with suppress(OSError):
                run_all([plan.run for _, plan in plans])
            failures = []
            for log, plan in plans:
                try:
                    log.mark_durable(plan)
                    if plan.epochs_missing:
                        raise OSError(errno.ENOSPC, "no room for leader epochs", log.path)
                except OSError as error:
                    failures.append(error)
            if failures:
                raise failures[0]
        for log in logs:
            log.recovery_point = log.end_offset


def _run_in_turn(work: list[Callable[[], None]]) -> None:
    for step in work:
        step()
