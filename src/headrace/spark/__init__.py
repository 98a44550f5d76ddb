"""Spark's side of Headrace: sources and sinks for format("headrace"), sessions, and pipelines. Needs headrace[spark].

Importing it is enough for sessions of your own: see `plain_sessions`.
"""

from headrace.spark.plain_sessions import prepare, register

__all__ = ["register"]

prepare()
