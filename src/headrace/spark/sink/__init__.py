"""Writing to topics with Spark, in batches and streams: columns become records, and records are produced by tasks.

All that can be refused is refused on the driver, before a task runs.
"""
