"""Spark's side of Headrace: sources and sinks for format("headrace"), sessions, and pipelines. Needs headrace[spark].

Importing it is enough for sessions of your own: see `on_import`.
"""

from headrace.spark.on_import import prepare, register

__all__ = ["register"]

prepare()
