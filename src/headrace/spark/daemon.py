"""Spark's Python daemon with the reader loaded before it forks: workers start with what they would import first.

`spark.python.daemon.module=headrace.spark.daemon`. Without it everything works the same, a second later per worker.
"""

import sys


def preload(worker_module: str) -> None:
    """What the workers of a kind are about to need. Nothing here starts a thread: a fork would leave it behind."""
    import headrace.spark.source  # noqa: F401

    if worker_module == "pyspark.worker":
        # Spark's own path for Arrow batches wants pandas, whether anything is a DataFrame or not.
        import pandas  # noqa: F401

        from headrace.client.columnar import native

        if native.is_ready():
            native.load()


if __name__ == "__main__":
    from pyspark.daemon import manager

    preload(sys.argv[1] if len(sys.argv) > 1 else "pyspark.worker")
    manager()
