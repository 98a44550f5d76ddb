"""`quorum-state`: the epoch this node has seen, who leads it and for whom it voted. JSON in two versions.

Version 0 belongs to kraft.version 0 (voters in the configuration), version 1 to kraft.version 1 (voters in the log).
It is on the disk before anything is said or written in its epoch: a vote that is forgotten can be given twice.
"""

import json
from typing import Any

from headrace.quorum import DamagedMetadata, QuorumError
from headrace.raft.types import NO_DIRECTORY, NOBODY, Election, ReplicaKey
from headrace.storage.checkpoints import CorruptCheckpoint, decode_uuid, encode_uuid
from headrace.storage.files import Disk

FILE_NAME = "quorum-state"


def encode_state(state: Election, kraft_version: int, voters: list[int]) -> bytes:
    voted = state.voted or ReplicaKey(NOBODY)
    if kraft_version == 0:
        fields: dict[str, Any] = {
            "clusterId": "",
            "leaderId": state.leader_id,
            "leaderEpoch": state.epoch,
            "votedId": voted.id,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": voter} for voter in voters],
            "data_version": 0,
        }
    else:
        fields = {
            "leaderId": state.leader_id,
            "leaderEpoch": state.epoch,
            "votedId": voted.id,
            "votedDirectoryId": encode_uuid(voted.directory_id),
            "data_version": 1,
        }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_state(data: bytes, path: str) -> Election:
    try:
        fields = json.loads(data)
        version = fields["data_version"]
        if version not in (0, 1):
            raise QuorumError(f"{path} has version {version}; this version reads 0 and 1")
        directory = fields.get("votedDirectoryId")
        voted = ReplicaKey(int(fields["votedId"]), decode_uuid(directory) if directory else NO_DIRECTORY)
        return Election(int(fields["leaderEpoch"]), int(fields["leaderId"]), voted if voted.id != NOBODY else None)
    except (ValueError, TypeError, KeyError, CorruptCheckpoint) as error:
        raise DamagedMetadata(f"{path} is damaged: {error}") from None


def read_state(disk: Disk, folder: str) -> Election:
    """The last state written, or that of a node that has never taken part."""
    path = f"{folder}/{FILE_NAME}"
    if not disk.exists(path):
        return Election()
    return decode_state(disk.read_bytes(path), path)


def write_state(disk: Disk, folder: str, state: Election, kraft_version: int, voters: list[int]) -> None:
    disk.replace_bytes(f"{folder}/{FILE_NAME}", encode_state(state, kraft_version, voters))
