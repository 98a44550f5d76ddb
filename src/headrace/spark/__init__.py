"""Spark's side of Headrace: sources and sinks for format("headrace"), sessions, and pipelines. Needs headrace[spark].

Importing it is enough for sessions of your own: see `launch.autoconfigure`.
"""

from typing import TYPE_CHECKING, Any

from headrace.spark.launch.autoconfigure import autoconfigure, register

if TYPE_CHECKING:
    from headrace.spark.launch.session import spark_session

__all__ = ["register", "spark_session"]


def __getattr__(name: str) -> Any:
    # Not imported with the package: Spark's Python processes have no use for it.
    if name == "spark_session":
        from headrace.spark.launch.session import spark_session

        return spark_session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


autoconfigure()
