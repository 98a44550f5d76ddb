"""Transactions: beginning, writing, ending, and every way to get it wrong."""

from typing import Any

from tests.compat.cases import Talk, case
from tests.compat.raw import batch

INIT, ADD, END, COMMIT = "InitProducerId", "AddPartitionsToTxn", "EndTxn", "TxnOffsetCommit"
PASSING = (14, 15, 16, 51)
"""Errors that go away by themselves: a coordinator is loading, or the transaction before has not ended."""
TRANSACTIONAL = 0x10
CLASSIC_END, BUMPING_END = 4, 5
NO_LONGER_STABLE = 120


def settled(t: Talk, api: str, version: int, **fields: Any) -> Any:
    """The answer once it is not one of the passing errors; where Headrace waits, Kafka has clients ask again."""
    found: list[Any] = []

    def is_settled() -> bool:
        found.append(t.call(api, version, **fields))
        return error_of(found[-1]) not in PASSING

    t.until(is_settled)
    return found[-1]


def ask_settled(t: Talk, **fields: Any) -> Any:
    """The same as a question of the case."""
    answer = settled(t, t.case.api, t.version, **fields)
    t.record(t.case.api, answer)
    return answer


def error_of(answer: Any) -> int:
    """The error of a whole answer, or of the first thing in it."""
    if getattr(answer, "error_code", 0):
        return int(answer.error_code)
    for name in (
        "results_by_topic_v3_and_below",
        "results_by_transaction",
        "topics",
        "coordinators",
        "transaction_states",
    ):
        for one in getattr(answer, name, None) or ():
            for rows in ("results_by_partition", "topic_results", "partitions"):
                for row in getattr(one, rows, None) or ():
                    inner = getattr(row, "results_by_partition", None)
                    row = inner[0] if inner else row
                    code = getattr(row, "partition_error_code", getattr(row, "error_code", 0))
                    return int(code) if not isinstance(row, int) else 0
            return int(getattr(one, "error_code", 0))
    return 0


def producer(t: Talk, label: str = "tx", timeout_ms: int = 60_000) -> tuple[str, Any]:
    """Set-up: a transactional id of this talk's own whose coordinator is ready, and its producer."""
    t.until_producer_ids()  # the very first is 0, which an answer leaves out
    id = t.name(label)
    t.until(lambda: t.call("FindCoordinator", coordinator_keys=[id], key_type=1).coordinators[0].error_code == 0)
    began = settled(
        t, INIT, 4, transactional_id=id, transaction_timeout_ms=timeout_ms, producer_id=-1, producer_epoch=-1
    )
    assert began.error_code == 0, began
    return id, began


def adding(id: str, who: Any, topics: dict[str, list[int]], version: int, verify_only: bool = False) -> dict[str, Any]:
    rows = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
    if version < 4:
        return {
            "v3_and_below_transactional_id": id, "v3_and_below_producer_id": who.producer_id,
            "v3_and_below_producer_epoch": who.producer_epoch, "v3_and_below_topics": rows,
        }  # fmt: skip
    one = {
        "transactional_id": id, "producer_id": who.producer_id, "producer_epoch": who.producer_epoch,
        "verify_only": verify_only, "topics": rows,
    }  # fmt: skip
    return {"transactions": [one]}


def added(t: Talk, id: str, who: Any, topic: str, *partitions: int) -> None:
    """Set-up: a transaction is open with these partitions."""
    answer = settled(t, ADD, 3, **adding(id, who, {topic: list(partitions)}, 3))
    assert error_of(answer) == 0, answer


def written(t: Talk, id: str, who: Any, topic: str, sequence: int = 0, partition: int = 0, values: int = 1) -> None:
    data = batch(
        *[b"v"] * values, producer=(who.producer_id, who.producer_epoch, sequence), attributes=TRANSACTIONAL,
    )  # fmt: skip
    parts = [{"index": partition, "records": data}]
    answer = t.call(
        "Produce", 11, transactional_id=id, acks=-1, timeout_ms=5000,
        topic_data=[{"name": topic, "partition_data": parts}],
    )  # fmt: skip
    (result,) = answer.responses[0].partition_responses
    assert result.error_code == 0, result


