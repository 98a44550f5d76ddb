"""Pipelines: one spec, checked before Spark starts, run bounded or continuously on Structured Streaming."""
