"""From an address to an answer: connections, a cluster's leaders, and why a connection did not come about."""

from typing import TYPE_CHECKING

from headrace.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from headrace.client.net.address import (
        DEFAULT_BOOTSTRAP as DEFAULT_BOOTSTRAP,
        Address as Address,
        format_address as format_address,
        parse_address as parse_address,
        parse_bootstrap as parse_bootstrap,
    )
    from headrace.client.net.background import LoopThread as LoopThread
    from headrace.client.net.cluster import (
        Broker as Broker,
        Cluster as Cluster,
        Partition as Partition,
        Topic as Topic,
        is_retriable as is_retriable,
    )
    from headrace.client.net.connection import Connection as Connection
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "address": ["DEFAULT_BOOTSTRAP", "Address", "format_address", "parse_address", "parse_bootstrap"],
            "background": ["LoopThread"],
            "cluster": ["Broker", "Cluster", "Partition", "Topic", "is_retriable"],
            "connection": ["Connection"],
        },
    )
