"""One partition's rules, without I/O: watermarks, in-sync replicas, producer sequences, fetch sessions."""
