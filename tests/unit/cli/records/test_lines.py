"""Records as text and back: what `headrace produce` reads and `headrace consume` prints."""

import pytest
from hypothesis import given, strategies as st

from headrace.cli.records.input_lines import (
    InputRecord,
    LineSplitter,
    delimiter_of,
    from_json,
    from_line,
    header_of,
)
from headrace.cli.records.output_lines import decoder_of, formatted, json_lines, plain_lines
from headrace.client.api.types import Record
from headrace.client.errors import ClientError

TEXT = decoder_of("text", "--value-format")


def record(key: bytes | None = b"k", value: bytes | None = b"v", **fields: object) -> Record:
    headers = ((("a", b"1"), ("b", None)),) if fields.pop("with_headers", False) else ()
    return Record("orders", 2, 7, 1_700_000_000_000, key, value, *headers)


@given(st.lists(st.binary(max_size=8).map(lambda line: line.replace(b"\n", b""))), st.integers(1, 5))
def test_lines_are_the_same_wherever_chunks_end(lines: list[bytes], size: int) -> None:
    data = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter(b"\n")
    found = [line for at in range(0, len(data), size) for line in splitter.feed(data[at : at + size])]
    assert found + splitter.end() == lines


def test_a_last_line_without_its_end_counts() -> None:
    splitter = LineSplitter(b"\n")
    assert splitter.feed(b"one\ntw") == [b"one"] and splitter.end() == [b"tw"] and splitter.end() == []


def test_a_line_is_a_value_or_key_and_value() -> None:
    assert from_line(b"a:b", None, False) == InputRecord(None, b"a:b")
    assert from_line(b"a:b:c", b":", False) == InputRecord(b"a", b"b:c")
    assert from_line(b":", b":", True) == InputRecord(None, None)
    with pytest.raises(ClientError, match="no ':' between key and value in 'ab'"):
        from_line(b"ab", b":", False)


@given(
    st.none() | st.binary(max_size=20),
    st.none() | st.binary(max_size=20),
    st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3),
)
def test_what_consume_prints_as_json_produce_reads_back(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    line = json_lines(TEXT, TEXT)(Record("t", 3, 9, 5, key, value, tuple(headers)))
    assert from_json(line) == InputRecord(key, value, tuple(headers), 3, 5)


def test_json_that_is_more_than_text_is_written_as_json() -> None:
    assert from_json(b'{"value": {"amount": 3}, "headers": {"a": "b"}}') == InputRecord(
        None, b'{"amount":3}', (("a", b"b"),)
    )


@pytest.mark.parametrize(
    "line, words",
    [
        (b"{", "is not JSON"),
        (b"[1]", "is no record"),
        (b'{"a": 1}', "is no record"),
        (b'{"value": {"base64": "?"}}', "is not base64"),
        (b'{"value": 1, "partition": -1}', "partition is -1"),
        (b'{"value": 1, "timestamp": true}', "timestamp is True"),
        (b'{"value": 1, "headers": 5}', "headers are 5"),
        (b'{"value": 1, "headers": [1]}', "headers are"),
    ],
)
def test_json_that_is_no_record_is_refused(line: bytes, words: str) -> None:
    with pytest.raises(ClientError, match=words):
        from_json(line)


def test_options_that_are_bytes() -> None:
    assert header_of("a=b=c") == ("a", b"b=c") and header_of("a") == ("a", None)
    assert delimiter_of(r"\t\x1e\\", "-D") == b"\t\x1e\\"
    with pytest.raises(ClientError, match="write NAME=VALUE"):
        header_of("=b")
    with pytest.raises(ClientError, match=r"-D \\q"):
        delimiter_of(r"\q", "-D")


def test_a_format_has_kcats_letters() -> None:
    write = formatted(r"%t-%p@%o %T %k(%K)=%s(%S) [%h] 5%%\x41\n", TEXT)
    assert write(record(with_headers=True)) == b"orders-2@7 1700000000000 k(1)=v(1) [a=1,b] 5%A\n"
    assert write(record(None, None)) == b"orders-2@7 1700000000000 (-1)=(-1) [] 5%A\n"
    with pytest.raises(ClientError, match="%x has no meaning"):
        formatted("%x", TEXT)


def test_plain_lines_show_what_was_asked_for() -> None:
    assert plain_lines(False, False, TEXT)(record()) == b"v\n"
    assert plain_lines(True, True, TEXT)(record(with_headers=True)) == b"a=1,b\tk\tv\n"


def test_values_of_another_format_do_not_end_the_reading() -> None:
    as_json = decoder_of("json", "--value-format")
    assert plain_lines(False, False, as_json)(record(value=b'{ "a": 1 }')) == b'{"a":1}\n'
    assert plain_lines(False, False, as_json)(record(value=b"plain")) == b"plain\n"
    assert plain_lines(False, False, decoder_of("hex", ""))(record(value=b"\xff")) == b"ff\n"
    assert plain_lines(False, False, decoder_of("msgpack", ""))(record(value=b"\x81\xa1a\x01")) == b'{"a":1}\n'
    with pytest.raises(ClientError, match="write one of text"):
        decoder_of("xml", "--value-format")
