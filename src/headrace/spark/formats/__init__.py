"""Typed values: bytes of a topic to Arrow columns and back, by JSON, Avro or Protobuf.

`decoder_for` and `encoder_for` check schema and options on the driver; what they return is pickled into tasks. A row
that cannot be decoded or encoded is null and has its reason told; what becomes of it is `bad_rows`' business.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.types import DataType, StructType

from headrace.spark.formats.schemas import FormatError, SchemaSource

__all__ = ["FormatError", "ValueDecoder", "ValueEncoder", "decoder_for", "encoder_for"]

Errors = dict[int, str]
"""Why a row is bad, by its index."""


class ValueDecoder(Protocol):
    """Values to typed columns. Picklable."""

    spark_schema: DataType
    """What the column `value` becomes."""

    def decode(self, values: pa.Array) -> tuple[pa.Array, Errors]:
        """A column of `spark_schema`, as long as `values`; null where the value is null or bad."""
        ...


class ValueEncoder(Protocol):
    """Typed columns to values. Picklable."""

    def encode(self, values: pa.StructArray) -> tuple[pa.Array, Errors]:
        """A binary column as long as `values`; null where the struct is null or cannot be encoded."""
        ...


def decoder_for(values: Mapping[str, Any]) -> ValueDecoder:
    """The decoder that checked options ask for; `valueFormat` must be set. Raises OptionError or FormatError."""
    source = SchemaSource.for_reading(values)
    kind = values["valueFormat"]
    if kind == "json":
        from headrace.spark.formats.json import json_decoder

        return json_decoder(source)
    if kind == "avro":
        from headrace.spark.formats.avro import avro_decoder

        return avro_decoder(source)
    from headrace.spark.formats.protobuf import protobuf_decoder

    return protobuf_decoder(source, values["valueMessage"])


def encoder_for(values: Mapping[str, Any], columns: StructType) -> ValueEncoder:
    """The encoder for columns of these types. Raises OptionError or FormatError."""
    source = SchemaSource.for_writing(values)
    kind = values["valueFormat"]
    if kind == "json":
        from headrace.spark.formats.json import json_encoder

        return json_encoder(source, columns)
    if kind == "avro":
        from headrace.spark.formats.avro import avro_encoder

        return avro_encoder(source, columns)
    from headrace.spark.formats.protobuf import protobuf_encoder

    return protobuf_encoder(source, values["valueMessage"], columns)
