"""Spark's side of Headrace: sources and sinks for format("headrace"), sessions, and pipelines. Needs headrace[spark]."""
