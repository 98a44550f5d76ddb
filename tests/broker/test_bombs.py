"""Small batches that hold much: on topics whose records are looked into they cost a thread's time, not the loop's."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import cramjam
import pytest

from headrace.errors import Err
from tests.broker.loop_probe import ProbedBroker
from tests.broker.support import PATIENCE_S, create_topic, fetch_fields, produce_fields, read_log
from tests.compat.raw import Connection, Rec, batch, decode_response, encode_records, encode_request

TURN_MS = 60
"""CPU time. On the loop, each of these takes from 140 to 180 ms."""
CODECS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (1, lambda data: bytes(cramjam.gzip.compress(data))),
    "lz4": (3, lambda data: bytes(cramjam.lz4.compress(data))),
    "zstd": (4, lambda data: bytes(cramjam.zstd.compress(data))),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProbedBroker]:
    with ProbedBroker(tmp_path_factory.mktemp("bombs")) as process:
        create_topic(process.port, "compacted", cleanup_policy="compact")
        create_topic(process.port, "wide", partitions=6, cleanup_policy="compact")
        create_topic(process.port, "stamped", message_timestamp_type="LogAppendTime")
        yield process


def compressed(codec: str, *records: Rec, **more: Any) -> bytes:
    number, compress = CODECS[codec]
    return batch(
        *records, payload=compress(encode_records(records)), attributes=number, base_timestamp=now_ms(), **more
    )


def now_ms() -> int:
    return int(time.time() * 1000)


@pytest.mark.parametrize("codec", CODECS)
def test_much_in_little_does_not_hold_the_loop(broker: ProbedBroker, codec: str) -> None:
    bomb = compressed(codec, Rec(bytes(64 << 20), key=b"k"))
    assert len(bomb) < 1 << 20
    broker.reset()
    with Connection(broker.port, PATIENCE_S) as wire:
        answer = wire.ask("Produce", 9, produce_fields("compacted", 0, bomb))
    assert answer.responses[0].partition_responses[0].error_code == 0
    assert broker.longest_turn_ms() < TURN_MS


def test_what_is_pipelined_behind_waits_for_its_turn(broker: ProbedBroker) -> None:
    """A heavy batch and light ones behind it, of one producer: in order, or the sequence numbers would not fit."""
    batches = [
        compressed("zstd", Rec(bytes(16 << 20), key=b"k"), producer=(7, 0, 0)),
        *(batch(Rec(b"light", key=b"k"), producer=(7, 0, n), base_timestamp=now_ms()) for n in range(1, 20)),
        compressed("gzip", Rec(bytes(4 << 20), key=b"k"), producer=(7, 0, 20)),
    ]
    with Connection(broker.port, PATIENCE_S) as wire:
        for number, data in enumerate(batches):
            wire.send(encode_request("Produce", 9, produce_fields("stamped", 0, data), number))
        offsets = []
        for number in range(len(batches)):
            answer = decode_response("Produce", 9, wire.receive(), number)
            (row,) = answer.responses[0].partition_responses
            assert row.error_code == 0
            assert row.log_append_time_ms > 0
            offsets.append(row.base_offset)
        assert offsets == list(range(offsets[0], offsets[0] + len(batches)))
        answer = wire.ask("Fetch", 12, fetch_fields("stamped", 0, offsets[0]))
        assert answer.responses[0].partitions[0].error_code == 0


def test_frames_in_memory_of_their_own_are_read_there(broker: ProbedBroker) -> None:
    """Megabytes in one request, and more of them behind it while its records are checked."""
    values = [bytes([number]) * 900_000 for number in range(24)]
    with Connection(broker.port, PATIENCE_S) as wire:
        for number in range(4):
            rows = [
                {"index": index, "records": batch(Rec(values[6 * number + index], key=b"k"), base_timestamp=now_ms())}
                for index in range(6)
            ]
            fields = produce_fields("wide", 0, b"") | {"topic_data": [{"name": "wide", "partition_data": rows}]}
            wire.send(encode_request("Produce", 9, fields, number))
        for number in range(4):
            answer = decode_response("Produce", 9, wire.receive(), number)
            found = [(row.error_code, row.base_offset) for row in answer.responses[0].partition_responses]
            assert found == [(0, number)] * 6
    for index in range(6):
        read = [value for _, value in read_log(broker.port, "wide", index)]
        assert read == [values[6 * number + index] for number in range(4)]


@pytest.mark.parametrize("wrong", ["crc", "cut", "keyless", "garbage"])
def test_what_is_wrong_is_said(broker: ProbedBroker, wrong: str) -> None:
    data = {
        "crc": compressed("zstd", Rec(b"v", key=b"k"), crc_error=1),
        "cut": compressed("zstd", Rec(b"v", key=b"k"))[:-3],
        "keyless": compressed("zstd", Rec(b"v")),
        "garbage": batch(count=1, payload=b"no zstd at all", attributes=4, base_timestamp=now_ms()),
    }[wrong]
    with Connection(broker.port, PATIENCE_S) as wire:
        answer = wire.ask("Produce", 9, produce_fields("compacted", 0, data))
        error = answer.responses[0].partition_responses[0].error_code
        assert error in (Err.CORRUPT_MESSAGE, Err.INVALID_RECORD)
        assert wire.ask("ApiVersions", 0, {}).error_code == 0, "and the connection goes on"
