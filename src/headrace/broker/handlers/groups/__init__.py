"""Groups: their members, their offsets, and how a request finds the shard of its group."""
