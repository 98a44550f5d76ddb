"""What an error means for a batch and its producer: send again, number afresh, give the batch up, or all of it."""

from headrace.client.errors import (
    BrokerUnreachable,
    ClientError,
    ConnectionLost,
    RequestFailed,
    RequestTimedOut,
    SecurityFailed,
)
from headrace.client.produce.partition_queue import QueuedBatch
from headrace.client.produce.transactions import ProducerTransactions, Severity
from headrace.errors import Err

TOO_LARGE = frozenset({Err.MESSAGE_TOO_LARGE, Err.RECORD_LIST_TOO_LARGE})
FORGOTTEN = frozenset({Err.UNKNOWN_PRODUCER_ID, Err.INVALID_PRODUCER_ID_MAPPING, Err.OUT_OF_ORDER_SEQUENCE_NUMBER})
"""At the head of a partition's queue: the broker no longer knows what this producer has written."""
FENCED = frozenset({Err.INVALID_PRODUCER_EPOCH, Err.PRODUCER_FENCED, Err.CLUSTER_AUTHORIZATION_FAILED})


TRANSACTION_ATTEMPTS = 5


def may_retry(
    batch: QueuedBatch,
    error: ClientError,
    *,
    retries: int,
    idempotent: bool,
    transactions: ProducerTransactions | None,
) -> bool:
    """Whether a batch is worth sending again, after whatever its error needs to be cured.

    Within a transaction the producer's epoch may not be bumped: in another one it would not be in the transaction.
    """
    if isinstance(error, RequestFailed):
        if error.error in TOO_LARGE:
            return batch.count > 1
        if error.error in FORGOTTEN:
            return idempotent and transactions is None
        if error.error is Err.INVALID_TXN_STATE and transactions is not None and transactions.steps.is_version_2:
            # The first batch may come while the end of the last transaction is still being written to its partition. It
            # was refused whole, and joins its transaction when sent again.
            return batch.attempts <= TRANSACTION_ATTEMPTS
        curable = error.error.retriable or error.error is Err.BROKER_NOT_AVAILABLE
    else:
        curable = isinstance(error, ConnectionLost | RequestTimedOut | BrokerUnreachable)
    return curable and batch.attempts <= retries


def explained(error: ClientError, what: str, batch: QueuedBatch) -> ClientError:
    """The error with what to do about it, where the broker's words do not say that."""
    if isinstance(error, RequestFailed) and error.error in TOO_LARGE and batch.count == 1:
        message = f"a record of {len(batch.view)} bytes is larger than the topic takes: raise its max.message.bytes"
        return RequestFailed(what, error.error, message)
    return error


def ends_all(error: ClientError, transactions: ProducerTransactions | None) -> bool:
    """Whether no other batch of this producer can fare better."""
    if transactions is not None:
        return transactions.steps.failed(error, by_coordinator=False) is Severity.FATAL
    return isinstance(error, SecurityFailed) or (isinstance(error, RequestFailed) and error.error in FENCED)
