"""From a checked spec to Spark's DataFrames and streaming queries, and from Spark's errors back to lines of the spec.

The only room of pipelines that builds queries.
"""
