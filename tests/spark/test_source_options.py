"""Options of a read, without Spark: each refused value names the option and the fix; offsets, limits and tasks."""

import pickle
from typing import Any

import pytest
from hypothesis import given, strategies as st

from headrace.spark.options import (
    BY_KEY,
    HARMLESS,
    HONOURED,
    OPTIONS,
    REFUSED,
    SOURCE,
    OptionError,
    read_options,
)
from headrace.spark.source.offsets import OffsetRange, from_json, limited, split, to_json
from headrace.spark.source.options import SourceOptions
from headrace.spark.source.progress import group_of, reads

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}


@pytest.mark.parametrize(
    "options, message",
    [
        ({"subscribe": "a"}, "'kafka.bootstrap.servers' is missing: set it to host:port"),
        (
            {"kafka.bootstrap.servers": "x:99999", "subscribe": "a"},
            "'kafka.bootstrap.servers' is 'x:99999'.*not a port",
        ),
        ({"kafka.bootstrap.servers": "x"}, "exactly one of the options subscribe, subscribePattern and assign.*none"),
        (BASE | {"assign": "{}"}, "subscribe and assign are set"),
        (BASE | {"subscribe": " , "}, "'subscribe' is ' , '.*at least one"),
        (
            {"kafka.bootstrap.servers": "x", "subscribePattern": "a["},
            "'subscribePattern' is 'a\\['.*regular expression",
        ),
        ({"kafka.bootstrap.servers": "x", "assign": "orders"}, "'assign'.*no JSON.*write it as"),
        ({"kafka.bootstrap.servers": "x", "assign": '{"a": 1}'}, "'assign': what 'a' has is no list"),
        ({"kafka.bootstrap.servers": "x", "assign": "{}"}, "'assign' names no partition"),
        (BASE | {"startingOffset": "earliest"}, "'startingOffset' is not known; did you mean 'startingOffsets'"),
        (BASE | {"xyzzy": "1"}, "'xyzzy' is not known: check its spelling"),
        (BASE | {"path": "orders"}, "'path' is not known: leave load\\(\\)"),
        (BASE | {"topic": "orders"}, "'topic' is for writes only"),
        (BASE | {"minPartitions": "0"}, "'minPartitions' is '0': it must be above 0"),
        (BASE | {"maxRecordsPerPartition": "x"}, "'maxRecordsPerPartition' is 'x': it must be a whole number"),
        (BASE | {"failOnDataLoss": "maybe"}, "'failOnDataLoss' is 'maybe': it must be true or false"),
        (BASE | {"maxTriggerDelay": "soon"}, "'maxTriggerDelay' is 'soon': it must be a time such as"),
        (BASE | {"startingOffsetsByTimestampStrategy": "guess"}, "must be one of error, latest"),
        (BASE | {"startingTimestamp": "noon"}, "'startingTimestamp' is 'noon'"),
        (BASE | {"kafka.group.idd": "g"}, "'kafka.group.idd' is not a setting.*did you mean 'kafka.group.id'"),
        (BASE | {"kafka.auto.offset.reset": "latest"}, "'kafka.auto.offset.reset' cannot be used: set startingOffsets"),
        (BASE | {"kafka.enable.auto.commit": "true"}, "commitProgress"),
        (
            BASE | {"kafka.security.protocol": "SASL_SSL"},
            "'kafka.sasl.mechanism' is missing: .*set one of PLAIN, SCRAM-SHA-256",
        ),
        (
            BASE | {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "GSSAPI"},
            "'kafka.sasl.mechanism' is 'GSSAPI'",
        ),
        (
            BASE | {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.location": "/x"},
            "'kafka.ssl.truststore.location' is '/x', which cannot be read .*on every machine",
        ),
        (BASE | {"kafka.ssl.truststore.location": "/x"}, "'kafka.security.protocol' is missing"),
        (
            BASE | {"kafka.ssl.keystore.key": "-----BEGIN PRIVATE KEY-----\nhush\n-----END PRIVATE KEY-----"},
            "'kafka.ssl.keystore.key' is not encrypted: Spark shows options",
        ),
        (BASE | {"kafka.security.protocl": "SSL"}, "did you mean 'kafka.security.protocol'"),
        (BASE | {"kafka.isolation.level": "serializable"}, "must be one of read_uncommitted, read_committed"),
    ],
)
def test_bad_options_are_named_with_their_fix(options: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SourceOptions.read(options)


@pytest.mark.parametrize(
    "streaming, options, message",
    [
        (False, {"startingOffsets": "latest"}, "a batch query would be empty"),
        (False, {"startingOffsets": '{"orders": {"0": -1}}'}, "-1 \\(latest\\) for orders-0"),
        (False, {"endingOffsets": "earliest"}, "'endingOffsets' is 'earliest'"),
        (False, {"endingOffsets": '{"orders": {"0": -2}}'}, "-2 \\(earliest\\) for orders-0"),
        (False, {"endingOffsets": "group:g"}, "it must be latest or offsets"),
        (False, {"startingOffsets": '{"orders": {"0": -3}}'}, "write an offset, -1"),
        (False, {"startingOffsets": '{"orders": {"0": "x"}}'}, "not a partition and a whole number"),
        (False, {"startingOffsets": '{"orders": [1]}'}, "no object of partitions"),
        (False, {"startingOffsets": "[1]"}, "write earliest, latest, group:<id>, or offsets such as"),
        (True, {"startingOffsets": "soonest"}, "'soonest': write earliest, latest, group:<id>, or offsets such as"),
        (False, {"endingOffsets": "end"}, "'end': write latest, or offsets such as"),
        (False, {"startingOffsets": '{"orders": 1'}, "no JSON \\(.* at character 12\\): write it as"),
        (False, {"startingOffsets": "{}"}, "names no partition"),
        (False, {"startingOffsets": "group:"}, "name a group behind the colon"),
        (
            False,
            {"startingOffsets": '{"orders": {"0": 5}}', "endingOffsets": '{"orders": {"1": 9}}'},
            "different partitions: orders-0, orders-1",
        ),
        (
            False,
            {"startingOffsets": '{"orders": {"0": 5}}', "endingOffsets": '{"orders": {"0": 4}}'},
            "orders-0 starts at 5, behind its end at 4",
        ),
        (True, {"endingOffsets": "latest"}, "'endingOffsets' cannot be used in a stream"),
        (True, {"endingTimestamp": "5"}, "'endingTimestamp' cannot be used in a stream"),
        (True, {"pushFilters": "true"}, "batch queries only"),
        (True, {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "'minOffsetsPerTrigger' is 9, above"),
    ],
)
def test_bad_combinations_are_named(streaming: bool, options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SourceOptions.read(BASE | options, streaming=streaming)


def test_names_are_read_whatever_their_case_and_defaults_are_sparks() -> None:
    values = read_options(
        {"KAFKA.Bootstrap.Servers": "x", "STARTINGOFFSETS": "Earliest", "kafka.Group.ID": "g"}, SOURCE
    )
    assert values["startingOffsets"] == "Earliest" and values["kafka.group.id"] == "g"
    assert (values["failOnDataLoss"], values["includeHeaders"], values["groupIdPrefix"]) == (
        True,
        False,
        "spark-kafka-source",
    )
    assert (values["fetchOffset.numRetries"], values["fetchOffset.retryIntervalMs"]) == (3, 1000)
    assert (values["maxTriggerDelay"], values["kafkaConsumer.pollTimeoutMs"]) == (900_000, 120_000)
    assert values["startingOffsetsByTimestampStrategy"] == "error"


def test_defaults_of_positions() -> None:
    assert SourceOptions.read(BASE, streaming=True).start.kind == "latest"
    batch = SourceOptions.read(BASE, streaming=False)
    assert (batch.start.kind, batch.end.kind) == ("earliest", "latest")


def test_a_timestamp_wins_over_timestamps_by_partition_and_those_over_offsets() -> None:
    options = BASE | {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"orders": {"0": 7}}'}
    assert SourceOptions.read(options, streaming=False).start.by_partition == {("orders", 0): 7}
    assert SourceOptions.read(options | {"startingTimestamp": "9"}, streaming=False).start.timestamp == 9


def test_kafka_settings_of_other_clients_are_taken_and_options_travel() -> None:
    options = (
        BASE | {f"kafka.{name}": "1" for name in HARMLESS} | {"kafka.security.protocol": "plaintext", "kafka.acks": "1"}
    )
    read = SourceOptions.read(options, streaming=True)
    assert pickle.loads(pickle.dumps(read)) == read
    assert not HONOURED.keys() & HARMLESS and not REFUSED.keys() & (HARMLESS | HONOURED.keys())
    assert len(BY_KEY) == len(OPTIONS)


def test_groups_are_named_after_what_is_read_or_by_the_user() -> None:
    assert group_of(SourceOptions.read(BASE)) == "spark-kafka-source-orders"
    assert group_of(SourceOptions.read(BASE | {"groupIdPrefix": "etl"})) == "etl-orders"
    assert group_of(SourceOptions.read(BASE | {"kafka.group.id": "mine"})) == "mine"


def test_which_read_offsets_belong_to() -> None:
    """Two sources of one query may commit to groups of their own."""
    end = {("a", 0): 1, ("b", 1): 2}
    base = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
    for options in ({"subscribe": "a,b,c"}, {"subscribePattern": "[ab]"}, {"assign": '{"a": [0], "b": [1]}'}):
        assert reads(SourceOptions.read(base | options), end)
    for options in ({"subscribe": "a"}, {"subscribePattern": "a"}, {"assign": '{"a": [0]}'}):
        assert not reads(SourceOptions.read(base | options), end)


# -- pure offsets

offsets = st.dictionaries(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 12)), st.integers(0, 1 << 50))


@given(offsets)
def test_offsets_survive_json_in_one_order(given_offsets: Any) -> None:
    assert from_json(to_json(given_offsets)) == given_offsets
    shuffled = dict(reversed(given_offsets.items()))
    assert list(to_json(shuffled)) == list(to_json(given_offsets)) == sorted({t for t, _ in given_offsets})


sizes = st.lists(st.integers(0, 5000), min_size=1, max_size=8)


@given(sizes, st.none() | st.integers(1, 20), st.none() | st.integers(1, 700))
def test_tasks_cover_every_offset_once_within_their_bounds(
    lengths: list[int], least: int | None, most: int | None
) -> None:
    ranges = [OffsetRange("t", i, 10 * i, 10 * i + size) for i, size in enumerate(lengths)]
    found = split(ranges, least, most)
    covered = [(one.partition, offset) for one in found for offset in range(one.start_offset, one.end_offset)]
    assert sorted(covered) == [(r.partition, o) for r in ranges for o in range(r.start_offset, r.end_offset)]
    assert all(one.size > 0 and (most is None or one.size <= most) for one in found)
    if least is not None and sum(lengths) >= 1000:
        # About as many as asked for: rounding may take some away, never half.
        assert len(found) >= min(least, sum(size > 0 for size in lengths)) and len(found) > least // 2


def test_large_partitions_are_split_and_small_ones_left_alone() -> None:
    ranges = [OffsetRange("t", 0, 0, 900), OffsetRange("t", 1, 0, 100)]
    assert [r.size for r in split(ranges, 4, None)] == [300, 300, 300, 100]
    assert split(ranges, 2, None) == ranges
    assert split([OffsetRange("t", 0, 5, 5)], 4, 10) == []


@given(sizes, st.integers(1, 2000))
def test_limits_are_shared_by_size_and_starve_nobody(lengths: list[int], limit: int) -> None:
    start = {("t", i): 7 for i in range(len(lengths))}
    end = {("t", i): 7 + size for i, size in enumerate(lengths)}
    found = limited(start, end, limit)
    taken = {one: found[one] - start[one] for one in found}
    assert all(0 <= taken[one] <= end[one] - start[one] for one in found)
    assert sum(taken.values()) <= limit + len(lengths)
    assert all(taken[one] > 0 for one in found if end[one] > start[one])
