"""A batch query over topics, on the driver: which offsets it reads, and how they are split into tasks.

`range_reader` reads them, in the tasks.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.spark.plain_errors import plain_errors
from headrace.spark.source.filters import FilterBounds
from headrace.spark.source.lookup import Lookup
from headrace.spark.source.offsets import OffsetRange, split
from headrace.spark.source.options import SourceOptions
from headrace.spark.source.range_reader import RangePartition, read_range
from headrace.spark.source.schema import check_schema, typed_values


class HeadraceBatchReader(DataSourceReader):
    """A batch query: one range of offsets per partition, fixed when the query is planned."""

    def __init__(self, schema: StructType, given: Mapping[str, str]) -> None:
        self._options = SourceOptions.read(given, streaming=False)
        self._typed = typed_values(self._options)
        check_schema(schema, self._options.values, self._typed and self._typed.decoder.spark_schema)
        self._schema = schema
        self._bounds = FilterBounds()

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        options = self._options
        with Lookup(options) as lookup:
            found = lookup.partitions()
            starts = lookup.resolve(options.start, found, starting=True)
            ends = lookup.resolve(options.end, found, starting=False)
            ranges = [OffsetRange(*one, starts[one], ends[one]) for one in found]
            ranges = self._bounds.narrow(ranges, lookup)
        return input_partitions(options, ranges)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_range(self._options, self._schema, partition, self._typed)


class FilteringBatchReader(HeadraceBatchReader):
    """The same with filters pushed down. A class of its own: with filter pushdown switched off, Spark fails a query
    whose reader has `pushFilters` at all."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
        for one in filters:
            self._bounds.take(one)
            # Ranges are cut at offsets, never inside: Spark still looks at each row.
            yield one


def batch_reader(schema: StructType, given: Mapping[str, str]) -> HeadraceBatchReader:
    options = SourceOptions.read(given, streaming=False)
    return FilteringBatchReader(schema, given) if options.values["pushFilters"] else HeadraceBatchReader(schema, given)


def input_partitions(options: SourceOptions, ranges: list[OffsetRange]) -> list[InputPartition]:
    return [
        RangePartition(*one)
        for one in split(ranges, options.values["minPartitions"], options.values["maxRecordsPerPartition"])
    ]
