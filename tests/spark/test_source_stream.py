"""Streams: where batches begin and end under each option, changes of topics while a query runs or rests, and
progress."""

import asyncio
import json
import pickle
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from headrace.client.admin.groups import Groups
from headrace.spark.source.lookup import Lookup
from headrace.spark.source.offsets import from_json
from headrace.spark.source.schema import source_schema
from headrace.spark.source.stream import HeadraceStreamReader
from headrace.testing.broker import TestBroker
from tests.spark.patience import run_to_end
from tests.spark.source_data import T0, admin, committed, groups, make, put_numbers


@pytest.fixture(scope="module")
def broker() -> Iterator[TestBroker]:
    with TestBroker() as running:
        yield running


@pytest.fixture
def topic(broker: TestBroker, request: pytest.FixtureRequest) -> str:
    """A topic of the test's own with two partitions, 100 numbers in the first and 50 in the second."""
    name = str(request.node.name).replace("[", "-").replace("]", "")
    make(broker.bootstrap, name, 2)
    put_numbers(broker.bootstrap, name, 0, range(100), per_batch=25)
    put_numbers(broker.bootstrap, name, 1, range(1000, 1050), per_batch=25)
    return name


def reader(broker: TestBroker, subscribe: str | None = None, **options: str) -> HeadraceStreamReader:
    """What Spark's driver has of a running query."""
    given = {"kafka.bootstrap.servers": broker.bootstrap, "fetchOffset.retryIntervalMs": "10"}
    given |= {"subscribe": subscribe} if subscribe else {}
    given |= {name.replace("__", "."): value for name, value in options.items()}
    return HeadraceStreamReader(source_schema(given), given)


class Engine:
    """Calls a reader as Spark's micro-batches do, process after process over the same checkpoint, AvailableNow."""

    def __init__(self, broker: TestBroker, topic: str | None) -> None:
        self.broker, self.topic = broker, topic
        self.done: dict[str, Any] | None = None

    def run(self, **options: str) -> list[list[int]]:
        """The numbers of each batch."""
        given: dict[str, Any] = {"subscribe": self.topic, "startingOffsets": "earliest"} | options
        stream = reader(self.broker, **given)
        stream.prepareForTriggerAvailableNow()
        found: list[list[int]] = []
        try:
            while True:
                start = stream.initialOffset() if self.done is None else self.done
                end = json.loads(json.dumps(stream.latestOffset(start, stream.getDefaultReadLimit())))
                if end == self.done:
                    return found
                parts = pickle.loads(pickle.dumps(stream.partitions(start, end)))
                tasks = pickle.loads(pickle.dumps(stream))
                batches = [batch for part in parts for batch in tasks.read(part)]
                found.append(sorted(int(value) for batch in batches for value in batch["value"].to_pylist()))
                self.done = end
        finally:
            stream.stop()


def run(spark: SparkSession, broker: TestBroker, topic: str, folder: Path, **options: str) -> list[list[int]]:
    """One run of a real query, until everything there is has been read: the numbers of each batch."""
    return list(batches_of(spark, broker, topic, folder, {"availableNow": True}, **options).values())


def batches_of(
    spark: SparkSession, broker: TestBroker, topic: str, folder: Path, trigger: dict[str, Any], **options: str
) -> dict[int, list[int]]:
    """One run of a real query, until its trigger ends it: the numbers of each batch that it made or repeated."""
    found: dict[int, list[int]] = {}
    given = {"subscribe": topic, "startingOffsets": "earliest"} | options
    stream = (
        spark.readStream.format("headrace").option("kafka.bootstrap.servers", broker.bootstrap).options(**given).load()
    )

    def take(frame: DataFrame, number: int) -> None:
        found[number] = sorted(int(row["value"]) for row in frame.select("value").collect())

    query = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(folder)).trigger(**trigger)
    run_to_end(query.start)
    return found


