"""The error table against the one in Kafka 4.3.1's jar, dumped to `data/kafka_errors.json`."""

import copy
import json
import pickle
from pathlib import Path

from headrace.errors import Err, KafkaError

KAFKA = json.loads((Path(__file__).parent / "data" / "kafka_errors.json").read_text())


def test_codes_names_and_retriability_are_kafkas() -> None:
    assert [[int(err), err.name, err.retriable] for err in Err] == KAFKA


def test_every_error_has_its_own_words() -> None:
    texts = [err.text for err in Err]
    assert all(text.endswith(".") for text in texts)
    assert len(set(texts)) == len(texts)


def test_a_code_from_the_wire_finds_its_row() -> None:
    assert Err(6) is Err.NOT_LEADER_OR_FOLLOWER
    assert Err(-1) is Err.UNKNOWN_SERVER_ERROR
    assert int(Err.NONE) == 0


def test_error_carries_code_and_message() -> None:
    error = KafkaError(Err.INVALID_CONFIG, "segment.bytes: too small")
    assert error.error is Err.INVALID_CONFIG
    assert error.message == "segment.bytes: too small"
    assert str(error) == "INVALID_CONFIG: segment.bytes: too small"


def test_message_defaults_to_none_and_prints_the_text() -> None:
    error = KafkaError(Err.NOT_CONTROLLER)
    assert error.message is None
    assert str(error) == f"NOT_CONTROLLER: {Err.NOT_CONTROLLER.text}"


def test_error_survives_pickling_between_processes() -> None:
    for twin in (
        copy.copy(KafkaError(Err.INVALID_RECORD, "x")),
        pickle.loads(pickle.dumps(KafkaError(Err.INVALID_RECORD, "x"))),
    ):
        assert (twin.error, twin.message) == (Err.INVALID_RECORD, "x")
