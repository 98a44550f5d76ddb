"""The partitions that this node has a replica of: leading, following, syncing, and making damaged ones whole."""
