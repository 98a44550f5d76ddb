"""Steps in Python: plain functions from DataFrames to a DataFrame."""

from pyspark.sql import DataFrame, functions as F


def graded(clean: DataFrame) -> DataFrame:
    """Large orders are marked; `clean` is the transform of that name."""
    return clean.withColumn("grade", F.when(F.col("amount") >= 100, "large").otherwise("small"))
