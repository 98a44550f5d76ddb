"""Reading topics with Spark, in batches and streams: which offsets a query reads, and how tasks fetch and decode them.

On the driver `batch` and `stream` decide; in tasks `range_reader` reads.
"""
