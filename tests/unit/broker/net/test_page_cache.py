"""What the page cache holds, as the kernel tells it, and bringing in what it does not."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.broker.net.page_cache import AHEAD, KNOWN_S, PAGE_BYTES, RECENT_BYTES, CachedAhead, PageCache, read_ahead
from headrace.storage.files import RealDisk
from headrace.storage.log import Slice
from headrace.storage.pool import FilePool, Handle

BYTES = 64 * PAGE_BYTES
OLD = 1 << 62
"""The size to give for a file that is not written to any more."""


class Owner:
    def is_dirty(self) -> bool:
        return False

    def evicted(self) -> None: ...


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[Handle]:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(BYTES))
    opened = Handle(FilePool(RealDisk()), str(path), Owner())
    yield opened
    opened.close()


@pytest.fixture
def cache() -> PageCache:
    found = PageCache()
    if not found.supported:
        pytest.skip("this kernel has no cachestat (Linux 6.5)")
    return found


def piece(handle: Handle, position: int = 0, length: int = BYTES) -> Slice:
    return Slice(handle, handle.pin(), position, length)


def drop(handle: Handle, position: int = 0, length: int = 0) -> None:
    """Out of the page cache, if the file system lets go of it."""
    fd = handle.open().fd
    os.fsync(fd)
    os.posix_fadvise(fd, position, length, os.POSIX_FADV_DONTNEED)


def test_what_was_just_written_is_there(handle: Handle, cache: PageCache) -> None:
    with_all = piece(handle)
    assert cache.holds(with_all, OLD)
    with_all.release()


def test_missing_pages_are_seen_and_read_ahead(handle: Handle, cache: PageCache) -> None:
    drop(handle)
    whole, across = piece(handle), piece(handle, 20 * PAGE_BYTES - 1, 2)
    if cache._cached_pages(handle.open().fd, 0, BYTES):
        pytest.skip("this file system keeps its pages")
    assert not cache.holds(across, OLD)
    assert not cache.holds(whole, OLD)
    assert read_ahead([across]) == []
    assert cache.holds(across, OLD)
    assert read_ahead([whole]) == []
    assert cache.holds(whole, OLD)
    whole.release()
    across.release()


def test_the_recent_tail_needs_no_question(handle: Handle) -> None:
    cache = PageCache()
    cache.supported = False
    tail = piece(handle)
    assert cache.holds(tail, BYTES), "written last, so in memory"
    assert not cache.holds(tail, BYTES + RECENT_BYTES + 1)
    assert not cache.holds(tail, OLD), "without an answer from the kernel everything else counts as cold"
    tail.release()


def test_who_reads_on_need_not_ask_each_time(handle: Handle, cache: PageCache, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    ask = cache._cached_pages

    def counted(fd: int, position: int, length: int) -> int | None:
        asked.append(position // PAGE_BYTES)
        return ask(fd, position, length)

    monkeypatch.setattr(cache, "_cached_pages", counted)
    pieces = [piece(handle, page * PAGE_BYTES, PAGE_BYTES) for page in range(BYTES // PAGE_BYTES)]
    ahead = CachedAhead(cache)
    assert all(ahead.holds(one, OLD, 0.0) for one in pieces)
    assert asked[:3] == [0, AHEAD, 2 * AHEAD]
    assert len(asked) == len(pieces) // AHEAD, "the last of them was whole, too"
    asked.clear()
    assert ahead.holds(pieces[-1], OLD, KNOWN_S - 0.1) and not asked
    assert ahead.holds(pieces[-1], OLD, KNOWN_S), "what was seen long ago does not count"
    assert asked, "nor is there anything behind the last page"
    asked.clear()
    assert ahead.holds(pieces[0], OLD, 0.0) and asked == [0], "nor does it count for what lies before"
    assert ahead.holds(pieces[40], BYTES, 0.0) and asked == [0], "what was written last needs no question"
    for one in pieces:
        one.release()


def test_the_outlook_is_of_what_was_asked_for_in_one_file(
    handle: Handle, cache: PageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = set(range(AHEAD))
    monkeypatch.setattr(
        cache, "_cached_pages",
        lambda fd, position, length: len(there & set(range(position // PAGE_BYTES, (position + length) // PAGE_BYTES))),
    )  # fmt: skip
    ahead = CachedAhead(cache)
    pieces = [piece(handle, page * PAGE_BYTES, PAGE_BYTES) for page in range(AHEAD)]
    assert ahead.holds(pieces[0], OLD, 0.0)
    there.clear()
    assert all(ahead.holds(one, OLD, 0.0) for one in pieces), "it has been asked for"
    opened = Handle(FilePool(RealDisk()), handle.path, Owner())
    again = piece(opened, PAGE_BYTES, PAGE_BYTES)
    assert not ahead.holds(again, OLD, 0.0), "another file, for all it knows"
    there.add(0)
    ahead = CachedAhead(cache)
    assert [ahead.holds(one, OLD, 0.0) for one in pieces[:2]] == [True, False], "not all that lies ahead is there"
    for one in (*pieces, again):
        one.release()
    opened.close()


def test_the_outlook_sees_missing_pages(handle: Handle, cache: PageCache) -> None:
    drop(handle)
    first, second = piece(handle, 0, PAGE_BYTES), piece(handle, 32 * PAGE_BYTES, PAGE_BYTES)
    if cache._cached_pages(handle.open().fd, 0, BYTES):
        pytest.skip("this file system keeps its pages")
    ahead = CachedAhead(cache)
    assert not ahead.holds(first, OLD, 0.0)
    os.posix_fadvise(first.fd, 0, 0, os.POSIX_FADV_RANDOM)  # no more than is asked for
    os.pread(first.fd, 1, 0)
    assert ahead.holds(first, OLD, 0.0), "although what comes next is not there"
    assert not ahead.holds(second, OLD, 0.0)
    first.release()
    second.release()


def test_a_file_that_cannot_be_read_is_named(handle: Handle, monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = piece(handle, 0, 100), piece(handle, 200, 100)
    read = Slice.read

    def failing(self: Slice, length: int | None = None, at: int = 0) -> bytes:
        if self is bad:
            raise OSError(5, "Input/output error")
        return read(self, length, at)

    monkeypatch.setattr(Slice, "read", failing)
    assert read_ahead([good, bad]) == [bad]
    good.release()
    bad.release()


def test_a_file_that_ends_early_does_not_stop_the_thread(handle: Handle) -> None:
    os.truncate(handle.path, 10)
    short = piece(handle)
    assert read_ahead([short]) == []
    short.release()
