"""Group coordination without I/O: shards decide on requests and return records; only replaying records changes what is
durable."""