@pytest.fixture
def engine(broker: TestBroker, topic: str) -> Engine:
    return Engine(broker, topic)


def flat(batches: Iterable[Iterable[int]]) -> list[int]:
    return sorted(number for batch in batches for number in batch)


def test_a_real_query_reads_everything_once_in_limited_batches_and_then_what_is_new(
    spark: SparkSession, broker: TestBroker, topic: str, tmp_path: Path
) -> None:
    batches = run(spark, broker, topic, tmp_path / "c", maxOffsetsPerTrigger="60")
    assert flat(batches) == [*range(100), *range(1000, 1050)]
    assert [len(batch) for batch in batches if batch] == [60, 60, 30]
    put_numbers(broker.bootstrap, topic, 0, range(100, 110))
    assert flat(run(spark, broker, topic, tmp_path / "c")) == list(range(100, 110))
    # The last batch too, though Spark's AvailableNow never calls commit() for it.
    assert committed(broker.bootstrap, f"spark-kafka-source-{topic}") == {(topic, 0): 110, (topic, 1): 50}


def test_everything_once_and_then_only_what_is_new(engine: Engine, broker: TestBroker, topic: str) -> None:
    assert flat(engine.run(minPartitions="7")) == [*range(100), *range(1000, 1050)]
    assert flat(engine.run()) == []
    put_numbers(broker.bootstrap, topic, 0, range(100, 110))
    assert flat(engine.run(maxOffsetsPerTrigger="3")) == list(range(100, 110))
    assert committed(broker.bootstrap, f"spark-kafka-source-{topic}") == {(topic, 0): 110, (topic, 1): 50}


def test_partitions_added_between_runs_are_read_from_their_beginning(
    engine: Engine, broker: TestBroker, topic: str
) -> None:
    engine.run(startingOffsets="earliest")
    admin(broker.bootstrap, lambda client: client.create_partitions(topic, 4))
    put_numbers(broker.bootstrap, topic, 3, range(5000, 5010))
    assert flat(engine.run()) == list(range(5000, 5010))
    put_numbers(broker.bootstrap, topic, 2, range(6000, 6003))
    put_numbers(broker.bootstrap, topic, 3, range(5010, 5011))
    assert flat(engine.run(maxOffsetsPerTrigger="2")) == [5010, 6000, 6001, 6002]


def test_a_topic_made_anew_fails_or_goes_on(engine: Engine, broker: TestBroker, topic: str) -> None:
    engine.run()
    admin(broker.bootstrap, lambda client: client.delete_topic(topic))
    _make_again(broker, topic)
    put_numbers(broker.bootstrap, topic, 0, range(7))
    with pytest.raises(Exception, match=r"was read to 100 and ends at 7 now.*failOnDataLoss to false"):
        engine.run(fetchOffset__numRetries="0")
    assert flat(engine.run(failOnDataLoss="false", fetchOffset__numRetries="0")) == list(range(7))
    put_numbers(broker.bootstrap, topic, 0, range(7, 9))
    assert flat(engine.run()) == [7, 8]


def test_a_topic_that_is_gone_fails_or_is_let_go(engine: Engine, broker: TestBroker, topic: str) -> None:
    make(broker.bootstrap, topic + "-stays")
    both = f"{topic},{topic}-stays"
    put_numbers(broker.bootstrap, topic + "-stays", 0, range(3))
    engine.run(subscribe=both)
    admin(broker.bootstrap, lambda client: client.delete_topic(topic))
    put_numbers(broker.bootstrap, topic + "-stays", 0, range(3, 5))
    with pytest.raises(Exception, match="no longer exists"):
        engine.run(subscribe=both)
    assert flat(engine.run(subscribe=both, failOnDataLoss="false")) == [3, 4]
    # The checkpoint no longer knows the topic, and triggers of a running query come one after the other.
    stream = reader(broker, both, failOnDataLoss="false")
    assert engine.done is not None
    at = stream.latestOffset(engine.done, stream.getDefaultReadLimit())
    assert at == engine.done == {topic + "-stays": {"0": 5}}
    stream.stop()
    with pytest.raises(Exception, match=f"there is no topic '{topic}'"):
        reader(broker, both).latestOffset(engine.done, stream.getDefaultReadLimit())


