"""Produce and Fetch by hand: the two APIs whose cost is the broker's cost.

Answers of the usual kind are packed here; one that carries anything rare (error texts, a new leader, a diverging
epoch) goes through the compiled codec. Tests prove that both say the same bytes in every version.
"""

from headrace.protocol.hot_common import Endpoint, LeaderHint
from headrace.protocol.hot_fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    FetchDetail,
    FetchPartition,
    FetchQuery,
    FetchResult,
    decode_fetch,
    encode_fetch_response_head,
)
from headrace.protocol.hot_produce import (
    ProduceDetail,
    ProducePartition,
    ProduceQuery,
    ProduceResult,
    decode_produce,
    encode_produce_response,
)

__all__ = [
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "Endpoint",
    "FetchDetail",
    "FetchPartition",
    "FetchQuery",
    "FetchResult",
    "LeaderHint",
    "ProduceDetail",
    "ProducePartition",
    "ProduceQuery",
    "ProduceResult",
    "decode_fetch",
    "decode_produce",
    "encode_fetch_response_head",
    "encode_produce_response",
]
