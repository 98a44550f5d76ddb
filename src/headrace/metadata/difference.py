"""What lies between two images, as a delta: for whoever follows changes and is given a whole new image instead.

A follower that was away for long loads a snapshot; what it had known and the snapshot does not name is gone.
"""

from collections.abc import Mapping
from typing import Any

from headrace.metadata.delta import Delta, TopicDraft
from headrace.metadata.image import Image


def difference(old: Image, new: Image) -> Delta:
    """The delta on `old` that leads to the content of `new`."""
    delta = Delta(old)
    _topics(delta, old, new)
    if new.features != old.features:
        delta.features = dict(new.features)
    delta.brokers.update(_changes(old.brokers, new.brokers, None))
    delta.controllers.update({i: c for i, c in new.controllers.items() if old.controllers.get(i) != c})
    for resource, configs in _changes(old.configs, new.configs, {}).items():
        delta.configs[resource] = dict(configs)
    for entity, quotas in _changes(old.quotas, new.quotas, {}).items():
        delta.quotas[entity] = dict(quotas)
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
    for topic_id, topic in old.topics.items():
        if topic_id not in new.topics:
            delta.topics_deleted[topic_id] = topic
            delta.names[topic.name] = None
    for topic_id, topic in new.topics.items():
        base = old.topics.get(topic_id)
        if base is topic:
            continue
        draft = TopicDraft(topic_id, topic.name, base)
        known = base.partitions if base is not None else {}
        draft.changed.update((n, p) for n, p in topic.partitions.items() if known.get(n) != p)
        if base is None:
            delta.names[topic.name] = topic_id
        if base is None or draft.changed:
            delta.drafts[topic_id] = draft