def test_a_query_whose_only_topic_is_gone_waits_for_it_when_losses_do_not_matter(
    broker: TestBroker, topic: str
) -> None:
    stream = reader(broker, topic, startingOffsets="earliest", failOnDataLoss="false")
    at = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    admin(broker.bootstrap, lambda client: client.delete_topic(topic))
    for _ in range(2):
        at = stream.latestOffset(at, stream.getDefaultReadLimit())
        assert at == {}
    _make_again(broker, topic)
    put_numbers(broker.bootstrap, topic, 0, range(7))
    end = stream.latestOffset(at, stream.getDefaultReadLimit())
    assert end == {topic: {"0": 7, "1": 0}}
    rows = [
        row for part in stream.partitions(at, end) for batch in stream.read(part) for row in batch["value"].to_pylist()
    ]
    stream.stop()
    assert rows == [b"%d" % number for number in range(7)]


def test_offsets_that_expired_fail_or_are_passed_over(engine: Engine, broker: TestBroker, topic: str) -> None:
    engine.run()
    put_numbers(broker.bootstrap, topic, 0, range(100, 200), per_batch=10)
    admin(broker.bootstrap, lambda client: client.delete_records(topic, {0: 150}))
    with pytest.raises(Exception, match="offset 100 is wanted, but the log holds 150 to 200"):
        engine.run()
    assert flat(engine.run(failOnDataLoss="false")) == list(range(150, 200))


def test_a_pattern_takes_in_topics_that_come_later(broker: TestBroker) -> None:
    make(broker.bootstrap, "late-a")
    put_numbers(broker.bootstrap, "late-a", 0, range(3))
    engine = Engine(broker, None)
    assert flat(engine.run(subscribePattern="late-.*")) == [0, 1, 2]
    make(broker.bootstrap, "late-b")
    put_numbers(broker.bootstrap, "late-b", 0, range(10, 13))
    assert flat(engine.run(subscribePattern="late-.*")) == [10, 11, 12]


def test_a_first_batch_that_failed_is_repeated_from_where_it_started(
    spark: SparkSession, broker: TestBroker, topic: str, tmp_path: Path
) -> None:
    stream = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", broker.bootstrap)
        .option("subscribe", topic)
    )
    folder = tmp_path / "checkpoint"

    def fail(frame: DataFrame, number: int) -> None:
        raise RuntimeError("killed in mid-batch")

    # Spark's first batch of a query that starts at "latest" is empty, and fails here all the same.
    with pytest.raises(Exception, match="killed in mid-batch"):
        run_to_end(stream.load().writeStream.foreachBatch(fail).option("checkpointLocation", str(folder)).start)
    # "latest" is here by the time that the query is started again, and what comes now was after its start.
    put_numbers(broker.bootstrap, topic, 0, range(100, 120))
    found = run(spark, broker, topic, folder, startingOffsets="latest")
    assert flat(found) == list(range(100, 120))


# -- the driver's part, without a driver


