"""Formatting and recognising folders, against what Kafka's own StorageTool wrote."""

from random import Random

import pytest

from headrace.quorum import QuorumError
from headrace.quorum.folder import Layout, format_folders, open_folders, open_zookeeper_folders, read_bootstrap
from headrace.quorum.snapshots import SnapshotId, decode_batches, decode_snapshot
from headrace.storage.checkpoints import MetaProperties, decode_uuid, encode_uuid, new_uuid
from headrace.testing.simulator.disk import MemoryDisk
from headrace.testing.simulator.faults import PowerCut
from tests.unit.quorum.node import DATA, METADATA, golden, golden_disk, layout

FIRST = "__cluster_metadata-0/00000000000000000000-0000000000.checkpoint"


def opened(disk: MemoryDisk, standalone: bool = True, **arguments: object) -> object:
    random = Random(1)
    return open_folders(
        disk,
        arguments.pop("layout", layout()),  # type: ignore[arg-type]
        standalone=standalone,
        uuid=lambda: new_uuid(random),
        now_ms=1000,
        **arguments,  # type: ignore[arg-type]
    )


def test_formats_byte_for_byte_as_kafkas_storage_tool() -> None:
    kafka = golden("kafka-4.3.1-formatted")
    properties = MetaProperties.decode(kafka["meta.properties"])
    assert properties.directory_id is not None
    stamp_ms = next(iter(decode_batches(kafka[FIRST], FIRST))).header.base_timestamp
    disk = MemoryDisk()
    ids = iter([properties.directory_id])
    format_folders(disk, layout(), uuid=lambda: next(ids), now_ms=stamp_ms, cluster_id=properties.cluster_id)
    tree = disk.tree()
    assert {path.removeprefix(f"{DATA}/") for path in tree} == set(kafka)
    assert MetaProperties.decode(tree[f"{DATA}/meta.properties"]) == properties
    for path in ("bootstrap.checkpoint", FIRST):
        ours = list(decode_batches(tree[f"{DATA}/{path}"], path))
        theirs = list(decode_batches(kafka[path], path))
        assert len(tree[f"{DATA}/{path}"]) == len(kafka[path])
        assert [b.records for b in ours] == [b.records for b in theirs]
        for our, their in zip(ours, theirs):
            # Kafka takes the clock anew for each batch and for the header; all else is equal.
            for (our_kind, our_message), (kind, message) in zip(our.control, their.control, strict=True):
                assert our_kind == kind
                if not hasattr(message, "last_contained_log_timestamp"):
                    assert our_message == message
            assert our.header._replace(crc=0, base_timestamp=0, max_timestamp=0) == their.header._replace(
                crc=0, base_timestamp=0, max_timestamp=0
            )


def test_first_start_formats_and_the_second_finds_it() -> None:
    disk = MemoryDisk()
    first = opened(disk)
    tree = disk.tree()
    assert opened(disk) == first
    assert disk.tree() == tree


def test_a_member_of_a_cluster_is_never_formatted_implicitly() -> None:
    """An empty folder may be a disk that was lost."""
    disk = MemoryDisk()
    with pytest.raises(QuorumError, match="not formatted"):
        opened(disk, standalone=False)
    assert disk.tree() == {}


def test_kafkas_folder_is_recognised() -> None:
    disk = golden_disk("kafka-4.3.1-stopped")
    identity = opened(disk, standalone=False)
    assert identity.cluster_id == "aGVhZHJhY2VoZWFkcmFjZQ"  # type: ignore[attr-defined]
    names = [record.name for record, _ in read_bootstrap(disk, DATA)]
    assert names[0] == "metadata.version" and "share.version" in names


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("version=1\ncluster.id=c\nnode.id=2\ndirectory.id=49fgHe7wRvC3SgTBvufeeQ\n", "belongs to node 2"),
        ("version=0\nbroker.id=1\n", "ZooKeeper"),
        ("version=2\ncluster.id=c\nnode.id=1\n", "version 2"),
        ("version=1\ncluster.id=c\nnode.id=x\n", "is damaged"),
    ],
)
def test_foreign_old_new_and_damaged_folders_are_refused(text: str, why: str) -> None:
    disk = MemoryDisk()
    disk.make_dirs(DATA)
    disk.replace_bytes(f"{DATA}/meta.properties", text.encode())
    before = disk.tree()
    with pytest.raises(QuorumError, match=why) as refused:
        opened(disk)
    assert "\n" not in str(refused.value)
    assert disk.tree() == before


