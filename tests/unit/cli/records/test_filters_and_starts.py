"""Which records are wanted: `--where`, and `--from`."""

import pytest

from headrace.cli.records.consume import partitions_of
from headrace.cli.records.filters import where
from headrace.cli.records.starts import start_of
from headrace.client.api.types import Record
from headrace.client.errors import ClientError
from headrace.tools.ranges import Start, first_offset

ORDER = Record("orders", 1, 5, 1000, b"ada", b'{"amount": 12, "tags": ["new"], "who": {"age": 3}}', (("src", b"web"),))
PLAIN = Record("orders", 0, 6, 1001, None, b"hello")


@pytest.mark.parametrize(
    "expression",
    [
        "value.amount > 10",
        'key == "ada" and partition == 1',
        '"new" in value.tags',
        'value["who"]["age"] + 1 == 4',
        'headers.src == "web"',
        "1 <= offset < 6",
        'not (key == "bob")',
        'value.tags[0] == "new" or False',
        'key in ("ada", "bob")',
        "-value.amount == -12",
    ],
)
def test_an_expression_holds(expression: str) -> None:
    assert where(expression)(ORDER)


def test_what_a_record_does_not_have_never_holds() -> None:
    for expression in ("value.amount > 0", "value.amount != 1", "value.a.b.c == 1", "headers.src == 'x'", "key > 1"):
        assert not where(expression)(PLAIN)
    assert where("key is None and value == 'hello'")(PLAIN)


@pytest.mark.parametrize(
    "expression",
    ["open('x')", "value.__class__()", "lambda: 1", "[x for x in value]", "9**9**9", "x", "", "a b", "f'{key}'"],
)
def test_nothing_but_comparisons_is_taken(expression: str) -> None:
    with pytest.raises(ClientError, match="--where"):
        where(expression)


def test_attributes_are_fields_of_the_record_and_nothing_of_python() -> None:
    assert not where("value.__class__ == 1 or key.upper")(ORDER)


def test_where_reading_begins() -> None:
    assert start_of("earliest", 0) == Start(word="earliest")
    assert start_of("17", 0) == Start(offset=17)
    assert start_of("-5", 0) == Start(before_end=5)
    assert start_of("2h", 7_200_005) == Start(time_ms=5)
    assert start_of("1970-01-01T00:00:01+00:00", 0) == Start(time_ms=1000)
    with pytest.raises(ClientError, match="--from soon: write earliest"):
        start_of("soon", 0)


def test_reading_begins_within_what_is_there() -> None:
    assert first_offset(Start(word="earliest"), 10, 20, None) == 10
    assert first_offset(Start(word="latest"), 10, 20, None) == 20
    assert first_offset(Start(offset=3), 10, 20, None) == 10
    assert first_offset(Start(before_end=4), 10, 20, None) == 16
    assert first_offset(Start(before_end=99), 10, 20, None) == 10
    assert first_offset(Start(time_ms=1), 10, 20, 12) == 12
    assert first_offset(Start(time_ms=1), 10, 20, -1) == 20


def test_partitions_are_numbers_and_ranges() -> None:
    assert partitions_of("0,2, 5-7") == {0, 2, 5, 6, 7}
    for wrong in ("", "a", "1-", "0-99999999"):
        with pytest.raises(ClientError, match="--partitions"):
            partitions_of(wrong)