@pytest.mark.parametrize(
    ("starting", "before"),
    [
        ({"startingOffsets": "latest"}, []),
        pytest.param(
            {"startingTimestamp": str(T0 + 1020), "startingOffsetsByTimestampStrategy": "latest"},
            list(range(1020, 1050)),
            marks=pytest.mark.soak,
        ),
    ],
    ids=["latest", "timestamp"],
)
def test_trigger_once_skips_and_repeats_nothing_from_a_start_that_moves(
    spark: SparkSession, broker: TestBroker, topic: str, tmp_path: Path, starting: dict[str, str], before: list[int]
) -> None:
    """Each run has one batch, the first an empty one. `before` is what lies behind the start when the query first
    runs."""

    def once() -> dict[int, list[int]]:
        return batches_of(spark, broker, topic, tmp_path / "c", {"once": True}, maxOffsetsPerTrigger="3", **starting)

    def undone(batch: int) -> None:
        """As after a crash between a batch and Spark's note of its end."""
        for name in (f"{batch}", f".{batch}.crc"):
            (tmp_path / "c" / "commits" / name).unlink(missing_ok=True)

    assert once() == {0: []}
    put_numbers(broker.bootstrap, topic, 0, range(100, 110))
    undone(0)
    assert once() == {0: []}
    put_numbers(broker.bootstrap, topic, 1, range(1050, 1060))
    expected = sorted([*before, *range(100, 110), *range(1050, 1060)])
    assert once() == {1: expected}
    put_numbers(broker.bootstrap, topic, 0, range(110, 115))
    undone(1)
    assert once() == {1: expected}
    assert once() == {2: list(range(110, 115))}
    assert once() == {}


def first_batch(stream: HeadraceStreamReader) -> dict[str, Any]:
    """The end of the first batch, as Spark writes it to the checkpoint before it runs it."""
    return stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())


def ranges(stream: HeadraceStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[int, int, int]]:
    return sorted((part.partition, part.start_offset, part.end_offset) for part in stream.partitions(start, end))


@pytest.mark.parametrize(
    "starting", ["latest", '{"TOPIC": {"0": -1, "1": 20}}', "group:GROUP"], ids=["latest", "offsets", "group"]
)
def test_a_start_that_moves_is_kept_in_the_checkpoint_as_the_end_of_an_empty_first_batch(
    broker: TestBroker, topic: str, starting: str
) -> None:
    group = f"{topic}-moving".replace('"', "")

    def move(offset: int) -> None:
        put_numbers(broker.bootstrap, topic, 0, range(100, 105))
        admin(broker.bootstrap, lambda client: Groups(client).commit(group, {(topic, 0): offset, (topic, 1): 30}))

    move(60)
    options = {"startingOffsets": starting.replace("TOPIC", topic).replace("GROUP", group)}
    first = reader(broker, topic, **options)
    start = first.initialOffset()
    move(90)
    end = first_batch(first)
    assert end == start == first.initialOffset() and ranges(first, start, end) == []
    # Killed before its first batch was done. The next process repeats it, from where a query would start now.
    second = reader(broker, topic, **options)
    again = second.initialOffset()
    assert again != start and ranges(second, again, end) == []
    # What was written meanwhile comes next, in either of them.
    for stream in (first, second):
        until = stream.latestOffset(end, stream.getDefaultReadLimit())
        found = [(0, start[topic]["0"], 110)] + ([(1, start[topic]["1"], 50)] if start[topic]["1"] < 50 else [])
        assert ranges(stream, end, until) == found
        stream.stop()
    # Another query of the same group, topic and options is at the end of today, not where the others began.
    third = reader(broker, topic, **options)
    assert third.initialOffset() == again
    third.stop()


def test_a_first_batch_that_is_repeated_has_the_partitions_that_it_had(broker: TestBroker, topic: str) -> None:
    first = reader(broker, topic, startingOffsets="earliest")
    end = first_batch(first)
    assert end == {topic: {"0": 100, "1": 50}}
    admin(broker.bootstrap, lambda client: client.create_partitions(topic, 3))
    put_numbers(broker.bootstrap, topic, 2, range(5))
    second = reader(broker, topic, startingOffsets="earliest")
    assert ranges(second, second.initialOffset(), end) == [(0, 0, 100), (1, 0, 50)]
    until = second.latestOffset(end, second.getDefaultReadLimit())
    assert ranges(second, end, until) == [(2, 0, 5)]
    first.stop()
    second.stop()


