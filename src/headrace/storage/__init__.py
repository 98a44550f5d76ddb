"""Kafka's files on disk, byte for byte: segments, indexes, checkpoints, recovery, retention and compaction."""
