"""What stands in each znode, as Kafka 3.x writes it: JSON to values and back.

A key `headrace` in Kafka's JSON holds what Kafka 3.x has no word for; its tools pass over it. People write here by
hand, too: whatever they leave, it is an error that names the znode.
"""

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from headrace.metadata.image import (
    RECOVERED,
    UNASSIGNED_DIRECTORY,
    Broker,
    Controller,
    Endpoint,
    Partition,
    Topic,
)
from headrace.metadata.records import Record, decode_record
from headrace.quorum import QuorumError
from headrace.quorum.zookeeper import paths
from headrace.storage.checkpoints import decode_uuid, encode_uuid

T = TypeVar("T")
P = ParamSpec("P")

PRODUCER_ID_BLOCK = 1_000
SECURITY_PROTOCOLS = {0: "PLAINTEXT", 1: "SSL", 2: "SASL_PLAINTEXT", 3: "SASL_SSL"}
FEATURES_ENABLED = 1
EXTENSION = "headrace"


class ControllerNode(NamedTuple):
    """`/controller`: who decides, and where its controller listener is, if it is a node of Headrace's."""

    broker_id: int
    address: tuple[str, int] | None


class Assignment(NamedTuple):
    """`/brokers/topics/T`."""

    topic_id: bytes
    replicas: dict[int, tuple[int, ...]]
    adding: dict[int, tuple[int, ...]]
    removing: dict[int, tuple[int, ...]]


class Head(NamedTuple):
    """`/headrace/metadata`: the last record of metadata, when and by whose epoch it was written."""

    offset: int
    epoch: int
    timestamp_ms: int


class Copy(NamedTuple):
    """`/headrace/migration`: of which cluster's metadata this is a copy, of which epoch and offset."""

    cluster_id: str
    epoch: int
    offset: int
    whole: bool


def _decoder(decode: Callable[Concatenate[str, P], T]) -> Callable[Concatenate[str, P], T]:
    """Of what stands at a path. Raises QuorumError for anything that it cannot read."""

    def checked(path: str, /, *arguments: P.args, **named: P.kwargs) -> T:
        try:
            return decode(path, *arguments, **named)
        except KeyError as error:
            raise QuorumError(f"{path} in ZooKeeper has no {error}") from None
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            raise QuorumError(f"{path} in ZooKeeper is damaged: {error}") from None

    return checked


