"""Headers and frames: what stands around a message, and who may speak which version."""

import random
import re

import pytest

from headrace.protocol import messages as m
from headrace.protocol.api import (
    API,
    COORDINATOR_RECORDS,
    DATA,
    GROUP_RECORDS,
    METADATA_RECORDS,
    REMOTE_LOG_RECORDS,
    ApiKey,
)
from headrace.protocol.codec import CODECS, codec
from headrace.protocol.frames import decode_request, decode_response, encode_request, encode_response
from headrace.protocol.headers import (
    decode_request_header,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)
from headrace.protocol.primitives import ProtocolError
from tests.unit.protocol.support import sample


def test_every_api_has_a_key_a_request_and_a_response() -> None:
    assert set(API) == set(ApiKey) == set(range(93)) - {4, 5, 6, 7}
    for key, api in API.items():
        assert (
            api.key == key and api.request.name == api.name + "Request" and api.response.name == api.name + "Response"
        )
        assert api.key.name == re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api.name).upper()
        assert api.listeners and api.listeners <= {"broker", "controller"}


def test_versions_of_note() -> None:
    unstable = {api.name for api in API.values() if api.latest_stable != api.max_version}
    assert unstable == {"InitProducerId"} and API[ApiKey.INIT_PRODUCER_ID].latest_stable == 5
    assert API[ApiKey.PRODUCE].min_version == 3 and API[ApiKey.PRODUCE].advertised_min == 0
    assert API[ApiKey.FETCH].advertised_min == 4
    assert API[ApiKey.VOTE].listeners == {"controller"}
    assert "controller" in API[ApiKey.FETCH].listeners and API[ApiKey.PRODUCE].listeners == {"broker"}


def test_registries_of_records() -> None:
    assert METADATA_RECORDS[3].struct is m.PartitionRecord and len(METADATA_RECORDS) == 26
    assert sorted(REMOTE_LOG_RECORDS) == [0, 1, 2, 3]
    assert GROUP_RECORDS[1].key.struct is m.OffsetCommitKey and GROUP_RECORDS[1].value.struct is m.OffsetCommitValue
    assert {name: len(records) for name, records in COORDINATOR_RECORDS.items()} == {
        "group": 22,
        "transaction": 1,
        "share": 2,
    }
    assert DATA["LeaderChangeMessage"] is codec(m.LeaderChangeMessage) is codec("LeaderChangeMessage")


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "größe"])
def test_request_headers(client_id: str | None) -> None:
    """By hand as by the table, whose client id is never compact."""
    for api in API.values():
        for version in api.request.versions:
            head = encode_request_header(api.key, version, -5, client_id)
            table = m.RequestHeader(api.key, version, -5, client_id)
            assert head == CODECS["RequestHeader"].encode(table, api.request_header_version(version))
            buf = b"xx" + head + b"body"
            assert decode_request_header(buf, 2, len(buf)) == (api.key, version, -5, client_id, 2 + len(head))
            answer = encode_response_header(api.key, version, 9)
            table_answer = m.ResponseHeader(9)
            assert answer == CODECS["ResponseHeader"].encode(table_answer, api.response_header_version(version))
            assert decode_response_header(answer, 0, len(answer), api.key, version) == (9, len(answer))


def test_tags_in_headers_are_skipped() -> None:
    head = encode_request_header(ApiKey.METADATA, 12, 1, "c")[:-1] + b"\2\0\1x\5\0"
    assert decode_request_header(head + b"rest", 0, len(head) + 4) == (3, 12, 1, "c", len(head))
    answer = b"\0\0\0\7\1\x09\2ab"
    assert decode_response_header(answer, 0, len(answer), ApiKey.METADATA, 12) == (7, len(answer))


def test_api_versions_answers_with_a_plain_header_in_every_version() -> None:
    for version in (0, 3, 4, 99):
        assert encode_response_header(ApiKey.API_VERSIONS, version, 1) == b"\0\0\0\1"
    # A version of the future has a header that can be read, and no body that can.
    head = encode_request_header(ApiKey.API_VERSIONS, 99, 1, "c")
    assert decode_request_header(head, 0, len(head))[:2] == (18, 99)
    with pytest.raises(ProtocolError):
        decode_request(head)


def test_a_client_id_that_is_not_utf8_is_read_as_java_reads_it() -> None:
    head = b"\0\x12\0\3\0\0\0\1\0\2m\xfc\0"
    assert decode_request_header(head, 0, len(head))[3] == "m\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\0\x12\0\3\0\0\0\1\0",
        b"\0\x12\0\3\0\0\0\1\0\5abc",  # client id cut short
        b"\0\x12\0\3\0\0\0\1\xff\xff",  # no tag section
        b"\0\x12\0\3\0\0\0\1\xff\xff\1",  # tags cut short
        b"\0\4\0\0\0\0\0\1\xff\xff",  # an API that left
        b"\x7f\xff\0\0\0\0\0\1\xff\xff",
    ],
)
def test_bad_request_headers(head: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_request_header(head, 0, len(head))
    padded = head + bytes(20)
    with pytest.raises(ProtocolError):
        decode_request_header(padded, 0, len(head))


def test_frames_there_and_back() -> None:
    rng = random.Random(1)
    for api in API.values():
        version = api.latest_stable
        request, response = sample(api.request, version, rng), sample(api.response, version, rng)
        frame = b"".join(encode_request(api, version, 77, "me", request))
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        assert decode_request(frame, 4) == (api, version, 77, "me", request)
        frame = b"".join(encode_response(api, version, 78, response))
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        assert decode_response(api, version, frame, 4) == (78, response)