def test_a_topic_made_anew_is_a_loss_to_a_query_that_has_read_nothing_of_it_yet(broker: TestBroker, topic: str) -> None:
    stream = reader(broker, topic, fetchOffset__numRetries="0")
    end = first_batch(stream)
    admin(broker.bootstrap, lambda client: client.delete_topic(topic))
    _make_again(broker, topic)
    put_numbers(broker.bootstrap, topic, 0, range(7))
    until = stream.latestOffset(end, stream.getDefaultReadLimit())
    with pytest.raises(Exception, match="was read to 100 and ends at 7 now"):
        stream.partitions(end, until)
    stream.stop()


@pytest.mark.parametrize(
    "options, start",
    [
        ({"startingOffsets": "earliest"}, {"0": 0, "1": 0}),
        ({"startingOffsets": "latest"}, {"0": 100, "1": 50}),
        ({}, {"0": 100, "1": 50}),
        ({"startingTimestamp": str(T0 + 1010), "startingOffsetsByTimestampStrategy": "latest"}, {"0": 100, "1": 10}),
    ],
)
def test_starts_of_streams(broker: TestBroker, topic: str, options: dict[str, str], start: dict[str, int]) -> None:
    assert reader(broker, topic, **options).initialOffset() == {topic: start}


def test_starts_by_partition_and_by_group(broker: TestBroker, topic: str) -> None:
    given = json.dumps({topic: {"0": 7, "1": -1}})
    assert reader(broker, topic, startingOffsets=given).initialOffset() == {topic: {"0": 7, "1": 50}}
    admin(broker.bootstrap, lambda client: Groups(client).commit("before", {(topic, 0): 33, (topic, 1): 44}))
    found = reader(broker, topic, startingOffsets="group:before", kafka__group__id="another")
    assert found.initialOffset() == {topic: {"0": 33, "1": 44}}


def test_minimum_and_delay(broker: TestBroker, topic: str) -> None:
    stream = reader(broker, topic, minOffsetsPerTrigger="20", maxTriggerDelay="1h", startingOffsets="earliest")
    start = stream.initialOffset()
    # The first batch never waits, nor does one with enough in it.
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    assert end == {topic: {"0": 100, "1": 50}}
    put_numbers(broker.bootstrap, topic, 0, range(19))
    assert stream.latestOffset(end, stream.getDefaultReadLimit()) == end
    put_numbers(broker.bootstrap, topic, 1, range(1))
    assert stream.latestOffset(end, stream.getDefaultReadLimit()) == {topic: {"0": 119, "1": 51}}
    hasty = reader(broker, topic, minOffsetsPerTrigger="1000", maxTriggerDelay="1ms", startingOffsets="earliest")
    for _ in range(2):
        time.sleep(0.01)
        assert hasty.latestOffset(start, hasty.getDefaultReadLimit()) == {topic: {"0": 119, "1": 51}}


def test_minimum_and_maximum_together(broker: TestBroker, topic: str) -> None:
    stream = reader(
        broker,
        topic,
        minOffsetsPerTrigger="10",
        maxOffsetsPerTrigger="15",
        maxTriggerDelay="1h",
        startingOffsets="earliest",
    )
    end = stream.latestOffset(stream.initialOffset(), stream.getDefaultReadLimit())
    assert end == {topic: {"0": 10, "1": 5}}
    assert stream.latestOffset({topic: {"0": 95, "1": 48}}, stream.getDefaultReadLimit()) == {topic: {"0": 95, "1": 48}}


def test_available_now_ends_where_everything_ended_when_it_began(broker: TestBroker, topic: str) -> None:
    stream = reader(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger="100", minOffsetsPerTrigger="90")
    stream.prepareForTriggerAvailableNow()
    put_numbers(broker.bootstrap, topic, 0, range(100, 200))
    at, batches = stream.initialOffset(), 0
    while (end := stream.latestOffset(at, stream.getDefaultReadLimit())) != at:
        at, batches = end, batches + 1
    assert at == {topic: {"0": 100, "1": 50}} and batches == 2
    assert stream.reportLatestOffset() == at


