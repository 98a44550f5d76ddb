"""What PySpark finds by the name of this package: format("headrace") needs no registration."""

from headrace.spark.datasource import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
