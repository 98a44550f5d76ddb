"""The small files: checkpoints, epochs, indexes, and what is refused of them."""

import pytest
from hypothesis import given, strategies as st

from headrace.replication.producers import AbortedTransaction
from headrace.storage.checkpoints import (
    OWN_SEPARATOR,
    CorruptCheckpoint,
    MetaProperties,
    decode_clean_shutdown,
    decode_offsets,
    decode_partition_metadata,
    decode_uuid,
    encode_clean_shutdown,
    encode_offsets,
    encode_partition_metadata,
    encode_uuid,
)
from headrace.storage.epochs import EpochCache
from headrace.storage.indexes import CorruptIndex, OffsetIndex, TimeIndex, decode_aborted, encode_aborted

UUID = bytes(range(16))


def test_offset_checkpoints_are_kafkas_text() -> None:
    offsets = {("b", 0): 5, ("a-b", 10): 0, ("a-b", 2): 1 << 60}
    text = encode_offsets(offsets)
    assert text == b"0\n3\na-b 2 1152921504606846976\na-b 10 0\nb 0 5\n"
    assert decode_offsets(text) == offsets


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"0\n",
        b"1\n0\n",
        b"0\n2\na 0 1\n",
        b"0\n1\na 0\n",
        b"0\n1\na x 1\n",
        b"0\n1\na 0 -1\n",
        b"\0" * 40,
        b"0\n1\na b c d\n",
    ],
)
def test_damaged_checkpoints_are_refused(text: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        decode_offsets(text)


def test_a_flipped_bit_makes_no_other_offset() -> None:
    """Headrace's own checkpoints are sealed, line by line. Kafka splits at white space, and Java drops what is empty at
    the end."""
    offsets = {("orders", 0): 5, ("orders", 1): 1234}
    epochs = cache((0, 0), (3, 17))
    for text, read, right in (
        (encode_offsets(offsets, OWN_SEPARATOR), decode_offsets, offsets),
        (epochs.encode(), lambda data: EpochCache.decode(data).entries, epochs.entries),
    ):
        assert read(text) == right
        assert [len(line.split()) for line in text.decode().splitlines()[2:]] == [
            len(next(iter(right))) + (right is offsets)
        ] * 2
        for at in range(len(text) * 8):
            flipped = bytearray(text)
            flipped[at // 8] ^= 1 << at % 8
            try:
                assert read(bytes(flipped)) == right, bytes(flipped)
            except CorruptCheckpoint:
                pass
        for size in range(len(text) - 1):
            with pytest.raises(CorruptCheckpoint):
                read(text[:size])


def test_partition_metadata() -> None:
    text = encode_partition_metadata(UUID)
    assert text == b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    assert decode_partition_metadata(text) == UUID
    for bad in (
        b"version: 1\ntopic_id: x",
        b"version: 0",
        b"version: 0\ntopic_id: AAAA",
        b"version: 0\ntopic_id: " + b"A" * 22,
    ):
        with pytest.raises(CorruptCheckpoint):
            decode_partition_metadata(bad)


def test_partition_metadata_tells_whose_it_is() -> None:
    text = encode_partition_metadata(UUID, "t-0")
    assert text.startswith(encode_partition_metadata(UUID) + b"\nof: t-0 "), "Kafka reads the first two lines"
    assert decode_partition_metadata(text, "t-0") == decode_partition_metadata(text) == UUID
    with pytest.raises(CorruptCheckpoint, match="it is that of t-0"):
        decode_partition_metadata(text, "u-0")
    for at in range(len(text) * 8):
        flipped = bytearray(text)
        flipped[at // 8] ^= 1 << at % 8
        try:
            assert decode_partition_metadata(bytes(flipped), "t-0") == UUID, flipped
        except CorruptCheckpoint:
            pass
    for size in range(len(text)):
        try:
            assert decode_partition_metadata(text[:size], "t-0") == UUID
        except CorruptCheckpoint:
            pass


def test_meta_properties() -> None:
    meta = MetaProperties("cluster:1", 7, UUID)
    assert MetaProperties.decode(meta.encode()) == meta
    kafkas = (
        b"#\n#Sat Nov 14 10:00:00 UTC"
        b" 2026\ncluster.id=Some\\=Id\ndirectory.id=AAECAwQFBgcICQoLDA0ODw\nnode.id=7\nversion=1\n"
    )
    assert MetaProperties.decode(kafkas) == MetaProperties("Some=Id", 7, UUID)
    assert MetaProperties.decode(b"version=0\nbroker.id=3\n") == MetaProperties(None, 3, None, 0)
    for bad in (
        b"version=2\n",
        b"version=x\n",
        b"version=1\nnode.id=x\n",
        b"version=1\ndirectory.id=abc\n",
        b"\xff\xfe",
    ):
        with pytest.raises(CorruptCheckpoint):
            MetaProperties.decode(bad)


def test_clean_shutdown_mark() -> None:
    assert encode_clean_shutdown(12) == b'{"version":0,"brokerEpoch":12}'
    assert decode_clean_shutdown(b'{"version":0,"brokerEpoch":12}') == 12
    for old in (b"", b"[]", b"{}", b"null", b'{"brokerEpoch":null}'):
        assert decode_clean_shutdown(old) == -1


@given(st.binary(min_size=16, max_size=16))
def test_uuids_round_trip(uuid: bytes) -> None:
    assert decode_uuid(encode_uuid(uuid)) == uuid


@pytest.mark.parametrize("text", ["", "abc", "!" * 22, "A" * 23, "ä" * 22])
def test_bad_uuids_are_refused(text: str) -> None:
    with pytest.raises(CorruptCheckpoint):
        decode_uuid(text)


# -- epochs


def cache(*entries: tuple[int, int]) -> EpochCache:
    made = EpochCache()
    for epoch, start in entries:
        made.assign(epoch, start)
    return made


def test_epoch_ends_as_kip_101_wants_them() -> None:
    epochs = cache((2, 10), (4, 20), (7, 30))
    ends = {asked: epochs.end_offset_for(asked, 40) for asked in range(-1, 9)}
    assert ends == {
        -1: (-1, -1), 0: (0, 10), 1: (1, 10), 2: (2, 20), 3: (2, 20), 4: (4, 30), 5: (4, 30), 6: (4, 30), 7: (7, 40),
        8: (-1, -1),
    }  # fmt: skip
    assert EpochCache().end_offset_for(0, 5) == (-1, -1)
    assert [epochs.epoch_for(offset) for offset in (9, 10, 19, 20, 99)] == [-1, 2, 2, 4, 7]


def test_epochs_that_contradict_a_newer_one_go() -> None:
    epochs = cache((1, 0), (2, 10), (3, 20))
    epochs.assign(4, 15)
    assert epochs.entries == [(1, 0), (2, 10), (4, 15)]
    epochs.assign(4, 18)  # it began earlier
    assert epochs.entries[-1] == (4, 15)
    epochs.assign(4, 12)
    assert epochs.entries[-1] == (4, 12)


def test_epochs_are_cut_at_both_ends() -> None:
    epochs = cache((1, 0), (2, 10), (3, 20))
    epochs.dirty = False
    epochs.truncate_from_end(25)
    assert not epochs.dirty
    epochs.truncate_from_end(20)
    assert epochs.dirty and epochs.latest_epoch == 2
    epochs.truncate_from_start(12)
    assert epochs.entries == [(2, 12)]
    epochs.truncate_from_end(0)
    assert epochs.latest_epoch == -1


def test_epoch_file() -> None:
    epochs = cache((0, 0), (5, 100))
    assert b"\n".join(line.rstrip() for line in epochs.encode().split(b"\n")) == b"0\n2\n0 0\n5 100\n"
    assert EpochCache.decode(b"0\n2\n0 0\n5 100\n").entries == epochs.entries, "as Kafka writes it"
    assert EpochCache.decode(epochs.encode()).entries == epochs.entries
    for bad in (b"0\n1\nx 0\n", b"0\n1\n1\n", b""):
        with pytest.raises(CorruptCheckpoint):
            EpochCache.decode(bad)


# -- indexes

ints = st.integers(0, (1 << 31) - 1)


@given(st.lists(st.tuples(ints, ints.filter(bool)), unique_by=(lambda e: e[0], lambda e: e[1])), st.integers(0, 50))
def test_offset_index_round_trips_with_kafkas_padding(entries: list[tuple[int, int]], padding: int) -> None:
    index = OffsetIndex()
    for offset, position in zip(sorted(e[0] for e in entries), sorted(e[1] for e in entries)):
        index.append(offset, position)
    data = index.encode()
    again = OffsetIndex.decode(data + bytes(8 * padding))
    assert (again.offsets, again.positions) == (index.offsets, index.positions)
    assert data == b"".join(o.to_bytes(4, "big") + p.to_bytes(4, "big") for o, p in zip(index.offsets, index.positions))


@given(
    st.lists(st.tuples(st.integers(1, (1 << 62)), ints), unique_by=(lambda e: e[0], lambda e: e[1])), st.integers(0, 50)
)
def test_time_index_round_trips_with_kafkas_padding(entries: list[tuple[int, int]], padding: int) -> None:
    index = TimeIndex()
    for timestamp, offset in zip(sorted(e[0] for e in entries), sorted(e[1] for e in entries)):
        index.append(timestamp, offset)
    again = TimeIndex.decode(index.encode() + bytes(12 * padding))
    assert (again.timestamps, again.offsets) == (index.timestamps, index.offsets)


def test_time_index_takes_only_what_is_new_and_grows() -> None:
    index = TimeIndex()
    for timestamp, offset in ((5, 1), (5, 2), (4, 3), (7, 4)):
        index.append(timestamp, offset)
    assert (list(index.timestamps), list(index.offsets)) == ([5, 7], [1, 4])
    assert [index.offset_before(timestamp) for timestamp in (4, 5, 6, 7, 8)] == [0, 1, 1, 4, 4]
    backward = index.encode()[12:] + index.encode()[:12]
    with pytest.raises(CorruptIndex):
        TimeIndex.decode(backward).check()


def test_transaction_index() -> None:
    entries = [AbortedTransaction(1, 100, 110, 105), AbortedTransaction(2, 105, 120, 121)]
    data = b"".join(map(encode_aborted, entries))
    assert len(data) == 68
    assert decode_aborted(data, 100) == entries
    assert decode_aborted(data + b"torn", 100) == entries
    with pytest.raises(CorruptIndex):
        decode_aborted(data, 115)
    with pytest.raises(CorruptIndex):
        decode_aborted(b"\0\1" + data[2:], 100)
