"""Bad rows that stay: `errorColumn` keeps them in the query, with the reason, beside their letter."""

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs headrace[spark]")

from headrace.spark.formats import decoder_for
from headrace.spark.formats.bad_rows import TypedValues
from headrace.spark.options import OptionError
from headrace.spark.source.options import SourceOptions
from headrace.spark.source.schema import source_schema

OPTIONS = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "subscribe": "orders",
    "valueFormat": "json",
    "valueSchema": "id BIGINT",
    "badRows": "deadLetter",
    "deadLetterTopic": "bad",
    "errorColumn": "why",
}


def test_the_error_column_is_one_more_and_empty_where_all_is_well() -> None:
    assert source_schema(OPTIONS).simpleString().endswith("timestampType:int,why:string>")
    values = SourceOptions.read(OPTIONS).values
    typed = TypedValues(decoder_for(values), values, {})
    wanted = ["offset", "value", "why"]
    assert "why" not in typed.raw_columns(wanted)
    batch = pa.RecordBatch.from_pydict({"offset": [5, 6], "value": [b'{"id": 1}', b'{"id": 3}']})
    offsets, decoded, why = typed.apply(batch, "orders", 0, wanted)
    assert offsets.to_pylist() == [5, 6] and decoded.to_pylist() == [{"id": 1}, {"id": 3}]
    assert why.to_pylist() == [None, None]
    (alone,) = typed.apply(batch, "orders", 0, ["why"])
    assert alone.to_pylist() == [None, None]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"badRows": "fail", "deadLetterTopic": None}, "'errorColumn' is set, but badRows is 'fail': set badRows"),
        ({"errorColumn": "Value"}, "'errorColumn' is 'Value', which is a column already: choose another"),
    ],
)
def test_an_error_column_that_makes_no_sense_is_refused(changed: dict[str, str | None], message: str) -> None:
    options = {name: value for name, value in (OPTIONS | changed).items() if value is not None}
    with pytest.raises(OptionError, match=message):
        source_schema(options)
