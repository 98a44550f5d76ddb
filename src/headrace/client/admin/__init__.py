"""Administration from outside: topics, options, groups, transactions, replicas, disks, the quorum."""

from typing import TYPE_CHECKING

from headrace.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from headrace.client.admin.admin import (
        EARLIEST as EARLIEST,
        LATEST as LATEST,
        MAX_TIMESTAMP as MAX_TIMESTAMP,
        Admin as Admin,
        ConfigEntry as ConfigEntry,
        ConfigSource as ConfigSource,
        CreatedTopic as CreatedTopic,
        FoundOffset as FoundOffset,
        LogDir as LogDir,
        ReplicaSize as ReplicaSize,
        Resource as Resource,
    )
    from headrace.client.admin.disk_space import DiskSpace as DiskSpace, Fill as Fill, disk_space_of as disk_space_of
    from headrace.client.admin.groups import (
        Committed as Committed,
        Group as Group,
        Groups as Groups,
        Lag as Lag,
        ListedGroup as ListedGroup,
        TopicPartition as TopicPartition,
    )
    from headrace.client.admin.operations import (
        ClusterBroker as ClusterBroker,
        Move as Move,
        Operations as Operations,
        Quorum as Quorum,
        QuorumReplica as QuorumReplica,
    )
    from headrace.client.admin.transactions import (
        ListedTransaction as ListedTransaction,
        OpenTransaction as OpenTransaction,
        Transaction as Transaction,
        Transactions as Transactions,
    )
else:
    __getattr__, __dir__, __all__ = lazy_exports(
        __name__,
        {
            "admin": [
                "EARLIEST",
                "LATEST",
                "MAX_TIMESTAMP",
                "Admin",
                "ConfigEntry",
                "ConfigSource",
                "CreatedTopic",
                "FoundOffset",
                "LogDir",
                "ReplicaSize",
                "Resource",
            ],
            "disk_space": ["DiskSpace", "Fill", "disk_space_of"],
            "groups": ["Committed", "Group", "Groups", "Lag", "ListedGroup", "TopicPartition"],
            "operations": ["ClusterBroker", "Move", "Operations", "Quorum", "QuorumReplica"],
            "transactions": ["ListedTransaction", "OpenTransaction", "Transaction", "Transactions"],
        },
    )
