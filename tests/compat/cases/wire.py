"""Below the messages: versions nobody serves, keys nobody knows, frames that lie about themselves. After each of them
the broker must still serve the next connection, which `hold`ing the following case proves."""

import random
import struct
from typing import Any

from headrace.protocol.codec import CODECS
from tests.compat.cases import Talk, case, served
from tests.compat.raw import Connection, decode_response, encode_request, request_header

SCOPE = (
    "SaslHandshake", "SaslAuthenticate",
    "Produce", "Fetch", "ListOffsets", "Metadata", "CreateTopics", "DeleteTopics", "DeleteRecords", "InitProducerId",
    "OffsetForLeaderEpoch", "DescribeAcls", "DescribeConfigs", "AlterConfigs", "DescribeLogDirs", "CreatePartitions",
    "IncrementalAlterConfigs", "ListPartitionReassignments", "DescribeClientQuotas", "DescribeQuorum",
    "DescribeCluster", "DescribeProducers", "ListConfigResources", "DescribeTopicPartitions", "ElectLeaders",
    "DescribeUserScramCredentials", "CreateAcls", "DeleteAcls", "CreateDelegationToken", "RenewDelegationToken",
    "ExpireDelegationToken", "DescribeDelegationToken",
)  # fmt: skip
LIST_OFFSETS, METADATA, API_VERSIONS = 2, 3, 18


@case("ApiVersions", versions=[0])
def versions_out_of_range(t: Talk) -> None:
    for api in SCOPE:
        key, versions = CODECS[f"{api}Request"].key, served(api)
        for version in (versions[0] - 1, versions[-1] + 1, 32767, -32768):
            t.note(f"{api} v{version}")
            t.frame(request_header(key, version, flexible=True) + bytes(64))


@case("ApiVersions", versions=[0])
def unknown_api_keys(t: Talk) -> None:
    for key in (-1, 4, 7, 93, 999, 32767):
        t.note(f"key {key}")
        t.frame(request_header(key, 0) + bytes(16))


@case("ApiVersions", versions=[0])
def controller_requests_on_the_client_port(t: Talk) -> None:
    for api in ("Vote", "BeginQuorumEpoch", "EndQuorumEpoch", "FetchSnapshot", "AlterPartition", "BrokerHeartbeat"):
        codec = CODECS[f"{api}Request"]
        t.note(api)
        t.frame(encode_request(api, codec.max_version, {}))


@case("ApiVersions", versions=[0])
def api_versions_of_the_future(t: Talk) -> None:
    for version in (5, 99, 32767, -1):
        t.note(f"v{version}")
        t.frame(request_header(API_VERSIONS, version, flexible=True) + b"\x01\x01\x00", "ApiVersions", 0)


@case("ApiVersions", versions=[0])
def lengths_that_lie(t: Talk) -> None:
    limit = 104_857_600
    for length in (-1, -2147483648, 0, 1, limit + 1, 2147483647):
        t.note(f"length {length}")
        # The rest of the frame follows, so that a broker which waits for it is seen to wait no longer than that.
        t.connection.send_bytes(struct.pack(">i", length) + bytes(1 if length == 1 else 0))
        t.outcome()


@case("ApiVersions", versions=[0])
def truncated_requests(t: Talk) -> None:
    whole = encode_request("Metadata", 12, {"topics": [{"name": "a"}, {"name": "b"}]})
    for length in range(1, len(whole)):
        t.note(f"first {length} bytes")
        t.frame(whole[:length], "Metadata", 12)


@case("ApiVersions", versions=[0])
def more_bytes_than_the_request_needs(t: Talk) -> None:
    t.frame(encode_request("ListOffsets", 1, {}) + b"extra", "ListOffsets", 1)
    t.frame(encode_request("ListOffsets", 11, {}) + b"extra", "ListOffsets", 11)


@case("ApiVersions", versions=[0])
def absurd_counts(t: Talk) -> None:
    replica = struct.pack(">i", -1)
    old = request_header(LIST_OFFSETS, 1) + replica
    for what, rest in {
        "array of 2^31 - 1": struct.pack(">i", 2147483647),
        "array of -2": struct.pack(">i", -2),
        "null array": struct.pack(">i", -1),
        "string of 32767": struct.pack(">ih", 1, 32767) + b"abc",
        "string of -5": struct.pack(">ih", 1, -5) + b"abc",
    }.items():
        t.note(what)
        t.frame(old + rest, "ListOffsets", 1)
    flexible = request_header(LIST_OFFSETS, 7, flexible=True) + replica + b"\0"
    for what, rest in {
        "compact array of 2^32 - 2": b"\xff\xff\xff\xff\x0f" + bytes(8),
        "varint without end": b"\xff" * 12,
        "compact string too long": b"\x02\xff\xff\x7f" + bytes(8),
        "2^21 tagged fields": b"\x01\xff\xff\x7f",
        "tagged field too long": b"\x01\x01\x05\xff\xff\x7f",
    }.items():
        t.note(what)
        t.frame(flexible + rest, "ListOffsets", 7)


