"""Kafka's error table: one row per code a client may see, with Kafka's number, name and retriability.

Inside Headrace an error is a `KafkaError`; only handlers turn it into an error code on the wire.
"""

from enum import IntEnum

RETRIABLE = True
FATAL = False


class Err(IntEnum):
    """An error code of the protocol. `retriable` is what clients assume; `text` is for people."""

    retriable: bool
    text: str

    # The defaults are for type checkers, to whom Err(7), the row of a number, is a call of this.
    def __new__(cls, code: int, retriable: bool = FATAL, text: str = "") -> "Err":
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.text = text
        return member

    UNKNOWN_SERVER_ERROR = -1, FATAL, "The server failed in a way it did not foresee; its log says more."
    NONE = 0, FATAL, "No error."
    OFFSET_OUT_OF_RANGE = 1, FATAL, "The offset lies outside what this partition holds."
    CORRUPT_MESSAGE = (
        2,
        RETRIABLE,
        "The batch is damaged: wrong checksum, wrong size, or a missing key on a compacted topic.",
    )
    UNKNOWN_TOPIC_OR_PARTITION = 3, RETRIABLE, "There is no such topic or partition here."
    INVALID_FETCH_SIZE = 4, FATAL, "The fetch size makes no sense."
    LEADER_NOT_AVAILABLE = 5, RETRIABLE, "The partition has no leader at the moment."
    NOT_LEADER_OR_FOLLOWER = 6, RETRIABLE, "This broker does not lead the partition, or holds no replica of it."
    REQUEST_TIMED_OUT = 7, RETRIABLE, "The request did not finish in its time."
    BROKER_NOT_AVAILABLE = 8, FATAL, "The broker cannot be reached."
    REPLICA_NOT_AVAILABLE = 9, RETRIABLE, "The replica asked for is not ready on this broker."
    MESSAGE_TOO_LARGE = 10, FATAL, "The batch is larger than the broker or topic allows."
    STALE_CONTROLLER_EPOCH = 11, FATAL, "Another controller has taken over since."
    OFFSET_METADATA_TOO_LARGE = 12, FATAL, "The text committed with the offset is too long."
    NETWORK_EXCEPTION = 13, RETRIABLE, "The connection closed before an answer came."
    COORDINATOR_LOAD_IN_PROGRESS = 14, RETRIABLE, "The coordinator is still loading its state."
    COORDINATOR_NOT_AVAILABLE = 15, RETRIABLE, "No coordinator is available at the moment."
    NOT_COORDINATOR = 16, RETRIABLE, "This broker is not the coordinator asked for."
    INVALID_TOPIC_EXCEPTION = 17, FATAL, "The topic's name is not valid, or the topic cannot be used like this."
    RECORD_LIST_TOO_LARGE = 18, FATAL, "The batch is larger than one log segment."
    NOT_ENOUGH_REPLICAS = 19, RETRIABLE, "Refused: fewer replicas are in sync than the topic requires."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = (
        20,
        RETRIABLE,
        "Written, but fewer replicas were in sync afterwards than the topic requires.",
    )
    INVALID_REQUIRED_ACKS = 21, FATAL, "acks must be -1, 0 or 1."
    ILLEGAL_GENERATION = 22, FATAL, "The group has moved on to another generation."
    INCONSISTENT_GROUP_PROTOCOL = 23, FATAL, "The member's protocols do not fit the group's, or it offered none."
    INVALID_GROUP_ID = 24, FATAL, "The group id is not valid."
    UNKNOWN_MEMBER_ID = 25, FATAL, "The group has no such member."
    INVALID_SESSION_TIMEOUT = (
        26,
        FATAL,
        "The session timeout lies outside group.min.session.timeout.ms and group.max.session.timeout.ms.",
    )
    REBALANCE_IN_PROGRESS = 27, FATAL, "The group is rebalancing: join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, FATAL, "The committed offset's data is too large."
    TOPIC_AUTHORIZATION_FAILED = 29, FATAL, "Not allowed on this topic."
    GROUP_AUTHORIZATION_FAILED = 30, FATAL, "Not allowed on this group."
    CLUSTER_AUTHORIZATION_FAILED = 31, FATAL, "Not allowed on this cluster."
    INVALID_TIMESTAMP = 32, FATAL, "A record's timestamp lies outside the bounds set for the topic."
    UNSUPPORTED_SASL_MECHANISM = 33, FATAL, "The SASL mechanism is not offered here."
    ILLEGAL_SASL_STATE = 34, FATAL, "The request does not belong at this point of the SASL exchange."
    UNSUPPORTED_VERSION = 35, FATAL, "This version of the API is not supported."
    TOPIC_ALREADY_EXISTS = 36, FATAL, "A topic of this name exists already."
    INVALID_PARTITIONS = 37, FATAL, "The number of partitions is not valid."
    INVALID_REPLICATION_FACTOR = 38, FATAL, "The replication factor is below one, or there are too few brokers for it."
    INVALID_REPLICA_ASSIGNMENT = 39, FATAL, "The replica assignment is not valid."
    INVALID_CONFIG = 40, FATAL, "The configuration is not valid."
    NOT_CONTROLLER = 41, RETRIABLE, "This node is not the active controller."
    INVALID_REQUEST = 42, FATAL, "The request contradicts itself or the protocol."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, FATAL, "The record format in use cannot do this."
    POLICY_VIOLATION = 44, FATAL, "A configured policy forbids the request."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, FATAL, "The producer's sequence number leaves a gap or goes back."
    DUPLICATE_SEQUENCE_NUMBER = 46, FATAL, "The producer's sequence number was seen before."
    INVALID_PRODUCER_EPOCH = 47, FATAL, "The producer writes with an old epoch."
    INVALID_TXN_STATE = 48, FATAL, "The transaction's state does not allow this."
    INVALID_PRODUCER_ID_MAPPING = 49, FATAL, "The transactional id is bound to another producer id."
    INVALID_TRANSACTION_TIMEOUT = 50, FATAL, "The transaction timeout exceeds transaction.max.timeout.ms."
    CONCURRENT_TRANSACTIONS = 51, RETRIABLE, "Another operation on this transaction has not finished."
    TRANSACTION_COORDINATOR_FENCED = 52, FATAL, "The marker comes from a coordinator that has been replaced."
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, FATAL, "Not allowed on this transactional id."
    SECURITY_DISABLED = 54, FATAL, "No authorizer is configured."
    OPERATION_NOT_ATTEMPTED = 55, FATAL, "Not tried, because another part of the request failed."
    KAFKA_STORAGE_ERROR = 56, RETRIABLE, "The disk failed under this log."
    LOG_DIR_NOT_FOUND = 57, FATAL, "The broker has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, FATAL, "The credentials were refused."
    UNKNOWN_PRODUCER_ID = 59, FATAL, "The broker remembers nothing of this producer; its last records may have expired."
    REASSIGNMENT_IN_PROGRESS = 60, FATAL, "The partition is being reassigned."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, FATAL, "Delegation tokens are not enabled."
    DELEGATION_TOKEN_NOT_FOUND = 62, FATAL, "There is no such delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, FATAL, "The principal neither owns nor may renew the token."
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        FATAL,
        "Delegation tokens need an authenticated channel that is not itself authenticated by a token.",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, FATAL, "Not allowed on this delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, FATAL, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, FATAL, "This type of principal is not supported."
    NON_EMPTY_GROUP = 68, FATAL, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, FATAL, "There is no such group."
    FETCH_SESSION_ID_NOT_FOUND = 70, RETRIABLE, "There is no such fetch session."
    INVALID_FETCH_SESSION_EPOCH = 71, RETRIABLE, "The fetch session is at another epoch."
    LISTENER_NOT_FOUND = 72, RETRIABLE, "The leader has no listener of the name this request came in on."
    TOPIC_DELETION_DISABLED = 73, FATAL, "Deleting topics is switched off."
    FENCED_LEADER_EPOCH = 74, RETRIABLE, "The request's leader epoch is older than the broker's."
    UNKNOWN_LEADER_EPOCH = 75, RETRIABLE, "The request's leader epoch is newer than the broker's."
    UNSUPPORTED_COMPRESSION_TYPE = (
        76,
        FATAL,
        "The client's protocol version cannot carry the partition's compression type.",
    )
    STALE_BROKER_EPOCH = 77, FATAL, "The broker has registered again under a newer epoch."
    OFFSET_NOT_AVAILABLE = 78, RETRIABLE, "The new leader does not yet know its high watermark."
    MEMBER_ID_REQUIRED = 79, FATAL, "Join again with the member id given in this answer."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, RETRIABLE, "The preferred leader cannot lead at the moment."
    GROUP_MAX_SIZE_REACHED = 81, FATAL, "The group is full."
    FENCED_INSTANCE_ID = 82, FATAL, "Another member has taken this group.instance.id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, RETRIABLE, "No replica is eligible to lead the partition."
    ELECTION_NOT_NEEDED = 84, RETRIABLE, "The partition's leader is the wanted one already."
    NO_REASSIGNMENT_IN_PROGRESS = 85, FATAL, "The partition is not being reassigned."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, FATAL, "Offsets of a topic cannot be deleted while the group subscribes to it."
    INVALID_RECORD = 87, FATAL, "A record was refused by the broker's checks."
    UNSTABLE_OFFSET_COMMIT = 88, RETRIABLE, "Offsets of an open transaction are pending."
    THROTTLING_QUOTA_EXCEEDED = 89, RETRIABLE, "The quota is used up for now."
    PRODUCER_FENCED = 90, FATAL, "A newer producer has taken this transactional id."
    RESOURCE_NOT_FOUND = 91, FATAL, "The request names something that does not exist."
    DUPLICATE_RESOURCE = 92, FATAL, "The request names the same thing twice."
    UNACCEPTABLE_CREDENTIAL = 93, FATAL, "The credential does not meet the requirements."
    INCONSISTENT_VOTER_SET = 94, FATAL, "Sender or receiver is not among the expected voters."
    INVALID_UPDATE_VERSION = 95, FATAL, "The version of the update is not valid."
    FEATURE_UPDATE_FAILED = 96, FATAL, "The features could not be updated."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, FATAL, "The principal of a forwarded request could not be read."
    SNAPSHOT_NOT_FOUND = 98, FATAL, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, FATAL, "The position lies outside the snapshot."
    UNKNOWN_TOPIC_ID = 100, RETRIABLE, "There is no topic with this id here."
    DUPLICATE_BROKER_REGISTRATION = 101, FATAL, "Another live broker has registered with this id."
    BROKER_ID_NOT_REGISTERED = 102, FATAL, "No broker has registered with this id."
    INCONSISTENT_TOPIC_ID = 103, RETRIABLE, "The log belongs to another topic id than the request's."
    INCONSISTENT_CLUSTER_ID = 104, FATAL, "The request is meant for another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, FATAL, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, RETRIABLE, "The fetch session mixes topic names and topic ids."
    INELIGIBLE_REPLICA = 107, FATAL, "The new in-sync set names a replica that may not join."
    NEW_LEADER_ELECTED = 108, FATAL, "The partition was altered, and its leader changed with it."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, FATAL, "The offset is only in tiered storage."
    FENCED_MEMBER_EPOCH = 110, FATAL, "The member is fenced: give up all partitions and join again."
    UNRELEASED_INSTANCE_ID = 111, FATAL, "Another member still uses this instance id and must leave first."
    UNSUPPORTED_ASSIGNOR = 112, FATAL, "The group does not support this assignor or its version."
    STALE_MEMBER_EPOCH = 113, FATAL, "The member's epoch is old: take the new one from a heartbeat and try again."
    MISMATCHED_ENDPOINT_TYPE = 114, FATAL, "The request reached the wrong type of endpoint."
    UNSUPPORTED_ENDPOINT_TYPE = 115, FATAL, "This type of endpoint is not supported."
    UNKNOWN_CONTROLLER_ID = 116, FATAL, "There is no controller with this id."
    UNKNOWN_SUBSCRIPTION_ID = 117, FATAL, "The telemetry subscription id is wrong or outdated."
    TELEMETRY_TOO_LARGE = 118, FATAL, "The telemetry pushed is larger than the broker accepts."
    INVALID_REGISTRATION = 119, FATAL, "The controller refused the broker's registration."
    TRANSACTION_ABORTABLE = 120, FATAL, "The transaction failed; abort it and the transactional id can be used again."
    INVALID_RECORD_STATE = 121, FATAL, "The record is in a state that cannot be acknowledged like this."
    SHARE_SESSION_NOT_FOUND = 122, RETRIABLE, "There is no such share session."
    INVALID_SHARE_SESSION_EPOCH = 123, RETRIABLE, "The share session is at another epoch."
    FENCED_STATE_EPOCH = 124, FATAL, "The share group's state is at another epoch."
    INVALID_VOTER_KEY = 125, FATAL, "The voter key is not the receiver's."
    DUPLICATE_VOTER = 126, FATAL, "The voter belongs to the quorum already."
    VOTER_NOT_FOUND = 127, FATAL, "The voter does not belong to the quorum."
    INVALID_REGULAR_EXPRESSION = 128, FATAL, "The regular expression is not valid."
    REBOOTSTRAP_REQUIRED = 129, FATAL, "The client's view is stale: start again from its bootstrap servers."
    STREAMS_INVALID_TOPOLOGY = 130, FATAL, "The streams topology is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, FATAL, "The streams topology's epoch is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, FATAL, "A newer epoch of the streams topology exists."
    SHARE_SESSION_LIMIT_REACHED = 133, RETRIABLE, "No more share sessions can be opened."


class KafkaError(Exception):
    """A named error on its way to a client. `message` is None when the code says it all."""

    error: Err
    message: str | None

    def __init__(self, error: Err, message: str | None = None) -> None:
        super().__init__(error, message)
        self.error = error
        self.message = message

    def __str__(self) -> str:
        return f"{self.error.name}: {self.error.text if self.message is None else self.message}"
