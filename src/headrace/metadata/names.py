"""Which topic names are allowed, and which are the cluster's own."""

import re

from headrace.errors import Err, KafkaError

NAME_LENGTH_MAX = 249
"""A partition's folder is the name, a dash and up to ten digits; a file system takes 255."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)

CLUSTER_METADATA = "__cluster_metadata"
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "__share_group_state"})
"""Topics that only brokers write to: the state of groups and transactions."""


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION unless a topic may have this name."""
    reason = None
    if not name:
        reason = "it is empty"
    elif name in (".", ".."):
        reason = "it is '.' or '..'"
    elif len(name) > NAME_LENGTH_MAX:
        reason = f"it is longer than {NAME_LENGTH_MAX} characters"
    elif not _LEGAL.fullmatch(name):
        reason = "only ASCII letters, digits, '.', '_' and '-' are allowed"
    if reason is not None:
        raise KafkaError(Err.INVALID_TOPIC_EXCEPTION, f"{name!r} is not a topic name: {reason}")


def has_collision_chars(name: str) -> bool:
    return "_" in name or "." in name


def unify_collision_chars(name: str) -> str:
    return name.replace(".", "_")
