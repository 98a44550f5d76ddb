"""The small text files beside the logs: offset checkpoints, partition.metadata, meta.properties, the clean mark.

Formats only; who writes them and when is decided in `manager` and `log`.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from random import Random
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from headrace.config import parse_properties

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
PARTITION_METADATA = "partition.metadata"
META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
VOUCHED = ".headrace_vouched"
"""Headrace's own, in the format of the former: the epoch of a run whose records count only once they are on disk."""
LOCK = ".lock"


class CorruptCheckpoint(ValueError):
    """A checkpoint file that does not say what it should."""


def encode_lines(lines: Iterable[str], *, sealed: bool = False) -> bytes:
    """Version 0, the number of lines, the lines. `sealed`: each with a checksum that Kafka does not see."""
    body = [line + _seal(line) for line in lines] if sealed else list(lines)
    return "".join(f"{line}\n" for line in ("0", str(len(body)), *body)).encode()


def decode_lines(data: bytes) -> list[str]:
    lines = data.decode("utf-8", "replace").splitlines()
    try:
        if int(lines[0]) != 0:
            raise CorruptCheckpoint(f"version {lines[0]!r}, only 0 is known")
        count = int(lines[1])
    except (IndexError, ValueError) as error:
        if isinstance(error, CorruptCheckpoint):
            raise
        raise CorruptCheckpoint("no version and count at the top") from None
    found = [line for line in lines[2:] if line.strip()]
    if len(found) != count:
        raise CorruptCheckpoint(f"{count} lines announced, {len(found)} found")
    body = [line.rstrip(_BLANKS) for line in found]
    if found != body and found != [line + _seal(line) for line in body]:
        raise CorruptCheckpoint("a line has changed since it was written")
    return body


_BLANKS = " \t"
SEAL_BITS = 16


def _seal(line: str) -> str:
    """Half a CRC of the line as blanks and tabs to stand at its end, where Kafka's split at white space ignores
    them.

    One flipped bit in a number would otherwise make another number of it: a log that starts or ends elsewhere.
    """
    crc = crc32c(line.encode())
    return "".join(_BLANKS[crc >> bit & 1] for bit in range(SEAL_BITS))


TopicPartition = tuple[str, int]


def encode_offsets(offsets: Mapping[TopicPartition, int], separator: str = " ") -> bytes:
    lines = (separator.join((topic, str(at), str(offset))) for (topic, at), offset in sorted(offsets.items()))
    return encode_lines(lines, sealed=separator == OWN_SEPARATOR)


OWN_SEPARATOR = "\t"
"""Kafka reads any white space and writes blanks: a checkpoint with tabs was last written by Headrace."""


def written_by_headrace(*files: bytes) -> bool:
    """Whether these checkpoints, of which there is at least a line, were all last written by Headrace.

    Apache Kafka writes high watermarks as soon as it leads or follows anything in a dir, before it deletes, cuts or
    compacts any of it, and recovery points when it stops. Where it has done neither, no closed segment has changed by
    it.
    """
    lines = [line for data in files for line in data.splitlines()[2:]]
    return bool(lines) and all(OWN_SEPARATOR.encode() in line for line in lines)


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    offsets = {}
    for line in decode_lines(data):
        fields = line.split()
        try:
            topic, partition, offset = fields[0], int(fields[1]), int(fields[2])
        except (IndexError, ValueError):
            raise CorruptCheckpoint(f"line {line!r}") from None
        if len(fields) != 3 or offset < 0 or partition < 0:
            raise CorruptCheckpoint(f"line {line!r}")
        offsets[topic, partition] = offset
    return offsets


def new_uuid(random: Random) -> bytes:
    """A random (version 4) id as Kafka makes them: none whose text a command line could take for an option."""
    while True:
        uuid = UUID(int=random.getrandbits(128), version=4).bytes
        if not encode_uuid(uuid).startswith("-"):
            return uuid


def encode_uuid(uuid: bytes) -> str:
    """Kafka writes ids as unpadded URL-safe base 64."""
    return urlsafe_b64encode(uuid).decode().rstrip("=")