class Other:
    """Somebody else's producer id and epoch."""

    def __init__(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch


# InitProducerId


@case("InitProducerId")
def one_producer_after_the_other(t: Talk) -> None:
    id, _ = producer(t)
    for _ in range(2):
        ask_settled(t, transactional_id=id, transaction_timeout_ms=60_000)


@case("InitProducerId")
def while_a_transaction_is_open(t: Talk) -> None:
    topic = t.topic()
    id, first = producer(t)
    added(t, id, first, topic, 0)
    ask_settled(t, transactional_id=id, transaction_timeout_ms=60_000)


@case("InitProducerId", versions=range(3, 6))
def going_on_after_an_error(t: Talk) -> None:
    id, first = producer(t)
    who = {"transactional_id": id, "transaction_timeout_ms": 60_000, "producer_id": first.producer_id}
    ask_settled(t, **who, producer_epoch=0)
    t.note("the same again")
    ask_settled(t, **who, producer_epoch=0)
    ask_settled(t, **who, producer_epoch=1)
    t.note("epochs and ids that are not its own")
    ask_settled(t, **who, producer_epoch=0)
    ask_settled(t, **who, producer_epoch=9)
    ask_settled(t, **(who | {"producer_id": first.producer_id + 1_000_000}), producer_epoch=2)


# AddPartitionsToTxn


@case("AddPartitionsToTxn")
def partitions_added(t: Talk) -> None:
    topic = t.topic(partitions=3)
    id, who = producer(t)
    ask_settled(t, **adding(id, who, {topic: [0, 1]}, t.version))
    ask_settled(t, **adding(id, who, {topic: [1]}, t.version))
    ask_settled(t, **adding(id, who, {topic: [2]}, t.version))


@case("AddPartitionsToTxn")
def partitions_that_do_not_exist(t: Talk) -> None:
    topic = t.topic()
    id, who = producer(t)
    ask_settled(t, **adding(id, who, {topic: [0, 7]}, t.version))
    ask_settled(t, **adding(id, who, {topic: [0], t.name("nowhere"): [0]}, t.version))


@case("AddPartitionsToTxn")
def added_by_others(t: Talk) -> None:
    topic = t.topic()
    id, who = producer(t)
    ask_settled(t, **adding(id, Other(who.producer_id, 5), {topic: [0]}, t.version))
    ask_settled(t, **adding(id, Other(who.producer_id + 1_000_000, 0), {topic: [0]}, t.version))
    ask_settled(t, **adding(t.name("unknown"), who, {topic: [0]}, t.version))
    ask_settled(t, **adding("", who, {topic: [0]}, t.version))


@case("AddPartitionsToTxn", versions=[4, 5])
def only_verified(t: Talk) -> None:
    topic = t.topic(partitions=2)
    id, who = producer(t)
    ask_settled(t, **adding(id, who, {topic: [0, 1]}, t.version, verify_only=True))
    added(t, id, who, topic, 0)
    ask_settled(t, **adding(id, who, {topic: [0, 1]}, t.version, verify_only=True))
    ask_settled(t, **adding(id, Other(who.producer_id, 5), {topic: [0]}, t.version, verify_only=True))
    ask_settled(t, **adding(t.name("unknown"), who, {topic: [0]}, t.version, verify_only=True))


# AddOffsetsToTxn


@case("AddOffsetsToTxn")
def offsets_added(t: Talk) -> None:
    id, who = producer(t)
    group = t.name("group")
    t.until(lambda: t.call("FindCoordinator", coordinator_keys=[group]).coordinators[0].error_code == 0)

    def fields(id: str, producer_id: int, epoch: int) -> dict[str, Any]:
        return {"transactional_id": id, "producer_id": producer_id, "producer_epoch": epoch, "group_id": group}

    ask_settled(t, **fields(id, who.producer_id, who.producer_epoch))
    ask_settled(t, **fields(id, who.producer_id, who.producer_epoch))
    ask_settled(t, **fields(id, who.producer_id, 3))
    ask_settled(t, **fields(id, who.producer_id + 1_000_000, 0))
    ask_settled(t, **fields(t.name("unknown"), who.producer_id, 0))
    ask_settled(t, **fields("", who.producer_id, 0))


# EndTxn


def ending(id: str, who: Any, committed: bool, epoch: int | None = None) -> dict[str, Any]:
    return {
        "transactional_id": id, "producer_id": who.producer_id,
        "producer_epoch": who.producer_epoch if epoch is None else epoch, "committed": committed,
    }  # fmt: skip


@case("EndTxn")
def without_a_beginning(t: Talk) -> None:
    id, who = producer(t)
    ask_settled(t, **ending(id, who, True))
    ask_settled(t, **ending(id, who, False))


@case("EndTxn")
def committed_and_asked_again(t: Talk) -> None:
    topic = t.topic()
    id, who = producer(t)
    added(t, id, who, topic, 0)
    ask_settled(t, **ending(id, who, True))
    t.note("again")
    ask_settled(t, **ending(id, who, True))
    t.note("the other way")
    ask_settled(t, **ending(id, who, False))


@case("EndTxn")
def aborted_and_asked_again(t: Talk) -> None:
    topic = t.topic()
    id, who = producer(t)
    added(t, id, who, topic, 0)
    ask_settled(t, **ending(id, who, False))
    t.note("again")
    ask_settled(t, **ending(id, who, False))
    t.note("the other way")
    ask_settled(t, **ending(id, who, True))


@case("EndTxn")
def heard_again_in_the_next_transaction(t: Talk) -> None:
    """Nobody can tell by the classic protocol: it ends what is open by then. From v5 on each has its own epoch."""
    topic = t.topic(partitions=2)
    id, who = producer(t)
    added(t, id, who, topic, 0)
    first = ending(id, who, True)
    ended = settled(t, END, t.version, **first)
    now = Other(ended.producer_id, ended.producer_epoch) if t.version > CLASSIC_END else who
    added(t, id, now, topic, 1)
    t.note("what ended the first, again")
    ask_settled(t, **first)
    t.note("what ends the second")
    ask_settled(t, **ending(id, now, False))


@case("EndTxn")
def ended_by_others(t: Talk) -> None:
    topic = t.topic()
    id, who = producer(t)
    added(t, id, who, topic, 0)
    ask_settled(t, **ending(id, who, True, epoch=7))
    ask_settled(t, **ending(id, Other(who.producer_id + 1_000_000, 0), True))
    ask_settled(t, **ending(t.name("unknown"), who, True))
    ask_settled(t, **ending("", who, True))
    ask_settled(t, **ending(id, who, True))


# TxnOffsetCommit


@case("TxnOffsetCommit")
def offsets_within_a_transaction(t: Talk) -> None:
    topic = t.topic()
    id, who = producer(t)
    group = t.name("group")
    t.until(lambda: t.call("FindCoordinator", coordinator_keys=[group]).coordinators[0].error_code == 0)

    def fields(name: str, who: Any, partition: int = 0) -> dict[str, Any]:
        rows = [{"partition_index": partition, "committed_offset": 5, "committed_metadata": "m"}]
        found = {
            "transactional_id": id, "group_id": group, "producer_id": who.producer_id,
            "producer_epoch": who.producer_epoch, "topics": [{"name": name, "partitions": rows}],
        }  # fmt: skip
        return found

    t.note("not in the transaction yet")
    ask_settled(t, **fields(topic, who))
    settled(
        t, "AddOffsetsToTxn", 3, transactional_id=id, producer_id=who.producer_id, producer_epoch=who.producer_epoch,
        group_id=group,
    )  # fmt: skip
    ask_settled(t, **fields(topic, who))
    ask_settled(t, **fields(topic, who, partition=9))
    ask_settled(t, **fields(t.name("nowhere"), who))
    t.note("pending, then committed")
    wanted = [{"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}]
    t.record("OffsetFetch", t.call("OffsetFetch", 9, groups=wanted, require_stable=True))
    t.record("OffsetFetch", t.call("OffsetFetch", 9, groups=wanted, require_stable=False))
    settled(t, END, CLASSIC_END, **ending(id, who, True))
    t.until(
        lambda: (
            t.call("OffsetFetch", 9, groups=wanted, require_stable=True).groups[0].topics[0].partitions[0].error_code
            == 0
        )
    )
    t.record("OffsetFetch", t.call("OffsetFetch", 9, groups=wanted, require_stable=True))


@case("TxnOffsetCommit")
def offsets_of_others(t: Talk) -> None:
    """Of a group that is not in the transaction, and by somebody whose transaction it is not: nothing is held."""
    topic = t.topic()
    id, who = producer(t)
    group, other = t.name("group"), t.name("another")
    t.until(
        lambda: (
            not any(one.error_code for one in t.call("FindCoordinator", coordinator_keys=[group, other]).coordinators)
        )
    )
    settled(
        t, "AddOffsetsToTxn", 3, transactional_id=id, producer_id=who.producer_id, producer_epoch=who.producer_epoch,
        group_id=group,
    )  # fmt: skip

    def fields(group: str, who: Any, id: str = id) -> dict[str, Any]:
        rows = [{"partition_index": 0, "committed_offset": 5, "committed_metadata": None}]
        return {
            "transactional_id": id, "group_id": group, "producer_id": who.producer_id,
            "producer_epoch": who.producer_epoch, "topics": [{"name": topic, "partitions": rows}],
        }  # fmt: skip

    t.note("another epoch, another producer, an id that nobody has, no id")
    ask_settled(t, **fields(group, Other(who.producer_id, who.producer_epoch + 5)))
    ask_settled(t, **fields(group, Other(who.producer_id + 1_000_000, 0)))
    ask_settled(t, **fields(group, who, id=t.name("unknown")))
    ask_settled(t, **fields(group, who, id=""))
    t.note("nothing is pending; another group, which joins from version 5 on")
    wanted = [{"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}]
    t.until(lambda: t.call("OffsetFetch", 9, groups=wanted, require_stable=True).groups[0].error_code == 0)
    t.record("OffsetFetch", t.call("OffsetFetch", 9, groups=wanted, require_stable=True))
    ask_settled(t, **fields(other, who))
    t.note("after the end")
    settled(t, END, CLASSIC_END, **ending(id, who, False))
    ask_settled(t, **fields(group, who))


# Produce and Fetch


@case("Produce")
def within_a_transaction(t: Talk) -> None:
    topic = t.topic(partitions=2)
    id, who = producer(t)

    def fields(sequence: int, epoch: int | None = None, partition: int = 0, id: str | None = id) -> dict[str, Any]:
        data = batch(
            b"v", producer=(who.producer_id, who.producer_epoch if epoch is None else epoch, sequence),
            attributes=TRANSACTIONAL,
        )  # fmt: skip
        topics = {"name": topic} if t.version < 13 else {"topic_id": t.id_of()}
        parts = [{"index": partition, "records": data}]
        return {
            "transactional_id": id, "acks": -1, "timeout_ms": 5000, "topic_data": [topics | {"partition_data": parts}],
        }  # fmt: skip

    t.note("not in the transaction, which from version 12 on it then is")
    t.ask(**fields(0))
    added(t, id, who, topic, 0)
    t.ask(**fields(0))
    t.note("a duplicate, a gap, an older epoch, another partition, no id")
    t.ask(**fields(0))
    t.ask(**fields(7))
    t.ask(**fields(1, epoch=-1))
    t.ask(**fields(0, partition=1))
    t.ask(**fields(1, id=None))


@case("Fetch", versions=range(4, 19))
def of_aborted_transactions(t: Talk) -> None:
    topic = t.topic()
    id, who = producer(t)
    added(t, id, who, topic, 0)
    written(t, id, who, topic, values=2)
    settled(t, END, CLASSIC_END, **ending(id, who, False))
    t.until(lambda: stable(t, topic) == 3)
    added(t, id, who, topic, 0)
    written(t, id, who, topic, sequence=2, values=1)
    parts = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "log_start_offset": -1}]
    topics = {"topic": topic} if t.version < 13 else {"topic_id": t.id_of()}
    for isolation in (0, 1):
        t.ask(
            replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=isolation, session_id=0,
            session_epoch=-1, topics=[topics | {"partitions": parts}],
        )  # fmt: skip
    settled(t, END, CLASSIC_END, **ending(id, who, True))


def stable(t: Talk, topic: str) -> int:
    asked = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
    answer = t.call("ListOffsets", 6, replica_id=-1, isolation_level=1, topics=asked)
    return int(answer.topics[0].partitions[0].offset)


# Looking at them


@case("DescribeTransactions")
def described(t: Talk) -> None:
    topic = t.topic(partitions=2)
    id, who = producer(t)
    t.ask(transactional_ids=[id])
    added(t, id, who, topic, 1)
    t.ask(transactional_ids=[id, t.name("unknown")])
    settled(t, END, CLASSIC_END, **ending(id, who, True))
    t.until(
        lambda: (
            t.call("DescribeTransactions", transactional_ids=[id]).transaction_states[0].transaction_state
            == "CompleteCommit"
        )
    )
    t.ask(transactional_ids=[id])
    t.ask(transactional_ids=[""])
    t.ask(transactional_ids=[])


@case("ListTransactions")
def listed(t: Talk) -> None:
    topic = t.topic()
    id, who = producer(t)
    added(t, id, who, topic, 0)

    def ask(**fields: Any) -> None:
        t.ask(mine="transaction_states", **fields)

    ask(producer_id_filters=[who.producer_id])
    ask(producer_id_filters=[who.producer_id], state_filters=["Ongoing"])
    ask(producer_id_filters=[who.producer_id], state_filters=["Empty", "Nonsense"])
    ask(producer_id_filters=[who.producer_id + 1_000_000])
    if t.version >= 1:
        ask(producer_id_filters=[who.producer_id], duration_filter=3_600_000)
    if t.version >= 2:
        ask(producer_id_filters=[who.producer_id], transactional_id_pattern=id[:5] + ".*")
        ask(producer_id_filters=[who.producer_id], transactional_id_pattern="x")
        ask(producer_id_filters=[who.producer_id], transactional_id_pattern="(")
    settled(t, END, CLASSIC_END, **ending(id, who, True))


# WriteTxnMarkers


@case("WriteTxnMarkers")
def markers(t: Talk) -> None:
    topic = t.topic()
    id, who = producer(t)
    added(t, id, who, topic, 0)
    written(t, id, who, topic)

    def fields(epoch: int, coordinator_epoch: int, name: str = topic, partition: int = 0) -> dict[str, Any]:
        one = {
            "producer_id": who.producer_id, "producer_epoch": epoch, "transaction_result": False,
            "topics": [{"name": name, "partition_indexes": [partition]}], "coordinator_epoch": coordinator_epoch,
        }  # fmt: skip
        return {"markers": [one]}

    t.ask(**fields(0, 5, name=t.name("nowhere")))
    t.ask(**fields(0, 5, partition=9))
    t.note("of an older epoch")
    t.ask(**fields(-1, 5))
    t.note("by a coordinator, and by the one before it")
    t.ask(**fields(0, 5))
    t.ask(**fields(0, 4))
    t.ask(**fields(0, 5))
    t.ask(markers=[])
