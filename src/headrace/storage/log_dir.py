"""One of a broker's log dirs: what the last run left there, and which logs to load. `manager` has all dirs."""

from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.storage.checkpointing import CheckpointFiles, DirCheckpoint
from headrace.storage.checkpoints import TopicPartition
from headrace.storage.log import Log


class LogDirError(Exception):
    """The broker cannot start on its log dirs; the message is one line that says what to do."""


@dataclass(slots=True, eq=False)
class LogDir:
    """One of `log.dirs`."""

    path: str
    directory_id: bytes = bytes(16)
    lock: object | None = None
    clean: bool = False
    """The last run ended in order, as its marker said."""
    manifests_trusted: bool = False
    """Kafka has not run on it since its manifests were written."""
    forgetful: bool = False
    """No checkpoints, although a broker writes them before it leads anything: a new dir, or one that has lost files."""
    broker_epoch: int = -1
    """Of the last run, if it ended in order, or had everything on disk before it counted: a controller that knows it
    by this epoch then knows that nothing was lost."""
    failed: Exception | None = None
    logs: set[Log] = field(default_factory=set)
    high_watermarks: dict[TopicPartition, int] = field(default_factory=dict)
    """As checkpointed by the last run."""
    cleaned: dict[TopicPartition, int] = field(default_factory=dict)
    """How far the last run had compacted each log: only what is committed is."""
    checkpointed: "dict[TopicPartition, ToLoad]" = field(default_factory=dict)
    """Every log that the last run has left a line about."""
    unopened: "dict[TopicPartition, ToLoad]" = field(default_factory=dict)
    """Logs that could not be opened: what is checkpointed of them stays, for the start that can."""
    checkpoints: CheckpointFiles = field(init=False)


@dataclass(slots=True)
class CheckpointPlan:
    """Checkpoint files as they should be now. Taken on the loop, run in a thread."""

    dirs: list[DirCheckpoint]

    def run(self) -> None:
        for log_dir in self.dirs:
            log_dir.run()


class ToLoad(NamedTuple):
    log_dir: LogDir
    partition: TopicPartition
    folder: str
    recovery_point: int
    log_start: int
    is_known: bool = True
    """Whether a checkpoint tells how far the log went; else it may have had records, and nothing is left to say so."""

    @property
    def vouched_end(self) -> int:
        """The last run had everything below it on its disk, or knew it to be committed."""
        return max(self.recovery_point, self.log_dir.high_watermarks.get(self.partition, 0))


def unknown(item: ToLoad) -> ToLoad:
    """One record at least, for all that anybody can tell: so the next start, which finds a checkpoint, knows it
    still."""
    return item._replace(recovery_point=item.log_start + 1, is_known=False)
