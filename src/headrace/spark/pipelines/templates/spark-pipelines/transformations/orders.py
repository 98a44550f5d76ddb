"""Tables are functions; `spark` is there already. Read a topic by .format("headrace")."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, functions as F


@dp.materialized_view
def orders() -> DataFrame:
    # From a topic: a streaming table instead of a view.
    #   @dp.table
    #   def orders():
    #       return (spark.readStream.format("headrace").option("kafka.bootstrap.servers", "127.0.0.1:9092")
    #               .option("subscribe", "orders").option("startingOffsets", "earliest").load())
    return spark.range(100).select("id", (F.col("id") % 7 - 1).alias("amount"))  # noqa: F821
