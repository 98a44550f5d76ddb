"""Streams on a busy machine: PySpark gives each of its own processes ten seconds to start, and fails a query that waits
longer."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

if TYPE_CHECKING:
    from pyspark.sql.streaming import StreamingQuery

ATTEMPTS = 5


def run_to_end(start: "Callable[[], StreamingQuery]", limit_s: int = 400) -> None:
    """Start a query and await its end, again if only PySpark's own processes were late. Raises what else it fails
    with."""
    for attempt in range(ATTEMPTS):
        try:
            assert start().awaitTermination(limit_s), f"the query has not ended within {limit_s} s"
            return
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error) or attempt == ATTEMPTS - 1:
                raise
