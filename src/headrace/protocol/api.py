"""The registry: API keys, versions and listeners, and the messages that travel inside records and files.

Adding an API or a record is adding its table; this module only gives the tables names to be found by.
"""

from enum import IntEnum

import msgspec

from headrace.protocol.codec import CODECS, Codec, of_kind


class ApiKey(IntEnum):
    """Every API of a Kafka 4.3 broker or controller; keys 4 to 7 left with ZooKeeper mode."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


class Api(msgspec.Struct, frozen=True, gc=False):
    """One API. Produce is advertised from version 0 by Kafka though `min_version` is 3: see `advertised_min`."""

    key: ApiKey
    name: str
    min_version: int
    max_version: int
    latest_stable: int
    flexible_from: int
    listeners: frozenset[str]
    request: Codec
    response: Codec

    @property
    def advertised_min(self) -> int:
        # Old librdkafka takes a broker without Produce v0 for one without Produce (KAFKA-18659).
        return 0 if self.key is ApiKey.PRODUCE else self.min_version

    def request_header_version(self, version: int) -> int:
        return 2 if version >= self.flexible_from else 1

    def response_header_version(self, version: int) -> int:
        # A client that asked with a version the broker lacks must still be able to read the answer.
        return 1 if version >= self.flexible_from and self.key is not ApiKey.API_VERSIONS else 0


def _apis() -> dict[int, Api]:
    apis: dict[int, Api] = {}
    for request in sorted(of_kind("request"), key=lambda c: c.key):
        name = request.name.removesuffix("Request")
        response = CODECS[name + "Response"]
        assert (response.key, response.versions, response.flexible_from) == (
            request.key,
            request.versions,
            request.flexible_from,
        )
        apis[request.key] = Api(
            key=ApiKey(request.key),
            name=name,
            min_version=request.min_version,
            max_version=request.max_version,
            latest_stable=request.max_version - request.header.latest_unstable,
            flexible_from=request.flexible_from,
            listeners=frozenset(request.header.listeners),
            request=request,
            response=response,
        )
    return apis


class RecordCodec(msgspec.Struct, frozen=True, gc=False):
    """A coordinator's record: the codecs of its key and its value (a null value is a tombstone)."""

    kind: int
    key: Codec
    value: Codec


def _coordinator_records(family: str) -> dict[int, RecordCodec]:
    values = {c.key: c for c in of_kind("coordinator-value", (family,))}
    return {c.key: RecordCodec(c.key, c, values[c.key]) for c in of_kind("coordinator-key", (family,))}


API: dict[int, Api] = _apis()

METADATA_RECORDS: dict[int, Codec] = {c.key: c for c in of_kind("metadata", ("metadata_records",))}
REMOTE_LOG_RECORDS: dict[int, Codec] = {c.key: c for c in of_kind("metadata", ("remote_log_records",))}

# By the version number that a coordinator's key starts with.
GROUP_RECORDS: dict[int, RecordCodec] = _coordinator_records("group_records")
TRANSACTION_RECORDS: dict[int, RecordCodec] = _coordinator_records("transaction_records")
SHARE_RECORDS: dict[int, RecordCodec] = _coordinator_records("share_records")
COORDINATOR_RECORDS: dict[str, dict[int, RecordCodec]] = {
    "group": GROUP_RECORDS,
    "transaction": TRANSACTION_RECORDS,
    "share": SHARE_RECORDS,
}

# Messages inside files, control records and group metadata, by name.
DATA: dict[str, Codec] = {c.name: c for c in of_kind("data")}
