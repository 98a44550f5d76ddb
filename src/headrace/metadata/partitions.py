"""How one partition changes: who leads, who is in sync, when a reassignment is complete.

`change` compares what is wanted with what is and returns the record that says the difference, or nothing. A leader
comes from the ISR; with eligible leader replicas (KIP-966) also from those who left it while it was at or below
min.insync.replicas. Only when asked does it come from any other replica, which may lose records.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from headrace.metadata.delta import NO_LEADER_CHANGE, NO_RECOVERY_CHANGE
from headrace.metadata.image import NO_LEADER, RECOVERING, Partition
from headrace.metadata.records import Record
from headrace.metadata.versions import DIRECTORIES_LEVEL, EPOCH_BUMP_ON_SHRINK_BELOW, level
from headrace.protocol import messages as m


class Election(Enum):
    PREFERRED = "preferred"
    """Move leadership to the first replica if it may lead."""
    ONLINE = "online"
    """Keep the leader if it may lead, else any in-sync replica."""
    UNCLEAN = "unclean"
    """As ONLINE, and as a last resort any live replica, losing what it does not have."""


def _always(broker_id: int) -> bool:
    return True


class Rules(NamedTuple):
    """What the cluster says about electing leaders for one partition."""

    metadata_version: int
    elr_enabled: bool
    min_isr: int
    acceptable: Callable[[int], bool]
    """Whether a broker is alive and may lead."""
    default_directory: Callable[[int], bytes]
    has_space: Callable[[int], bool] = _always
    """Whether its disk can take records. One that is full leads only where nobody else may."""


class Wanted(msgspec.Struct):
    """The partition as it should become; starts as it is."""

    isr: list[int]
    replicas: list[int]
    removing: list[int]
    adding: list[int]
    elr: list[int]
    last_known_elr: list[int]
    recovery_state: int
    directories: dict[int, bytes]
    unclean_shutdown: Sequence[int] = ()
    """Replicas that lost their page cache, and so may lack what they had acknowledged."""

    @staticmethod
    def of(partition: Partition) -> "Wanted":
        return Wanted(
            isr=list(partition.isr),
            replicas=list(partition.replicas),
            removing=list(partition.removing),
            adding=list(partition.adding),
            elr=list(partition.elr),
            last_known_elr=list(partition.last_known_elr),
            recovery_state=partition.recovery_state,
            directories=dict(zip(partition.replicas, partition.directories)),
        )


def change(
    partition: Partition,
    topic_id: bytes,
    number: int,
    wanted: Wanted,
    rules: Rules,
    election: Election = Election.ONLINE,
) -> Record | None:
    """The record that brings `partition` to `wanted`, electing a leader on the way; None when nothing changes."""
    record = m.PartitionChangeRecord(topic_id=topic_id, partition_id=number)
    _complete_reassignment(wanted)
    _fill_elr(partition, wanted, rules)
    _elect(partition, wanted, rules, election, record)
    if record.leader == NO_LEADER_CHANGE and not set(partition.replicas) <= set(wanted.replicas):
        # A removed replica must not go on as if it still belonged: a new leader epoch fences it.
        record.leader = partition.leader
    _record_elr(partition, wanted, rules, record)
    if record.isr is None and (wanted.isr or rules.elr_enabled) and wanted.isr != list(partition.isr):
        record.isr = wanted.isr
    if (
        rules.metadata_version < EPOCH_BUMP_ON_SHRINK_BELOW
        and record.leader == NO_LEADER_CHANGE
        and record.isr is not None
        and not set(partition.isr) <= set(record.isr)
    ):
        record.leader = partition.leader
    _record_last_known_leader(partition, wanted, rules, record)
    _record_assignment(partition, wanted, rules, record)
    if wanted.recovery_state != partition.recovery_state:
        record.leader_recovery_state = wanted.recovery_state
    if record == m.PartitionChangeRecord(topic_id=topic_id, partition_id=number):
        return None
    return record, level(rules.metadata_version).partition_change_record


def is_unclean(partition: Partition, record: m.PartitionChangeRecord) -> bool:
    """Whether it elects a leader that may lack committed records, and then has to recover.

    One that a move has just brought in sync leads without having been in the ISR before, and lacks nothing.
    """
    if record.leader < 0 or record.leader in (*partition.isr, *partition.elr):
        return False
    state = record.leader_recovery_state
    return (partition.recovery_state if state == NO_RECOVERY_CHANGE else state) == RECOVERING


def _complete_reassignment(wanted: Wanted) -> None:
    """Drop the replicas being removed once the added ones are in sync; with fewer added than removed, once all are."""
    if not wanted.removing and not wanted.adding:
        return
    isr = [r for r in wanted.isr if r not in wanted.removing]
    replicas = [r for r in wanted.replicas if r not in wanted.removing]
    if wanted.removing and (not isr or not replicas):
        return
    needed = replicas if len(wanted.adding) < len(wanted.removing) else wanted.adding
    if not set(needed) <= set(isr):
        return
    wanted.isr, wanted.replicas = isr, replicas
    wanted.removing, wanted.adding = [], []


def _fill_elr(partition: Partition, wanted: Wanted, rules: Rules) -> None:
    """Replicas that leave an ISR below its minimum stay eligible: they have everything committed.

    Not so those who are moved away, and with them their logs: they may come back.
    """
    if not rules.elr_enabled:
        if partition.isr:
            wanted.elr = []  # found out before this was switched off: the ISR has gone on without them
        return
    if len(wanted.isr) >= rules.min_isr:
        wanted.elr, wanted.last_known_elr = [], []
        return
    staying = set(partition.replicas) & set(wanted.replicas)
    candidates = sorted(staying & {*wanted.elr, *partition.isr})
    elr = [r for r in candidates if r not in wanted.isr and r not in wanted.unclean_shutdown]
    candidates = sorted({*candidates, *(staying & set(wanted.last_known_elr))})
    wanted.last_known_elr = [r for r in candidates if r not in wanted.isr and r not in elr]
    wanted.elr = elr


class _Elected(NamedTuple):
    leader: int
    unclean: bool


def _choose_clean(partition: Partition, wanted: Wanted, rules: Rules, election: Election) -> int:
    """A replica that has everything committed, on a disk with space if there is one; NO_LEADER without any."""

    def valid(replica: int) -> bool:
        in_line = replica in wanted.isr or (not wanted.isr and replica in wanted.elr)
        return in_line and rules.acceptable(replica)

    order = [partition.leader, *wanted.replicas]
    first = wanted.replicas[0] if election is Election.PREFERRED else partition.leader
    if valid(first) and rules.has_space(first):
        return first
    in_line = [replica for replica in order if valid(replica)]
    # If all are full: it can be read from, and nothing is gained by moving it.
    return next(filter(rules.has_space, in_line), in_line[0] if in_line else NO_LEADER)


def _choose(partition: Partition, wanted: Wanted, rules: Rules, election: Election) -> _Elected:
    leader = _choose_clean(partition, wanted, rules, election)
    if leader != NO_LEADER:
        return _Elected(leader, False)
    if not wanted.elr and not wanted.isr and len(partition.last_known_elr) == 1:
        last = partition.last_known_elr[0]
        # Every replica that was eligible has lost something; the last leader lost the least.
        if last in wanted.replicas and rules.acceptable(last):
            return _Elected(last, True)
    if election is Election.UNCLEAN:
        for replica in wanted.replicas:
            if rules.acceptable(replica):
                return _Elected(replica, True)
    return _Elected(NO_LEADER, False)


def _elect(
    partition: Partition, wanted: Wanted, rules: Rules, election: Election, record: m.PartitionChangeRecord
) -> None:
    leader, unclean = _choose(partition, wanted, rules, election)
    if leader == partition.leader:
        return
    if leader in wanted.elr:
        wanted.isr = [leader]
        # Enough to commit by itself, if the minimum was lowered meanwhile: then nobody else has all that it will
        # commit.
        wanted.elr = [r for r in wanted.elr if r != leader] if rules.min_isr > 1 else []
    record.leader = leader
    if unclean:
        record.isr = [leader]
        if partition.recovery_state != RECOVERING:
            record.leader_recovery_state = RECOVERING


def _record_elr(partition: Partition, wanted: Wanted, rules: Rules, record: m.PartitionChangeRecord) -> None:
    unclean = record.isr is not None
    if unclean or (not rules.elr_enabled and wanted.isr):  # without an ISR, nobody else could ever lead
        wanted.elr = []
    if wanted.elr != list(partition.elr):
        record.eligible_leader_replicas = wanted.elr


def _record_last_known_leader(
    partition: Partition, wanted: Wanted, rules: Rules, record: m.PartitionChangeRecord
) -> None:
    """While nobody leads, remember who did: KIP-966 elects it when nobody eligible is left.

    Where nobody has led since before eligible replicas were counted, that is who was last in sync.
    """
    if not rules.elr_enabled:
        return
    if record.leader >= 0:
        if partition.last_known_elr:
            record.last_known_elr = []
    elif not partition.last_known_elr:
        if record.leader == NO_LEADER and partition.leader != NO_LEADER:
            record.last_known_elr = [partition.leader]
        elif (partition.isr or partition.elr) and not (wanted.isr or wanted.elr):
            record.last_known_elr = list(partition.isr or partition.elr)


def _record_assignment(partition: Partition, wanted: Wanted, rules: Rules, record: m.PartitionChangeRecord) -> None:
    if wanted.replicas:
        if rules.metadata_version >= DIRECTORIES_LEVEL:
            directories = [
                wanted.directories[r] if r in wanted.directories else rules.default_directory(r)
                for r in wanted.replicas
            ]
            if directories != list(partition.directories):
                record.directories = directories
        if wanted.replicas != list(partition.replicas):
            record.replicas = wanted.replicas
    if wanted.removing != list(partition.removing):
        record.removing_replicas = wanted.removing
    if wanted.adding != list(partition.adding):
        record.adding_replicas = wanted.adding
