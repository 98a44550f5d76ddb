"""Limits and defaults of a producer: how much may be under way, and for how long it is tried."""

IN_FLIGHT_MAX = 5
"""Batches per partition and requests per broker; a broker remembers a producer's last five batches, never more."""
REQUEST_BYTES_MAX = 4 << 20
BUFFER_BYTES_MAX = 32 << 20
DELIVERY_TIMEOUT_S = 120.0
PRODUCE_TIMEOUT_MS = 30_000
METADATA_MAX_AGE_S = 300.0
FRESH_STARTS_MAX = 3
"""New producer ids for one partition before giving up on a broker that keeps forgetting them."""

TOPIC_GONE_S = 15.0
"""How long a topic may be missing before it counts as deleted rather than moved."""

BATCH_BYTES, RETRIES_MAX = 256 << 10, (1 << 31) - 1
FAILED_KEPT_MAX = 1000
ALL = -1
"""acks: every in-sync replica has it."""
