"""The I/O shell around the pure cores: sockets, routing, replicas, waiting and syncing."""
