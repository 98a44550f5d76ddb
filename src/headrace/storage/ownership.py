"""Whose folder this is: a partition's folder under another one's name must not be served for it.

Records do not say which partition they are of. Two files beside them do; where only one of them names another folder, it is
that file which is in the wrong place.
"""

from headrace.storage import checkpoints, manifest
from headrace.storage.files import Disk


def stranger(disk: Disk, folder: str) -> str | None:
    """The name of the partition that the files in `folder` are of, if that is another one."""
    name = folder.rpartition("/")[2]
    found = set()
    for file, folder_of in (
        (checkpoints.PARTITION_METADATA, checkpoints.folder_of),
        (manifest.MANIFEST, manifest.folder_of),
    ):
        try:
            found.add(folder_of(disk.read_bytes(f"{folder}/{file}")))
        except FileNotFoundError:
            pass
    found.discard(None)
    return found.pop() if len(found) == 1 and name not in found else None
