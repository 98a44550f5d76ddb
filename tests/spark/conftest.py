"""One Spark driver for every test of Spark's side: starting one takes seconds, so nobody starts another in this
process."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="needs headrace[spark]")
# Making a class cache takes longer than it would save here; one that this machine has already is used.
os.environ.setdefault("HEADRACE_JVM_CACHE", "use")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """The shared driver, local[2]. Use view and table names of your own, and leave its settings as they were."""
    from headrace.spark.launch.session import spark_session

    folder = tmp_path_factory.mktemp("spark")
    os.environ.setdefault("TZ", "UTC")
    session = spark_session(
        "local[2]",
        "headrace-tests",
        {
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            # Derby, a database that comes with Spark, would leave its log wherever the tests were started.
            "spark.driver.extraJavaOptions": f"-Dderby.stream.error.file={folder / 'derby.log'}",
        },
        log_file=folder / "spark.log",
    )
    yield session
    session.stop()
