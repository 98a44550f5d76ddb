"""What PySpark finds by the name of this package: format("headrace-log") needs no registration."""

from headrace.spark.log.scan import HeadraceLogDataSource as DefaultSource

__all__ = ["DefaultSource"]
