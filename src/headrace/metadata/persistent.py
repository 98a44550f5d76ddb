"""A map that is never changed, only replaced, at a cost that does not grow with the cluster.

The keys are spread over about sqrt(n) small dicts. A new version copies the list of dicts and the dicts it touches,
so that changing one of a million partitions copies some two thousand references and not a million.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar
from zlib import crc32

K = TypeVar("K")
V = TypeVar("V")


def spread(key: Any) -> int:
    """A number that picks the shard. Not `hash()`: that is salted per process, and a replayed run must iterate
    alike."""
    kind = type(key)
    if kind is int:
        return key  # type: ignore[no-any-return]
    if kind is bytes:
        return int.from_bytes(key[-8:], "big")
    if kind is str:
        return crc32(key.encode("utf-8", "surrogatepass"))
    if kind is tuple:
        if len(key) == 2 and type(key[0]) is bytes and type(key[1]) is int:
            # A partition: by far the most keys of a large cluster. The same number as below, without the calls.
            mixed = (((527 + int.from_bytes(key[0][-8:], "big")) & 0xFFFFFFFFFFFF) * 31 + key[1]) & 0xFFFFFFFFFFFF
            return mixed ^ (mixed >> 20)
        mixed = 17
        for part in key:
            mixed = (mixed * 31 + spread(part)) & 0xFFFFFFFFFFFF
        return mixed ^ (mixed >> 20)
    if key is None:
        return 0
    return int(key)


def _shard_count(size: int) -> int:
    """How many shards suit `size` entries: one up to 32, then a power of four with at most twice as many in each."""
    if size <= 32:
        return 1
    count = 16
    while size > 2 * count * count:
        count *= 4
    return count


class PersistentMap(Mapping[K, V], Generic[K, V]):
    """Immutable mapping. `update` returns the next version and shares all that did not change."""

    __slots__ = ("_mask", "_shards", "_size")

    def __init__(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        source = dict(items)
        self._build(source)

    def _build(self, source: dict[K, V]) -> None:
        count = _shard_count(len(source))
        self._size = len(source)
        self._mask = count - 1
        if count == 1:
            self._shards: tuple[dict[K, V], ...] = (source,)
            return
        shards: list[dict[K, V]] = [{} for _ in range(count)]
        mask = count - 1
        for key, value in source.items():
            shards[spread(key) & mask][key] = value
        self._shards = tuple(shards)

    def __getitem__(self, key: K) -> V:
        mask = self._mask
        return self._shards[spread(key) & mask if mask else 0][key]

    def get(self, key: K, default: Any = None) -> Any:
        mask = self._mask
        return self._shards[spread(key) & mask if mask else 0].get(key, default)

    def __contains__(self, key: object) -> bool:
        mask = self._mask
        return key in self._shards[spread(key) & mask if mask else 0]

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[K]:
        for shard in self._shards:
            yield from shard

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self)!r})"

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Mapping):
            return NotImplemented
        return len(self) == len(other) and dict(self) == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def update(self, changed: Mapping[K, V], removed: Collection[K] = ()) -> "PersistentMap[K, V]":
        """The next version, with `removed` keys gone and `changed` set. Costs what changed plus about sqrt(n)."""
        if not changed and not removed:
            return self
        count = _shard_count(self._size + len(changed))
        # Far apart, so that a map that grows and shrinks around a limit is not rebuilt at each step. By what will be
        # left: there may be no next step for a map that has lost the last of many keys.
        left = _shard_count(self._size + len(changed) - len(removed))
        if count > self._mask + 1 or left * 16 <= self._mask:
            return self._rebuilt(changed, removed)
        shards = list(self._shards)
        copied: set[int] = set()
        size = self._size
        mask = self._mask
        for key in removed:
            index = spread(key) & mask
            if key in shards[index]:
                if index not in copied:
                    copied.add(index)
                    shards[index] = dict(shards[index])
                del shards[index][key]
                size -= 1
        for key, value in changed.items():
            index = spread(key) & mask
            if index not in copied:
                copied.add(index)
                shards[index] = dict(shards[index])
            shard = shards[index]
            if key not in shard:
                size += 1
            shard[key] = value
        return self._version(tuple(shards), mask, size)

    def _rebuilt(self, changed: Mapping[K, V], removed: Collection[K]) -> "PersistentMap[K, V]":
        source = dict(self)
        for key in removed:
            source.pop(key, None)
        source.update(changed)
        return PersistentMap(source)

    @staticmethod
    def _version(shards: tuple[dict[K, V], ...], mask: int, size: int) -> "PersistentMap[K, V]":
        result: PersistentMap[K, V] = PersistentMap.__new__(PersistentMap)
        result._shards = shards
        result._mask = mask
        result._size = size
        return result
