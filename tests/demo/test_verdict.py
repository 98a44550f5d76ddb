"""The demo's own judgement: it must see every way in which an event or a window can be lost, doubled or changed."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.client.consume.records import Record
from headrace.demo.check import check_group, check_rejects, check_windows, committed_files
from headrace.demo.expected import Expected, Totals
from headrace.demo.ledger import Book, Ledger, compare

RECORDS = [(index % 3, b"key-%d" % index, b"value-%d" % index) for index in range(30)]


@pytest.fixture
def ledger() -> Ledger:
    found = Ledger(3)
    for partition, key, value in RECORDS:
        found.sent(partition, key, value)
    return found


def received(skip: int = -1, change: int = -1) -> Book:
    book = Book(3)
    ends = [0, 0, 0]
    for number, (partition, key, value) in enumerate(RECORDS):
        if number != skip:
            book.got(partition, ends[partition], key, b"other" if number == change else value)
        ends[partition] += 1
    return book


def test_everything_once_is_right(ledger: Ledger) -> None:
    assert compare(ledger, received()).is_exact
    assert check_group("g", "all", ledger, received(), 0).kept


@pytest.mark.parametrize("number", [0, 14, 29])
def test_one_missing_event_is_seen(ledger: Ledger, number: int) -> None:
    found = compare(ledger, received(skip=number))
    assert found.missing == 1 and not found.is_exact
    assert not check_group("g", "all", ledger, received(skip=number), 3).kept


def test_one_changed_event_is_seen(ledger: Ledger) -> None:
    assert compare(ledger, received(change=5)).changed == 1
    assert not check_group("g", "all", ledger, received(change=5), 3).kept


def test_an_event_that_was_never_sent_is_seen(ledger: Ledger) -> None:
    book = received()
    book.got(1, 10, b"key", b"value")
    assert compare(ledger, book).unknown == 1 and not check_group("g", "all", ledger, book, 3).kept


def test_an_event_received_again_is_wrong_unless_the_group_lost_a_member(ledger: Ledger) -> None:
    book = received()
    book.got(0, 4, *RECORDS[12][1:])
    found = compare(ledger, book)
    assert (found.repeated, found.backwards, found.missing, found.changed) == (1, 1, 0, 0)
    assert not check_group("g", "all", ledger, book, 0).kept
    assert check_group("g", "all", ledger, book, 1).kept


WINDOWS = {(0, "books"): Totals(10, 2, 300), (5_000, "books"): Totals(7, 1, 100), (5_000, "toys"): Totals(3, 0, 0)}


def windows(*changes: Any) -> Any:
    rows = dict(WINDOWS)
    rows.update(changes)
    return [(window, totals) for window, totals in rows.items() if totals is not None]


def test_equal_windows_are_right() -> None:
    assert check_windows("there", WINDOWS, windows(), exactly_once=True).kept


@pytest.mark.parametrize("totals", [None, Totals(10, 2, 301), Totals(11, 2, 300), Totals(10, 1, 300)])
def test_a_window_missing_or_different_is_wrong(totals: Any) -> None:
    found = check_windows("there", WINDOWS, windows(((0, "books"), totals)), exactly_once=False)
    assert not found.kept and "(0, 'books')" in found.detail


def test_a_window_that_should_not_be_there_is_wrong() -> None:
    assert not check_windows("there", WINDOWS, windows(((10_000, "toys"), Totals(1, 0, 0))), exactly_once=False).kept


def test_a_window_there_again_is_right_only_where_at_least_once_is_promised() -> None:
    twice = [*windows(), windows()[0]]
    assert check_windows("there", WINDOWS, twice, exactly_once=False).kept
    assert not check_windows("there", WINDOWS, twice, exactly_once=True).kept


def letter(number: int, value: bytes | None = None, offset: bytes | None = None) -> Record:
    """The dead letter of one of RECORDS, as it should be unless told otherwise."""
    partition, key, sent = RECORDS[number]
    headers = (
        ("headrace.error.partition", b"%d" % partition),
        ("headrace.error.offset", offset or b"%d" % (number // 3)),
    )
    return Record("rejects", 0, 0, 0, key, value or sent, headers)


BROKEN = Expected({}, [RECORDS[number][1:] for number in (4, 9)])


def test_rejects_are_right_when_each_is_there_as_it_was_sent_however_often(ledger: Ledger) -> None:
    assert check_rejects(BROKEN, ledger, [letter(4), letter(9)]).kept
    assert check_rejects(BROKEN, ledger, [letter(4), letter(9), letter(4)]).kept


@pytest.mark.parametrize(
    "letters",
    [
        [letter(4)],
        [letter(4), letter(4)],
        [letter(4), letter(9), letter(10)],
        [letter(4), letter(10)],
        [letter(4), letter(9, value=b"other")],
        [letter(4), letter(9), letter(9, value=b"other")],
        [letter(4), letter(9, offset=b"2")],
        [letter(4), letter(9, offset=b"1000")],
        [letter(4), letter(9, offset=b"none")],
    ],
    ids=["missing", "twice", "too-many", "another", "changed", "changed-again", "elsewhere", "nowhere", "unsaid"],
)  # fmt: skip
def test_rejects_missing_changed_or_of_whole_events_are_wrong(ledger: Ledger, letters: Any) -> None:
    assert not check_rejects(BROKEN, ledger, letters).kept


def test_only_files_in_sparks_log_count(tmp_path: Path) -> None:
    log = tmp_path / "_spark_metadata"
    log.mkdir()

    def entry(name: str, action: str = "add") -> str:
        return json.dumps({"path": f"file://{tmp_path}/{name}", "action": action})

    (log / "8").write_text("v1\n" + entry("forgotten.parquet"))
    (log / "9.compact").write_text("v1\n" + entry("a.parquet") + "\n" + entry("b.parquet"))
    (log / "10").write_text("v1\n" + entry("c.parquet") + "\n" + entry("a.parquet", "delete"))
    (log / ".11.crc").write_bytes(b"")
    (tmp_path / "left-behind.parquet").write_bytes(b"")
    assert committed_files(tmp_path) == [tmp_path / "b.parquet", tmp_path / "c.parquet"]
