"""From a change of metadata to operations on znodes: what a delta creates, sets and deletes, and in which multis.

A change is one multi where it fits. One that does not is made so that nobody sees half of it, whenever its controller
dies:

1. What it adds comes first. A topic that needs several multis is marked in `/headrace/unfinished` from the first on:
   whoever reads the znodes passes over it, and a new controller removes it.
2. One multi commits: it takes these marks away, marks topics that are to be deleted, does everything small, and counts
   the change in `/headrace/metadata`.
3. What is left of deleted topics goes after that, its mark last.
"""

import base64
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from headrace.metadata.delta import Delta, PartitionChange
from headrace.metadata.image import BROKER_CONFIG, TOPIC_CONFIG, Image, Topic
from headrace.metadata.records import Record, encode_record
from headrace.protocol import messages as m
from headrace.quorum.zookeeper import paths, znodes
from headrace.quorum.zookeeper.operations import Create, Delete, Operation, Set, in_multis, size_of

NOTED = (TOPIC_CONFIG, BROKER_CONFIG)
"""Whose options Kafka 3.x kept in `/config`."""


class Plan(NamedTuple):
    """Multis in order; those of `before` and `after` change nothing that counts."""

    before: list[list[Operation]]
    commit: list[Operation]
    after: list[list[Operation]]

    @property
    def size(self) -> int:
        """Of the multi that commits, in bytes."""
        return sum(map(size_of, self.commit))

    @property
    def largest(self) -> Operation | None:
        """What takes most room of all that is written."""
        return max((one for multi in (*self.before, self.commit) for one in multi), key=size_of, default=None)

    def over(self, there: Collection[str]) -> "Plan":
        """The same where these znodes exist already, though no part of the metadata."""
        commit = [Set(op.path, op.data) if isinstance(op, Create) and op.path in there else op for op in self.commit]
        return self._replace(commit=commit)


def plan(delta: Delta, after: Image, records: Sequence[Record], controller_epoch: int, bytes_max: int) -> Plan:
    """How `delta`, which leads to `after`, is written. `records` are what it was made of."""
    small = [*_cluster(delta, after, records), *_configs(delta), *_security(delta)]
    added = {name: list(operations) for name, operations in _additions(delta, after, controller_epoch)}
    removed = {topic.name: list(_removal(topic)) for topic in delta.topics_deleted.values()}
    changed = list(_partition_states(delta, after, controller_epoch))
    whole = [*_flat(removed), *_flat(added), *changed, *small]
    if sum(map(size_of, whole)) <= bytes_max:
        return Plan([], whole, [])
    new = {name for _, name in delta.topics_created}
    first: list[Operation] = [Create(paths.unfinished(name)) for name in added if name in new]
    commit: list[Operation] = [
        *(Delete(paths.unfinished(name)) for name in added if name in new),
        *(Create(paths.unfinished(name)) for name in removed),
        *changed,
        *small,
    ]
    last: list[Operation] = [*_flat(removed), *(Delete(paths.unfinished(name)) for name in removed)]
    return Plan(
        list(in_multis([*first, *_flat(added)], bytes_max)),
        commit,
        list(in_multis(last, bytes_max)),
    )


def _flat(named: dict[str, list[Operation]]) -> list[Operation]:
    return [operation for operations in named.values() for operation in operations]


# --- topics -----------------------------------------------------------------------------------------------------------


def _additions(delta: Delta, after: Image, controller_epoch: int) -> Iterator[tuple[str, Iterator[Operation]]]:
    """By topic: new topics, and new partitions of old ones. Nobody looks at a partition that its topic does not name,
    which is why the topic's own change is not here."""
    created = dict(delta.topics_created)
    grown: dict[str, list[PartitionChange]] = {}
    for change in delta.partition_changes():
        if change.old is None and change.topic_id not in created:
            grown.setdefault(change.topic_name, []).append(change)
    for topic_id, name in created.items():
        yield name, _creation(after.topics[topic_id], controller_epoch)
    for name, changes in grown.items():
        yield name, (one for change in changes for one in _new_partition(name, change, controller_epoch))


def _creation(topic: Topic, controller_epoch: int) -> Iterator[Operation]:
    yield Create(paths.topic(topic.name), znodes.encode_topic(topic))
    yield Create(paths.partitions(topic.name))
    for number, partition in sorted(topic.partitions.items(), key=lambda pair: pair[0]):
        change = PartitionChange(topic.id, topic.name, number, None, partition)
        yield from _new_partition(topic.name, change, controller_epoch)


