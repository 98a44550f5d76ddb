"""Which partition a folder belongs to: a folder under another partition's name must not be served as that one.

Records do not say which partition they belong to. Two files beside them do. If only one of the two names another
folder, that file is in the wrong place.
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
