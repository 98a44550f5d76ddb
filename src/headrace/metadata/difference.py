"""The difference between two images as a delta: for listeners that follow changes and get a whole new image instead.

A follower that was away for long loads a snapshot; what it had known and the snapshot does not name is gone.
"""

from collections.abc import Mapping
from typing import Any

from headrace.metadata.delta import Delta
from headrace.metadata.image import Image
from headrace.metadata.snapshot import partition_record
from headrace.protocol import messages as m


def difference(old: Image, new: Image) -> Delta:
    """The delta on `old` that leads to the content of `new`."""
    delta = Delta(old)
    _topics(delta, old, new)
    if new.features != old.features:
        delta.features = dict(new.features)
    delta.brokers.update(_changes(old.brokers, new.brokers, None))
    delta.controllers.update({i: c for i, c in new.controllers.items() if old.controllers.get(i) != c})
    # Deleted topics took their configuration with them, also where another topic now has the name.
    for resource in [*delta.configs, *_changes(old.configs, new.configs, None)]:
        delta.configs[resource] = dict(new.configs.get(resource, {}))
    for entity in _changes(old.quotas, new.quotas, None):
        delta.quotas[entity] = dict(new.quotas.get(entity, {}))
    delta.acls.update(_changes(old.acls, new.acls, None))
    delta.scrams.update(_changes(old.scrams, new.scrams, None))
    delta.tokens.update(_changes(old.tokens, new.tokens, None))
    if new.next_producer_id != old.next_producer_id:
        delta.next_producer_id = new.next_producer_id
    if new.zk_migration_state != old.zk_migration_state:
        delta.zk_migration_state = new.zk_migration_state
    return delta


def _changes(old: Mapping[Any, Any], new: Mapping[Any, Any], gone: Any) -> dict[Any, Any]:
    changed = {key: gone for key in old if key not in new}
    changed.update((key, value) for key, value in new.items() if key not in old or old[key] != value)
    return changed


def _topics(delta: Delta, old: Image, new: Image) -> None:
    for topic_id in old.topics:
        if topic_id not in new.topics:
            delta.remove_topic(m.RemoveTopicRecord(topic_id=topic_id))
    for topic_id, topic in new.topics.items():
        base = old.topics.get(topic_id)
        if base is None:
            delta.topic(m.TopicRecord(name=topic.name, topic_id=topic_id))
        known = base.partitions if base is not None else {}
        for number, partition in topic.partitions.items():
            if known.get(number) != partition:
                record, _ = partition_record(partition, topic_id, number, new.metadata_version)
                delta.partition(record)
