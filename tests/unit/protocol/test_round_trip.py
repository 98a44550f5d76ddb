"""Every message of every version survives encoding and decoding, from any buffer, and nothing shorter or longer
does."""

import keyword
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.protocol import messages as m
from headrace.protocol.codec import CODECS, Codec
from headrace.protocol.compiler import Layout
from headrace.protocol.primitives import ProtocolError, UnsupportedVersion
from headrace.protocol.schema import StructSpec
from tests.unit.protocol.support import messages

FEW = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


@pytest.mark.parametrize("codec", CODECS.values(), ids=lambda c: c.name)
def test_round_trip(codec: Codec) -> None:
    strategies = {version: messages(codec, version) for version in codec.versions}

    @FEW
    @given(st.data())
    def check(data: st.DataObject) -> None:
        for version, strategy in strategies.items():
            round_trip(codec, version, data.draw(strategy))

    check()


def round_trip(codec: Codec, version: int, message: Any) -> None:
    encoded = codec.encode(message, version)
    assert codec.decode(encoded, version) == message
    inside = bytearray(b"\xff\xff" + encoded + b"\xff\xff")
    end = len(inside) - 2
    decoded = codec.decode(memoryview(inside), version, 2, end)
    assert decoded == message
    assert codec.encode(decoded, version) == encoded
    for wrong in (end + 1, end - 1, 2 + len(encoded) // 2):
        if wrong != end and wrong >= 2:
            with pytest.raises(ProtocolError):
                codec.decode(inside, version, 2, wrong)
    if encoded:
        with pytest.raises(ProtocolError):
            codec.decode(encoded[:-1], version)
        with pytest.raises(ProtocolError):
            codec.decoder(version)(inside, 2, end - 1)


def all_structs(codec: Codec) -> list[StructSpec]:
    return [codec.root, *codec.structs.values()]


def test_no_field_is_a_keyword_and_no_array_has_elements_of_no_bytes() -> None:
    for codec in CODECS.values():
        for spec in all_structs(codec):
            assert not any(keyword.iskeyword(f.name) for f in spec.fields)
            for version in codec.versions:
                layout = Layout(version, codec.is_flexible(version))
                for field in layout.plain(spec):
                    assert not field.is_array or layout.min_size(field) > 0, (codec.name, field.name, version)


def test_nested_classes_are_attributes_of_the_message() -> None:
    broker = m.MetadataResponse.MetadataResponseBroker(node_id=1, host="h", port=2)
    response = m.MetadataResponse(brokers=[broker])
    assert CODECS["MetadataResponse"].decode(CODECS["MetadataResponse"].encode(response, 13), 13) == response
    with pytest.raises(AttributeError):
        _ = m.NoSuchMessage  # type: ignore[attr-defined]


def test_defaults_are_kafkas() -> None:
    assert m.FetchRequest().max_bytes == 0x7FFFFFFF
    assert m.FetchRequest.FetchPartition().high_watermark == 2**63 - 1
    assert m.MetadataResponse().cluster_authorized_operations == -(2**31)
    assert m.MetadataRequest().allow_auto_topic_creation is True
    assert m.MetadataRequest().topics == []  # nullable, but the table gives no null default
    assert m.ListPartitionReassignmentsRequest().topics is None
    assert m.OffsetCommitRequest.OffsetCommitRequestPartition().committed_metadata == ""
    assert m.PartitionChangeRecord().leader == -2
    assert m.FetchResponse.PartitionData().records is None
    first, second = m.MetadataRequest(), m.MetadataRequest()
    assert first.topics is not second.topics


def test_a_field_that_the_version_lacks_must_have_its_default_unless_ignorable() -> None:
    codec = CODECS["InitProducerIdRequest"]
    request = m.InitProducerIdRequest(transactional_id="t", producer_id=5)
    codec.encode(request, 3)
    with pytest.raises(ProtocolError, match="producer_id is set"):
        codec.encode(request, 2)
    ignorable = m.ApiVersionsResponse(throttle_time_ms=9)
    assert CODECS["ApiVersionsResponse"].encode(ignorable, 0) == bytes(6)


def test_null_where_the_version_has_no_null_is_an_error() -> None:
    request = m.MetadataRequest(topics=None)
    assert CODECS["MetadataRequest"].encode(request, 1) == b"\xff\xff\xff\xff"
    with pytest.raises(ProtocolError):
        CODECS["MetadataRequest"].encode(request, 0)
    with pytest.raises(ProtocolError, match="must not be null"):
        CODECS["MetadataRequest"].decode(b"\xff\xff\xff\xff", 0)


@pytest.mark.parametrize(
    "request_",
    [
        m.HeartbeatRequest(group_id=None),  # type: ignore[arg-type]
        m.HeartbeatRequest(generation_id=2**31),
        m.HeartbeatRequest(group_id=b"g"),  # type: ignore[arg-type]
        m.HeartbeatRequest(group_id="x" * 0x8000),
        m.HeartbeatRequest(group_id="\ud800"),
    ],
)
def test_values_that_cannot_be_written_are_protocol_errors(request_: m.HeartbeatRequest) -> None:
    for version in CODECS["HeartbeatRequest"].versions:
        with pytest.raises(ProtocolError):
            CODECS["HeartbeatRequest"].encode(request_, version)


def test_versions_outside_the_range_are_refused() -> None:
    for version in (-1, 2, 14):
        with pytest.raises(UnsupportedVersion):
            CODECS["ProduceRequest"].decoder(version)
        with pytest.raises(UnsupportedVersion):
            CODECS["ProduceRequest"].encoder(version)


def test_records_are_neither_copied_in_nor_out() -> None:
    codec = CODECS["ProduceRequest"]
    topic = m.ProduceRequest.TopicProduceData(name="t")
    records = bytes(1000)
    topic.partition_data.append(m.ProduceRequest.PartitionProduceData(0, records))
    chunks: list[Any] = []
    codec.encoder(9)(m.ProduceRequest(topic_data=[topic]), chunks.append)
    assert any(chunk is records for chunk in chunks)
    frame = bytearray(b"".join(chunks))
    view = codec.decode(frame, 9).topic_data[0].partition_data[0].records
    assert isinstance(view, memoryview) and view.obj is frame


def test_a_message_must_lie_inside_its_buffer() -> None:
    encoded = CODECS["SaslAuthenticateRequest"].encode(m.SaslAuthenticateRequest(bytes(100)), 1)
    with pytest.raises(ProtocolError):
        CODECS["SaslAuthenticateRequest"].decode(encoded[:50], 1, 0, len(encoded))


class TestTags:
    codec = CODECS["ApiVersionsRequest"]

    def test_unknown_ones_are_kept_in_order(self) -> None:
        request = m.ApiVersionsRequest("n", "v", {300: b"b", 7: b""})
        encoded = self.codec.encode(request, 3)
        assert encoded == b"\2n\2v\2\7\0\xac\2\1b"
        assert self.codec.decode(encoded, 3) == request

    def test_unknown_ones_stand_between_known_ones(self) -> None:
        response = m.ApiVersionsResponse(zk_migration_ready=True, unknown_tags={9: b"x"}, finalized_features_epoch=1)
        encoded = CODECS["ApiVersionsResponse"].encode(response, 3)
        assert encoded == b"\0\0\1\0\0\0\0\3\1\x08\0\0\0\0\0\0\0\1\3\1\1\x09\1x"

    def test_a_version_without_them_refuses(self) -> None:
        with pytest.raises(ProtocolError, match="tagged fields"):
            self.codec.encode(m.ApiVersionsRequest(unknown_tags={9: b""}), 2)

    def test_order_does_not_matter_and_the_last_of_equals_wins(self) -> None:
        decoded = self.codec.decode(b"\1\1\3\x09\1a\5\0\x09\1b", 3)
        assert decoded.unknown_tags == {9: b"b", 5: b""}

    @pytest.mark.parametrize(
        "body",
        [
            b"\1\1\1",  # a count without tags
            b"\1\1\1\5\2a",  # longer than what follows
            b"\1\1\xff\xff\xff\xff\x0f",  # four thousand million tags
            b"\1\1\x80\x80\x80\x80\x80\0",  # a varint of six bytes
        ],
    )
    def test_malformed_ones_are_errors(self, body: bytes) -> None:
        with pytest.raises(ProtocolError):
            self.codec.decode(body, 3)

    def test_a_known_one_must_fill_its_size(self) -> None:
        body = b"\0\0\1\0\0\0\0\1\1\x09" + bytes(9) + b"\0"
        with pytest.raises(ProtocolError):
            CODECS["ApiVersionsResponse"].decode(body, 3)
