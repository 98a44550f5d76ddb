"""Headrace's own tagged fields in Kafka's messages: their numbers, and how one is taken out of a message.

A peer that does not know a tagged field skips it, by the protocol's own rule. So each is safe to send to any broker,
and Kafka's brokers and clients never see what it adds.
"""

RECORD_AGE_TAG = 18_514
SCRUB_TAG = 18_515
DISK_SPACE_TAG = 18_516
MARKER_DECISION_TAG = 18_517
LEADER_EPOCHS_TAG = 18_518
LEFT_OPEN_TAG = 18_519
"""All far beyond the numbers that Kafka gives to its own tagged fields, which count from 0."""

Tags = dict[int, bytes] | None


def value_of(tags: Tags, tag: int) -> bytes | None:
    """The bytes of a field, if it was sent."""
    return tags.get(tag) if tags else None
