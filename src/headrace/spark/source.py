"""The readers of format("headrace"): what a batch query and a stream ask of it, on the driver.

Offsets are decided here and turned into ranges; `reader` reads them in tasks.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.spark.filters import Narrowing
from headrace.spark.lookup import Lookup
from headrace.spark.offsets import OffsetRange, split
from headrace.spark.plain_errors import plain_errors
from headrace.spark.plan import Plan, read_plan
from headrace.spark.reader import RangePartition, read_range
from headrace.spark.schema import check_schema, typed_values


class HeadraceReader(DataSourceReader):
    """A batch query: one range of offsets per partition, fixed when the query is planned."""

    def __init__(self, schema: StructType, options: Mapping[str, str]) -> None:
        self._plan = read_plan(options, streaming=False)
        self._typed = typed_values(self._plan)
        check_schema(schema, self._plan.values, self._typed and self._typed.decoder.spark_schema)
        self._schema = schema
        self._narrowing = Narrowing()

    @plain_errors
    def partitions(self) -> list[InputPartition]:
        plan = self._plan
        with Lookup(plan) as lookup:
            found = lookup.partitions()
            starts = lookup.resolve(plan.start, found, starting=True)
            ends = lookup.resolve(plan.end, found, starting=False)
            ranges = [OffsetRange(*one, starts[one], ends[one]) for one in found]
            ranges = self._narrowing.applied(ranges, lookup)
        return tasks(plan, ranges)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_range(self._plan, self._schema, partition, self._typed)


class NarrowingReader(HeadraceReader):
    """The same with filters pushed down. A class of its own: with filter pushdown switched off, Spark fails a query
    whose reader has `pushFilters` at all."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
        for one in filters:
            self._narrowing.take(one)
            # Ranges are cut at offsets, never inside: Spark still looks at each row.
            yield one


def batch_reader(schema: StructType, options: Mapping[str, str]) -> HeadraceReader:
    plan = read_plan(options, streaming=False)
    return NarrowingReader(schema, options) if plan.values["pushFilters"] else HeadraceReader(schema, options)


def tasks(plan: Plan, ranges: list[OffsetRange]) -> list[InputPartition]:
    return [
        RangePartition(*one)
        for one in split(ranges, plan.values["minPartitions"], plan.values["maxRecordsPerPartition"])
    ]
