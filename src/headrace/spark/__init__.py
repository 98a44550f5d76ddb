"""Spark's side of Headrace: sources and sinks for format("headrace"), sessions, and pipelines. Needs headrace[spark].

Importing it is enough for sessions of your own: see `launch.autoconfigure`.
"""

from headrace.spark.launch.autoconfigure import autoconfigure, register

__all__ = ["register"]

autoconfigure()