def decode_uuid(text: str) -> bytes:
    try:
        uuid = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        uuid = b""
    if len(uuid) != 16:
        raise CorruptCheckpoint(f"{text!r} is not an id of 22 base-64 characters")
    return uuid


def encode_partition_metadata(topic_id: bytes, folder: str | None = None) -> bytes:
    """Kafka reads the first two lines only. The third tells a topic id that has changed, or that is another folder's.

    A folder that is taken for another topic's is set aside, and its partition begins anew.
    """
    text = f"version: 0\ntopic_id: {encode_uuid(topic_id)}"
    return (text if folder is None else f"{text}\nof: {folder} {_check_of(folder, topic_id)}").encode()


def _check_of(folder: str, topic_id: bytes) -> str:
    return f"{crc32c(folder.encode() + topic_id):08x}"


def decode_partition_metadata(data: bytes, folder: str | None = None) -> bytes:
    """The topic id. `folder` is the name of the folder that the file lies in."""
    fields = _fields(data)
    if fields.get("version") != "0":
        raise CorruptCheckpoint(f"partition.metadata version {fields.get('version')!r}, only 0 is known")
    topic_id = decode_uuid(fields.get("topic_id", ""))
    if topic_id == bytes(16):
        raise CorruptCheckpoint("partition.metadata with the zero topic id")
    if len(fields) > 2:
        name, _, check = fields.get("of", "").rpartition(" ")
        if check != _check_of(name, topic_id):
            raise CorruptCheckpoint("partition.metadata with another checksum")
        if folder is not None and name != folder:
            raise CorruptCheckpoint(f"it is that of {name}")
    return topic_id


def folder_of(data: bytes) -> str | None:
    """The name of the folder that a partition.metadata was written for, if it says so."""
    try:
        decode_partition_metadata(data)
        return _fields(data)["of"].rpartition(" ")[0]
    except (CorruptCheckpoint, KeyError):
        return None


class MetaProperties(NamedTuple):
    """Who owns a log dir. None where the file does not say."""

    cluster_id: str | None
    node_id: int | None
    directory_id: bytes | None
    version: int = 1

    def encode(self) -> bytes:
        lines = ["#"]
        if self.cluster_id is not None:
            lines.append(f"cluster.id={_escaped(self.cluster_id)}")
        if self.directory_id is not None:
            lines.append(f"directory.id={encode_uuid(self.directory_id)}")
        if self.node_id is not None:
            lines.append(f"{'node.id' if self.version else 'broker.id'}={self.node_id}")
        lines.append(f"version={self.version}")
        return "".join(f"{line}\n" for line in lines).encode()

    @classmethod
    def decode(cls, data: bytes) -> "MetaProperties":
        try:
            fields = parse_properties(data.decode())
            version = int(fields.get("version", "0"))
            # Version 0 is ZooKeeper's time: the id was called broker.id and the cluster id could be missing.
            node = fields.get("node.id", fields.get("broker.id"))
            node_id = None if node is None or int(node) < 0 else int(node)
        except ValueError as error:
            raise CorruptCheckpoint(f"meta.properties: {error}") from None
        if version not in (0, 1):
            raise CorruptCheckpoint(f"meta.properties version {version}, only 0 and 1 are known")
        directory = fields.get("directory.id")
        return cls(fields.get("cluster.id"), node_id, decode_uuid(directory) if directory else None, version)


def _escaped(value: str) -> str:
    return "".join(f"\\{char}" if char in "\\=:#!" else char for char in value)


def _fields(data: bytes) -> dict[str, str]:
    fields = {}
    for line in data.decode("utf-8", "replace").splitlines():
        line = line.strip()
        if not line:
            continue
        name, found, value = line.partition(":")
        if not found:
            raise CorruptCheckpoint(f"line {line!r} has no colon")
        fields[name.strip()] = value.strip()
    return fields


def encode_clean_shutdown(broker_epoch: int) -> bytes:
    return json.dumps({"version": 0, "brokerEpoch": broker_epoch}, separators=(",", ":")).encode()


def decode_clean_shutdown(data: bytes) -> int:
    """The broker epoch of the last run, -1 if the mark does not say (older Kafka left it empty)."""
    try:
        return int(json.loads(data)["brokerEpoch"])
    except (ValueError, TypeError, KeyError):
        return -1