def encode(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def decode(path: str, data: bytes) -> Any:
    """Raises QuorumError."""
    try:
        found = json.loads(data)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise QuorumError(f"{path} in ZooKeeper holds {data[:40]!r}, which is not what Kafka writes there")
    return found


# --- cluster and controller -------------------------------------------------------------------------------------------


def encode_cluster_id(cluster_id: str) -> bytes:
    return encode({"version": "1", "id": cluster_id})


@_decoder
def decode_cluster_id(path: str, data: bytes) -> str:
    return str(decode(path, data)["id"])


def encode_controller(node_id: int, address: tuple[str, int], now_ms: int) -> bytes:
    host, port = address
    return encode(
        {
            "version": 2,
            "brokerid": node_id,
            "timestamp": str(now_ms),
            "kraftControllerEpoch": -1,
            EXTENSION: {"host": host, "port": port},
        }
    )


@_decoder
def decode_controller(path: str, data: bytes) -> ControllerNode:
    fields = decode(path, data)
    at = fields.get(EXTENSION)
    return ControllerNode(int(fields["brokerid"]), (str(at["host"]), int(at["port"])) if at else None)


@_decoder
def decode_controller_epoch(path: str, data: bytes) -> int:
    return int(data)


def encode_head(head: Head) -> bytes:
    return encode({"version": 1, "offset": head.offset, "epoch": head.epoch, "timestamp": head.timestamp_ms})


@_decoder
def decode_head(path: str, data: bytes) -> Head:
    fields = decode(path, data)
    return Head(*(int(fields[name]) for name in ("offset", "epoch", "timestamp")))


def encode_copy(copy: Copy) -> bytes:
    return encode(
        {"version": 1, "cluster": copy.cluster_id, "epoch": copy.epoch, "offset": copy.offset, "whole": copy.whole}
    )


@_decoder
def decode_copy(path: str, data: bytes) -> Copy:
    fields = decode(path, data)
    return Copy(str(fields["cluster"]), int(fields["epoch"]), int(fields["offset"]), bool(fields["whole"]))


def encode_features(levels: Mapping[str, int]) -> bytes:
    features = {name: {"max_version_level": level} for name, level in sorted(levels.items())}
    return encode({"version": 2, "status": FEATURES_ENABLED, "features": features})


@_decoder
def decode_features(path: str, data: bytes) -> dict[str, int]:
    """Version 1 also named a lowest level, which never counted."""
    found: dict[str, Any] = decode(path, data).get("features", {})
    return {name: int(level["max_version_level"]) for name, level in found.items()}


def encode_producer_ids(broker_id: int, next_producer_id: int) -> bytes:
    start = max(0, next_producer_id - PRODUCER_ID_BLOCK)
    return encode(
        {"version": 1, "broker": broker_id, "block_start": str(start), "block_end": str(next_producer_id - 1)}
    )


@_decoder
def decode_producer_ids(path: str, data: bytes) -> int:
    """The first id that nobody has; -1 before the first block."""
    return int(decode(path, data)["block_end"]) + 1 if data else -1


# --- brokers ----------------------------------------------------------------------------------------------------------


def encode_broker_id(endpoints: list[Endpoint], rack: str | None, now_ms: int, directory_ids: list[bytes]) -> bytes:
    """`/brokers/ids/N`, which goes with the broker's session. Its directories say whose earlier session one is."""
    plain = next((e for e in endpoints if e.security_protocol == 0), None)
    fields: dict[str, Any] = {
        "version": 5,
        "host": plain.host if plain is not None else None,
        "port": plain.port if plain is not None else -1,
        "jmx_port": -1,
        "timestamp": str(now_ms),
        "endpoints": [f"{e.name}://{_bracketed(e.host)}:{e.port}" for e in endpoints],
        "listener_security_protocol_map": {e.name: SECURITY_PROTOCOLS[e.security_protocol] for e in endpoints},
        "features": {},
    }
    if rack is not None:
        fields["rack"] = rack
    fields[EXTENSION] = {"directories": [encode_uuid(one) for one in directory_ids]}
    return encode(fields)


@_decoder
def decode_directories(path: str, data: bytes) -> list[bytes]:
    """Of the broker that wrote its `/brokers/ids/N`; none where that is not Headrace's."""
    return [decode_uuid(one) for one in decode(path, data).get(EXTENSION, {}).get("directories", [])]


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def encode_broker(broker: Broker) -> bytes:
    fields: dict[str, Any] = {
        "version": 1,
        "epoch": broker.epoch,
        "incarnation": encode_uuid(broker.incarnation_id),
        "fenced": broker.fenced,
        "in_controlled_shutdown": broker.in_controlled_shutdown,
        "endpoints": [list(_endpoint(e)) for e in broker.endpoints],
        "features": {name: list(levels) for name, levels in sorted(broker.features.items())},
        "rack": broker.rack,
        "directories": [encode_uuid(one) for one in broker.log_dirs],
    }
    if broker.cordoned_log_dirs is not None:
        fields["cordoned"] = [encode_uuid(one) for one in broker.cordoned_log_dirs]
    return encode(fields)


@_decoder
def decode_broker(path: str, node_id: int, data: bytes) -> Broker:
    fields = decode(path, data)
    cordoned = fields.get("cordoned")
    return Broker(
        id=node_id,
        epoch=int(fields["epoch"]),
        incarnation_id=decode_uuid(fields["incarnation"]),
        endpoints=tuple(Endpoint(*one) for one in fields["endpoints"]),
        features={name: (low, high) for name, (low, high) in fields["features"].items()},
        rack=fields["rack"],
        fenced=bool(fields["fenced"]),
        in_controlled_shutdown=bool(fields["in_controlled_shutdown"]),
        log_dirs=tuple(map(decode_uuid, fields["directories"])),
        cordoned_log_dirs=None if cordoned is None else tuple(map(decode_uuid, cordoned)),
    )


def encode_controller_registration(controller: Controller) -> bytes:
    return encode(
        {
            "version": 1,
            "incarnation": encode_uuid(controller.incarnation_id),
            "endpoints": [list(_endpoint(e)) for e in controller.endpoints],
            "features": {name: list(levels) for name, levels in sorted(controller.features.items())},
        }
    )


@_decoder
def decode_controller_registration(path: str, node_id: int, data: bytes) -> Controller:
    fields = decode(path, data)
    return Controller(
        id=node_id,
        incarnation_id=decode_uuid(fields["incarnation"]),
        zk_migration_ready=False,
        endpoints=tuple(Endpoint(*one) for one in fields["endpoints"]),
        features={name: (low, high) for name, (low, high) in fields["features"].items()},
    )


def _endpoint(endpoint: Endpoint) -> tuple[str, str, int, int]:
    return endpoint.name, endpoint.host, endpoint.port, endpoint.security_protocol


# --- topics -----------------------------------------------------------------------------------------------------------


def encode_topic(topic: Topic) -> bytes:
    """Who holds which partition, and what a move adds and removes; leaders are in each partition's state."""
    numbered = sorted(topic.partitions.items(), key=lambda pair: pair[0])
    return encode(
        {
            "version": 3,
            "topic_id": encode_uuid(topic.id),
            "partitions": {str(n): list(p.replicas) for n, p in numbered},
            "adding_replicas": {str(n): list(p.adding) for n, p in numbered if p.adding},
            "removing_replicas": {str(n): list(p.removing) for n, p in numbered if p.removing},
        }
    )


@_decoder
def decode_topic(path: str, data: bytes) -> Assignment:
    fields = decode(path, data)
    if "topic_id" not in fields:
        raise QuorumError(f"{path} in ZooKeeper has no topic_id: it was written by Kafka before 2.8")
    return Assignment(
        decode_uuid(fields["topic_id"]),
        *(
            {int(number): _ids(ids) for number, ids in fields.get(name, {}).items()}
            for name in ("partitions", "adding_replicas", "removing_replicas")
        ),
    )


def encode_state(partition: Partition, controller_epoch: int) -> bytes:
    """The partition epoch is the node's version, and not written."""
    fields: dict[str, Any] = {
        "controller_epoch": controller_epoch,
        "leader": partition.leader,
        "version": 1,
        "leader_epoch": partition.leader_epoch,
        "isr": list(partition.isr),
    }
    if partition.recovery_state != RECOVERED:
        fields["leader_recovery_state"] = partition.recovery_state
    extension: dict[str, Any] = {}
    if any(directory != UNASSIGNED_DIRECTORY for directory in partition.directories):
        extension["directories"] = [encode_uuid(one) for one in partition.directories]
    if partition.elr:
        extension["elr"] = list(partition.elr)
    if partition.last_known_elr:
        extension["last_known_elr"] = list(partition.last_known_elr)
    if extension:
        fields[EXTENSION] = extension
    return encode(fields)


@_decoder
def decode_state(path: str, data: bytes, version: int, number: int, assignment: Assignment) -> Partition:
    fields = decode(path, data)
    replicas = assignment.replicas[number]
    extension = fields.get(EXTENSION) or {}
    directories = tuple(map(decode_uuid, extension.get("directories", ())))
    if len(directories) != len(replicas):
        directories = (UNASSIGNED_DIRECTORY,) * len(replicas)
    return Partition(
        replicas=replicas,
        isr=_ids(fields["isr"]),
        leader=int(fields["leader"]),
        leader_epoch=int(fields["leader_epoch"]),
        partition_epoch=version,
        directories=directories,
        elr=_ids(extension.get("elr", [])),
        last_known_elr=_ids(extension.get("last_known_elr", [])),
        removing=assignment.removing.get(number, ()),
        adding=assignment.adding.get(number, ()),
        recovery_state=int(fields.get("leader_recovery_state", RECOVERED)),
    )


def _ids(brokers: Any) -> tuple[int, ...]:
    if not isinstance(brokers, list) or not all(type(one) is int for one in brokers):
        raise ValueError(f"{brokers!r} is no list of broker ids")
    return tuple(brokers)


# --- configs ----------------------------------------------------------------------------------------------------------


def encode_config(config: Mapping[str, str]) -> bytes:
    return encode({"version": 1, "config": dict(sorted(config.items()))})


def encode_config_change(resource_type: int, name: str) -> bytes:
    """A note in `/config/changes`, in the form that Kafka has written since 0.11."""
    return encode({"version": 2, "entity_path": paths.config(resource_type, name).removeprefix("/config/")})


def decode_config(path: str, data: bytes) -> dict[str, str]:
    found = decode(path, data).get("config") or {}
    if not isinstance(found, dict):
        raise QuorumError(f"{path} in ZooKeeper holds no names and values in its config")
    return {name: str(value) for name, value in found.items()}


# --- quotas and security ----------------------------------------------------------------------------------------------


@_decoder
def decode_quotas(path: str, data: bytes) -> tuple[list[tuple[str, str | None]], dict[str, float]]:
    """Whom they limit, and by how much."""
    fields = decode(path, data)
    return [(kind, name) for kind, name in fields["entity"]], dict(fields["quotas"])


@_decoder
def decode_kept_record(path: str, data: bytes) -> Record:
    return decode_record(base64.b64decode(decode(path, data)["record"]))