def _new_partition(name: str, change: PartitionChange, controller_epoch: int) -> Iterator[Operation]:
    path = paths.state(name, change.partition)
    data = znodes.encode_state(change.new, controller_epoch)
    yield Create(paths.partition(name, change.partition))
    yield Create(path, data)
    for version in range(change.new.partition_epoch):
        yield Set(path, data, version)


def _removal(topic: Topic) -> Iterator[Operation]:
    for number in sorted(topic.partitions):
        yield Delete(paths.state(topic.name, number))
        yield Delete(paths.partition(topic.name, number))
    yield Delete(paths.partitions(topic.name))
    yield Delete(paths.topic(topic.name))


def _partition_states(delta: Delta, after: Image, controller_epoch: int) -> Iterator[Operation]:
    """Changes of partitions that were there: one write for each partition epoch, which a znode's version counts."""
    created = dict(delta.topics_created)
    assigned: dict[bytes, None] = {}
    for topic_id, name, number, old, new in delta.partition_changes():
        if old is None:
            if topic_id not in created:
                assigned[topic_id] = None
            continue
        data = znodes.encode_state(new, controller_epoch)
        for version in range(old.partition_epoch, new.partition_epoch):
            yield Set(paths.state(name, number), data, version)
        if (old.replicas, old.adding, old.removing) != (new.replicas, new.adding, new.removing):
            assigned[topic_id] = None
    for topic_id in assigned:
        topic = after.topics[topic_id]
        yield Set(paths.topic(topic.name), znodes.encode_topic(topic))


# --- everything else --------------------------------------------------------------------------------------------------


def _cluster(delta: Delta, after: Image, records: Sequence[Record]) -> Iterator[Operation]:
    if delta.features is not None:
        yield Set(paths.LEVELS, znodes.encode_features(after.features))
    for node_id, broker in delta.brokers.items():
        path = paths.registration(node_id)
        was = node_id in delta.image.brokers
        if broker is not None:
            yield _put(path, znodes.encode_broker(broker), was)
        elif was:
            yield Delete(path)
    for node_id, controller in delta.controllers.items():
        data = znodes.encode_controller_registration(controller)
        yield _put(paths.controller(node_id), data, node_id in delta.image.controllers)
    for record, _ in records:
        if isinstance(record, m.ProducerIdsRecord):
            yield Set(paths.PRODUCER_IDS, znodes.encode_producer_ids(record.broker_id, record.next_producer_id))


def _configs(delta: Delta) -> Iterator[Operation]:
    """With a note for each, as Kafka writes it: not for topics that are being made or deleted."""
    born = {name for _, name in delta.topics_created}
    gone = {topic.name for topic in delta.topics_deleted.values()}
    for (kind, name), config in delta.configs.items():
        path, was = paths.config(kind, name), (kind, name) in delta.image.configs
        if config:
            yield _put(path, znodes.encode_config(config), was)
        elif was:
            yield Delete(path)
        if kind in NOTED and name not in born and name not in gone:
            yield Create(paths.CONFIG_CHANGE, znodes.encode_config_change(kind, name), sequence=True)


def _security(delta: Delta) -> Iterator[Operation]:
    """What Kafka keeps elsewhere, and we under one node of ours: quotas as JSON, the rest as the records themselves."""
    for entity, quotas in delta.quotas.items():
        path, was = f"{paths.QUOTAS}/{quota_key(entity)}", entity in delta.image.quotas
        if quotas:
            yield _put(path, znodes.encode({"version": 1, "entity": [list(e) for e in entity], "quotas": quotas}), was)
        elif was:
            yield Delete(path)
    for acl_id, acl in delta.acls.items():
        yield from _record(f"{paths.ACLS}/{acl_id.hex()}", acl, acl_id in delta.image.acls)
    for (user, mechanism), scram in delta.scrams.items():
        key = f"{paths.escape(user)}:{mechanism}"
        yield from _record(f"{paths.SCRAM}/{key}", scram, (user, mechanism) in delta.image.scrams)
    for token_id, token in delta.tokens.items():
        yield from _record(f"{paths.TOKENS}/{paths.escape(token_id)}", token, token_id in delta.image.tokens)


def _record(path: str, message: object | None, was: bool) -> Iterator[Operation]:
    if message is not None:
        record = base64.b64encode(encode_record(message, 0)).decode()
        yield _put(path, znodes.encode({"version": 1, "record": record}), was)
    elif was:
        yield Delete(path)


def quota_key(entity: tuple[tuple[str, str | None], ...]) -> str:
    return ",".join(f"{kind}={paths.DEFAULT if name is None else paths.escape(name)}" for kind, name in entity)


def _put(path: str, data: bytes, was: bool) -> Operation:
    return Set(path, data) if was else Create(path, data)
