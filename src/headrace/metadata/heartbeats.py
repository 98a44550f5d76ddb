"""What a broker's heartbeat changes: BrokerHeartbeat v0-2 (v1: log dirs that went offline, v2: cordoned log dirs).

A broker asks to be fenced, unfenced or let go; the controller grants that when the time has come:

    fenced               want_fence=False, caught up    -> unfenced
    unfenced             want_fence                     -> fenced
    unfenced             want_shut_down                 -> controlled shutdown while it leads anything, else let go
    controlled shutdown  leads nothing, and the others know -> let go

A broker of Headrace's also tells which of its log dirs are full; others lead what is there until it has room again.
"""

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from headrace.metadata.brokers import (
    changes_without,
    check_broker_epoch,
    controlled_shutdown,
    fence_broker,
    leads_any,
    registration_change,
    unfence_broker,
    without_room,
)
from headrace.metadata.image import Broker, Image
from headrace.metadata.outcome import Outcome
from headrace.metadata.policy import ElectionPolicy
from headrace.metadata.records import Record
from headrace.metadata.versions import CORDONED_DIRECTORIES_LEVEL, DIRECTORIES_LEVEL
from headrace.protocol import messages as m
from headrace.protocol.private_fields.disk_space import full_in


class BrokerState(Enum):
    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"


class Reply(NamedTuple):
    state: BrokerState
    is_caught_up: bool

    @property
    def is_fenced(self) -> bool:
        return self.state in (BrokerState.FENCED, BrokerState.SHUTDOWN_NOW)


def heartbeat(
    image: Image,
    request: m.BrokerHeartbeatRequest,
    policy: ElectionPolicy,
    others_know: Callable[[], bool],
) -> Outcome[Reply]:
    """`others_know`: whether all other brokers have learnt that this one, in controlled shutdown, leads nothing."""
    broker = check_broker_epoch(image, request.broker_id, request.broker_epoch)
    policy.disk_space.note(broker, full_in(request.unknown_tags))
    # The registration stands at the epoch or, if another kind of controller wrote it, in the batch that begins there.
    caught_up = request.current_metadata_offset >= broker.epoch
    after = _next_state(image, broker, state_of(broker), request, caught_up, others_know)
    records: list[Record] = []
    match after:
        case BrokerState.UNFENCED if broker.fenced:
            records += unfence_broker(image, broker.id, policy)
        case BrokerState.CONTROLLED_SHUTDOWN if leads_any(image, broker.id):  # an earlier controller may have begun it
            records += controlled_shutdown(image, broker.id, policy)
        case BrokerState.FENCED | BrokerState.SHUTDOWN_NOW if not broker.fenced:
            records += fence_broker(image, broker.id, policy)
    if not records and image.metadata_version >= DIRECTORIES_LEVEL:
        records += directories_offline(image, broker, request.offline_log_dirs, policy)
    if not records and policy.disk_space.is_full(broker.id):
        records += without_room(image, broker.id, policy)
    records += _cordoned(image, broker, request.cordoned_log_dirs)
    return Outcome(records, Reply(after, caught_up))


def state_of(broker: Broker) -> BrokerState:
    if broker.fenced:
        return BrokerState.FENCED
    return BrokerState.CONTROLLED_SHUTDOWN if broker.in_controlled_shutdown else BrokerState.UNFENCED


def _next_state(
    image: Image,
    broker: Broker,
    before: BrokerState,
    request: m.BrokerHeartbeatRequest,
    caught_up: bool,
    others_know: Callable[[], bool],
) -> BrokerState:
    if before is BrokerState.FENCED:
        if request.want_shut_down:
            return BrokerState.SHUTDOWN_NOW
        return BrokerState.UNFENCED if caught_up and not request.want_fence else before
    if before is BrokerState.UNFENCED:
        if request.want_fence:
            return BrokerState.SHUTDOWN_NOW if request.want_shut_down else BrokerState.FENCED
        if not request.want_shut_down:
            return before
        return BrokerState.CONTROLLED_SHUTDOWN if leads_any(image, broker.id) else BrokerState.SHUTDOWN_NOW
    if leads_any(image, broker.id) or not others_know():
        return before
    return BrokerState.SHUTDOWN_NOW


def directories_offline(image: Image, broker: Broker, offline: Sequence[bytes], policy: ElectionPolicy) -> list[Record]:
    """Others lead, and are in sync for, the partitions in log dirs that failed; the registration names what is left."""
    lost = set(offline) & set(broker.log_dirs)
    if not lost:
        return []
    affected = (
        (key, partition)
        for key, partition in image.partitions_of(broker.id)
        if broker.id in partition.isr and partition.directory_of(broker.id) in lost
    )
    records = changes_without(image, affected, policy, broker.id)
    online = [directory for directory in broker.log_dirs if directory not in lost]
    records.append(registration_change(broker, 2, log_dirs=online))
    return records


def _cordoned(image: Image, broker: Broker, cordoned: Any) -> list[Record]:
    """Log dirs that take no new replicas; null in a heartbeat means that nothing is said about them."""
    if cordoned is None or image.metadata_version < CORDONED_DIRECTORIES_LEVEL:
        return []
    if tuple(cordoned) == (broker.cordoned_log_dirs or ()):
        return []
    return [registration_change(broker, 3, cordoned_log_dirs=list(cordoned))]