@case("ApiVersions", versions=[0])
def strings_that_are_not_utf8(t: Talk) -> None:
    t.frame(request_header(METADATA, 5) + struct.pack(">ih3s?", 1, 3, b"\xff\xfe\xfd", False), "Metadata", 5)


@case("ApiVersions", versions=[0])
def null_where_null_is_not_allowed(t: Talk) -> None:
    t.frame(request_header(METADATA, 0) + struct.pack(">i", -1), "Metadata", 0)
    t.frame(request_header(METADATA, 5) + struct.pack(">ih?", 1, -1, False), "Metadata", 5)


@case("ApiVersions", versions=[0])
def unknown_tagged_fields_are_skipped(t: Talk) -> None:
    key = CODECS["DescribeClusterRequest"].key
    tags = b"\x02\x05\x03abc\x63\x00"
    t.frame(struct.pack(">hhih", key, 0, 7, -1) + tags + b"\x00" + tags, "DescribeCluster", 0)
    # Tags must rise: the same one twice is an error.
    t.frame(struct.pack(">hhih", key, 0, 7, -1) + b"\0" + b"\x00" + b"\x02\x05\x01a\x05\x01b", "DescribeCluster", 0)


@case("ApiVersions", versions=[0])
def client_ids(t: Talk) -> None:
    body = struct.pack(">ii", -1, 0)
    for client_id in (None, "", "x" * 30000):
        t.frame(request_header(LIST_OFFSETS, 1, client_id=client_id) + body, "ListOffsets", 1)
    t.frame(struct.pack(">hhih", LIST_OFFSETS, 1, 7, -2) + body, "ListOffsets", 1)
    t.frame(struct.pack(">hhih2s", LIST_OFFSETS, 1, 7, 2, b"\xff\xff") + body, "ListOffsets", 1)


@case("ApiVersions", versions=[0])
def correlation_ids_come_back(t: Talk) -> None:
    for number in (0, 1, -1, 2147483647, -2147483648):
        t.connection.send(request_header(API_VERSIONS, 0, number))
        t.note(struct.unpack_from(">i", t.connection.receive())[0])


@case("ApiVersions", versions=[0])
def answers_keep_the_order_of_requests(t: Talk) -> None:
    topic = t.topic()
    parts = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]
    wait = {"max_wait_ms": 300, "min_bytes": 1, "max_bytes": 1000, "topics": [{"topic": topic, "partitions": parts}]}
    asked: list[tuple[str, int, dict[str, Any]]] = [
        ("Fetch", 11, wait),
        ("Metadata", 1, {"topics": []}),
        ("Fetch", 11, wait),
        ("ApiVersions", 0, {}),
    ]
    for number, (api, version, fields) in enumerate(asked):
        t.connection.send(encode_request(api, version, fields, number))
    for number, (api, version, _) in enumerate(asked):
        decode_response(api, version, t.connection.receive(), number)
    t.note("in order")


@case("ApiVersions", versions=[0])
def noise(t: Talk) -> None:
    dice = random.Random(20260101)
    for _ in range(40):
        with Connection(t.port) as stranger:
            stranger.send(dice.randbytes(dice.randrange(1, 200)))
    for text in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"SSH-2.0-x\r\n",
    ):
        t.connection.send_bytes(text)
        t.outcome()
    t.ask("DescribeCluster", 0)


@case("ApiVersions")
def own_versions(t: Talk) -> None:
    fields = {"client_software_name": "raw", "client_software_version": "1.0"} if t.version >= 3 else {}
    answer = t.call("ApiVersions", t.version, **fields)
    in_scope = {CODECS[f"{api}Request"].key for api in SCOPE} | {API_VERSIONS}
    # What is not served yet is not advertised, and features come with what they stand for.
    answer.api_keys = [k for k in answer.api_keys if k.api_key in in_scope]
    answer.supported_features = [
        f for f in answer.supported_features if f.name in ("metadata.version", "kraft.version")
    ]
    answer.finalized_features = [
        f for f in answer.finalized_features if f.name in ("metadata.version", "kraft.version")
    ]
    t.record("ApiVersions", answer)


@case("ApiVersions", versions=[3, 4])
def software_names(t: Talk) -> None:
    for name, number in (("", ""), ("a b", "1"), ("raw", "-1"), ("raw", "1-"), ("r.a-w", "1.2-3"), ("ж", "1")):
        answer = t.call("ApiVersions", t.version, client_software_name=name, client_software_version=number)
        t.note([name, number, answer.error_code, len(answer.api_keys) > 0])


@case("SaslHandshake")
def where_nobody_logs_in(t: Talk) -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-512", "", "none such"):
        t.ask("SaslHandshake", t.version, mechanism=mechanism)
    t.ask("DescribeCluster", 0)


@case("SaslAuthenticate")
def without_a_handshake(t: Talk) -> None:
    for token in (b"\0user\0secret", b""):
        t.ask("SaslAuthenticate", t.version, auth_bytes=token)
    t.ask("DescribeCluster", 0)