def test_data_without_meta_properties_is_not_formatted_over() -> None:
    disk = MemoryDisk()
    disk.make_dirs(f"{DATA}/orders-0")
    with pytest.raises(QuorumError, match="orders-0"):
        opened(disk)
    disk = golden_disk("kafka-4.3.1-stopped")
    disk.remove(f"{DATA}/meta.properties")
    with pytest.raises(QuorumError, match="__cluster_metadata-0"):
        opened(disk)


def test_wrong_cluster_is_refused() -> None:
    disk = golden_disk("kafka-4.3.1-stopped")
    with pytest.raises(QuorumError, match="belongs to cluster"):
        opened(disk, cluster_id="another")


def test_a_log_dir_that_was_added_is_adopted() -> None:
    disk = MemoryDisk()
    first = opened(disk)
    both = Layout(1, (DATA, "/more"), DATA, ())
    second = open_folders(disk, both, standalone=True, uuid=lambda: bytes(14) + b"\x09\x09", now_ms=0)
    assert second.directory_ids[DATA] == first.directory_ids[DATA]  # type: ignore[attr-defined]
    assert MetaProperties.decode(disk.read_bytes("/more/meta.properties")).directory_id == second.directory_ids["/more"]


def test_two_copies_of_one_log_dir_are_refused() -> None:
    disk = MemoryDisk()
    opened(disk)
    disk.make_dirs("/copy")
    disk.replace_bytes("/copy/meta.properties", disk.read_bytes(f"{DATA}/meta.properties"))
    with pytest.raises(QuorumError, match="the same directory"):
        opened(disk, layout=Layout(1, (DATA, "/copy"), DATA, ()))


def test_formatting_cut_short_anywhere_can_be_repeated() -> None:
    """After a power cut at any step the folder is either formatted or formatted anew."""
    for operations in range(1, 200):
        disk = MemoryDisk()
        disk.cut_after(operations)
        try:
            opened(disk)
        except PowerCut:
            pass
        else:
            break
        disk.crash(Random(operations))
        opened(disk)
        path = f"{METADATA}/00000000000000000000-0000000000.checkpoint"
        assert decode_snapshot(SnapshotId(0, 0), disk.read_bytes(path), path).voters
    else:
        pytest.fail("formatting never ended")
    disk.crash(Random(0))
    tree = disk.tree()
    assert f"{DATA}/meta.properties" in tree, "formatting ended before it was durable"


def test_ids_are_random_version_4_and_printable() -> None:
    random = Random(3)
    for _ in range(200):
        uuid = new_uuid(random)
        assert uuid[6] >> 4 == 4 and uuid[8] >> 6 == 2
        assert not encode_uuid(uuid).startswith("-")
        assert decode_uuid(encode_uuid(uuid)) == uuid


def test_a_folder_of_zookeepers_time_and_one_of_kraft_are_told_apart() -> None:
    def zookeeper(disk: MemoryDisk, cluster_id: str | None, may_format: bool = True) -> object:
        return open_zookeeper_folders(
            disk, layout(), uuid=lambda: new_uuid(Random(1)), cluster_id=cluster_id, may_format=may_format
        )

    disk = MemoryDisk()
    assert zookeeper(disk, None, may_format=False) is None, "whose cluster it will be is not known yet"
    identity = zookeeper(disk, "abc")
    assert b"broker.id=1\n" in disk.tree()[f"{DATA}/meta.properties"]
    assert zookeeper(disk, "abc") == zookeeper(disk, None, may_format=False) == identity
    with pytest.raises(QuorumError, match="belong to different clusters: abc, other"):
        zookeeper(disk, "other")
    with pytest.raises(QuorumError, match="from ZooKeeper mode"):
        opened(disk)
    disk = MemoryDisk()
    opened(disk)
    with pytest.raises(QuorumError, match="belongs to a node of a KRaft cluster"):
        zookeeper(disk, "abc")
