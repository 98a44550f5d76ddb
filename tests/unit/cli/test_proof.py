"""The demo's own judgement: it must see every way in which a record can be lost or changed."""

from typing import Any

import pytest

from headrace.demo.quick import BATCH_RECORDS, DemoFailed, build_batches, compare, read_rows
from headrace.records.batch import read_header


@pytest.fixture
def stored() -> Any:
    """Batches of a thousand records as if acknowledged, and the rows a broker would give back."""
    batches = build_batches(1000)
    ends: dict[int, int] = {}
    rows: dict[int, dict[int, Any]] = {}
    for batch in batches:
        batch.base_offset = ends.get(batch.partition, 0)
        ends[batch.partition] = batch.base_offset + len(batch.records)
        for offset, record in enumerate(batch.records, batch.base_offset):
            rows.setdefault(batch.partition, {})[offset] = record
    return batches, rows


def test_batches_hold_every_record_once_and_keys_stay_together() -> None:
    batches = build_batches(5000)
    values = [value for batch in batches for _, value in batch.records]
    assert len(values) == len(set(values)) == 5000
    places: dict[bytes, int] = {}
    for batch in batches:
        assert len(batch.records) <= BATCH_RECORDS and read_header(batch.data).count == len(batch.records)
        for key, _ in batch.records:
            assert places.setdefault(key, batch.partition) == batch.partition


def test_what_was_sent_can_be_read(stored: Any) -> None:
    batches, _ = stored
    assert list(read_rows([batches[0].data]).values()) == batches[0].records


def test_a_whole_log_passes_even_with_records_sent_twice(stored: Any) -> None:
    batches, rows = stored
    rows[0][max(rows[0]) + 1] = (b"again", b"again")
    compare(batches, rows)


@pytest.mark.parametrize("harm", ["missing", "different"])
def test_one_record_lost_or_changed_fails(stored: Any, harm: str) -> None:
    batches, rows = stored
    if harm == "missing":
        del rows[2][7]
    else:
        rows[2][7] = (rows[2][7][0], b"something else")
    with pytest.raises(DemoFailed, match=f"orders-2: the record acknowledged at offset 7 is {harm}"):
        compare(batches, rows)
