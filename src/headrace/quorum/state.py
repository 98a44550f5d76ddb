"""`quorum-state`: the epoch this node has seen, who leads it and for whom it voted. JSON in two versions.

Version 0 belongs to kraft.version 0 (voters in the configuration), version 1 to kraft.version 1 (voters in the log).
It is on the disk before anything is said or written in its epoch: a vote that is forgotten can be given twice.
"""

import json
from typing import Any

import msgspec

from headrace.quorum import QuorumError
from headrace.storage.checkpoints import CorruptCheckpoint, decode_uuid, encode_uuid
from headrace.storage.files import Disk

FILE_NAME = "quorum-state"


class ElectionState(msgspec.Struct, frozen=True, gc=False):
    """-1 where there is none."""

    leader_epoch: int = 0
    leader_id: int = -1
    voted_id: int = -1
    voted_directory_id: bytes = bytes(16)


def encode_state(state: ElectionState, kraft_version: int, voters: list[int]) -> bytes:
    if kraft_version == 0:
        fields: dict[str, Any] = {
            "clusterId": "",
            "leaderId": state.leader_id,
            "leaderEpoch": state.leader_epoch,
            "votedId": state.voted_id,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": voter} for voter in voters],
            "data_version": 0,
        }
    else:
        fields = {
            "leaderId": state.leader_id,
            "leaderEpoch": state.leader_epoch,
            "votedId": state.voted_id,
            "votedDirectoryId": encode_uuid(state.voted_directory_id),
            "data_version": 1,
        }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_state(data: bytes, path: str) -> ElectionState:
    try:
        fields = json.loads(data)
        version = fields["data_version"]
        if version not in (0, 1):
            raise QuorumError(f"{path} has version {version}; this version reads 0 and 1")
        directory = fields.get("votedDirectoryId")
        return ElectionState(
            leader_epoch=int(fields["leaderEpoch"]),
            leader_id=int(fields["leaderId"]),
            voted_id=int(fields["votedId"]),
            voted_directory_id=decode_uuid(directory) if directory else bytes(16),
        )
    except (ValueError, TypeError, KeyError, CorruptCheckpoint) as error:
        raise QuorumError(f"{path} is damaged: {error}") from None


def read_state(disk: Disk, folder: str) -> ElectionState:
    """The last state written, or that of a node that has never taken part."""
    path = f"{folder}/{FILE_NAME}"
    if not disk.exists(path):
        return ElectionState()
    return decode_state(disk.read_bytes(path), path)


def write_state(disk: Disk, folder: str, state: ElectionState, kraft_version: int, voters: list[int]) -> None:
    disk.replace_bytes(f"{folder}/{FILE_NAME}", encode_state(state, kraft_version, voters))