def test_available_now_asks_again_where_a_partition_seems_to_end_before_what_was_read(
    broker: TestBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker just elected may not know its high watermark yet: nothing was lost, and nothing is read twice."""
    stream = reader(broker, topic)
    latest = Lookup._at
    with monkeypatch.context() as patch:
        patch.setattr(
            Lookup, "_at", lambda self, wanted: {one: offset - 30 for one, offset in latest(self, wanted).items()}
        )
        stream.prepareForTriggerAvailableNow()
    done = {topic: {"0": 90, "1": 50}}
    end = stream.latestOffset(done, stream.getDefaultReadLimit())
    assert end == {topic: {"0": 100, "1": 50}}
    assert [(part.start_offset, part.end_offset) for part in stream.partitions(done, end)] == [(90, 100)]
    assert stream.latestOffset(end, stream.getDefaultReadLimit()) == end
    stream.stop()


def test_progress_can_be_left_alone(broker: TestBroker, topic: str) -> None:
    stream = reader(broker, topic, commitProgress="false", kafka__group__id=f"{topic}-quiet")
    start = stream.initialOffset()
    stream.commit(start)
    assert not [name for name in groups(broker.bootstrap) if name.startswith(f"{topic}-quiet")]


def test_a_group_in_use_by_others_stops_no_query(
    broker: TestBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    import confluent_kafka as confluent

    consumer = confluent.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": f"{topic}-taken", "log_level": 0})
    consumer.subscribe([topic])
    deadline = time.monotonic() + 20
    while not consumer.assignment() and time.monotonic() < deadline:
        consumer.poll(0.1)
    stream = reader(broker, topic, kafka__group__id=f"{topic}-taken", fetchOffset__numRetries="0")
    stream.initialOffset()
    stream.commit({topic: {"0": 5}})
    consumer.close()
    assert "progress was not committed" in caplog.text


def test_progress_is_told_when_a_batch_is_committed_and_not_before(
    spark: SparkSession, broker: TestBroker, topic: str, tmp_path: Path
) -> None:
    """By the session's listener: the next trigger, at which the source would tell, is an hour away."""
    group, at_work = f"{topic}-heard", []
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    stream = spark.readStream.format("headrace").options(**options, **{"kafka.group.id": group}).load()

    def take(frame: DataFrame, number: int) -> None:
        frame.count()
        at_work.append(committed(broker.bootstrap, group))

    query = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "c"))
    query = query.trigger(processingTime="1 hour").start()
    try:
        deadline = time.monotonic() + 120
        while committed(broker.bootstrap, group) != {(topic, 0): 100, (topic, 1): 50}:
            assert time.monotonic() < deadline and query.isActive
            time.sleep(0.1)
    finally:
        query.stop()
    assert at_work == [{}]


def test_progress_is_never_ahead_of_what_was_processed(broker: TestBroker, topic: str) -> None:
    group = f"spark-kafka-source-{topic}"
    stream = reader(broker, topic, startingOffsets="earliest", maxOffsetsPerTrigger="60")
    at = stream.initialOffset()
    seen = []
    while (end := stream.latestOffset(at, stream.getDefaultReadLimit())) != at:
        stream.partitions(at, end)
        seen.append((committed(broker.bootstrap, group), from_json(at)))
        at = end
    assert seen[0][0] == {} and all(told == done for told, done in seen[1:]) and len(seen) == 3
    assert committed(broker.bootstrap, group) == from_json(at)
    stream.stop()


def _make_again(broker: TestBroker, topic: str) -> None:
    """Deletion takes a moment; the name is free behind it."""
    deadline = time.monotonic() + 20
    while True:
        try:
            return make(broker.bootstrap, topic, 2)
        except Exception:
            assert time.monotonic() < deadline
            asyncio.run(asyncio.sleep(0.1))
