"""`format("headrace")` as PySpark sees it: one class that hands out readers and writers. It checks nothing itself."""

from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headrace.spark.plain_errors import plain_errors


class HeadraceDataSource(DataSource):
    """Topics as tables and streams. Imports are made when needed: a task that writes has no use for the reader."""

    @classmethod
    def name(cls) -> str:
        return "headrace"

    @plain_errors
    def schema(self) -> StructType:
        from headrace.spark.source.schema import source_schema

        return source_schema(self.options)

    @plain_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        from headrace.spark.source.batch import batch_reader

        return batch_reader(schema, self.options)

    @plain_errors
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from headrace.spark.source.stream import HeadraceStreamReader

        return HeadraceStreamReader(schema, self.options)

    @plain_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from headrace.spark.sink.writer import HeadraceWriter

        return HeadraceWriter(schema, _plain(self.options), overwrite)

    @plain_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from headrace.spark.sink.writer import HeadraceStreamWriter

        return HeadraceStreamWriter(schema, _plain(self.options), overwrite)


def _plain(options: Any) -> dict[str, str]:
    return dict(options.items())
