"""What Spark's workers find loaded when they are forked, and from where."""

import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="needs headrace[spark]")

from headrace.spark.daemon import use_compiled


def test_the_package_is_taken_instead_of_its_copy_in_a_zip_file(tmp_path) -> None:
    archive, py4j = str(tmp_path / "pyspark/python/lib/pyspark.zip"), str(tmp_path / "pyspark/python/lib/py4j-src.zip")
    path = [archive, py4j, "/elsewhere", str(tmp_path)]
    use_compiled(path)
    assert path == [archive, py4j, "/elsewhere", str(tmp_path)], "there is no package to take"
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark/__init__.py").touch()
    use_compiled(path)
    assert path == [py4j, "/elsewhere", str(tmp_path)]
    # The zip file of another Spark than the one that is installed: that one runs the driver, and this has to match it.
    path = ["/opt/spark/python/lib/pyspark.zip", str(tmp_path)]
    use_compiled(path)
    assert path == ["/opt/spark/python/lib/pyspark.zip", str(tmp_path)]


def test_workers_are_forked_with_their_own_module_and_without_threads() -> None:
    program = (
        "import sys, threading\n"
        "from headrace.spark.daemon import preload\n"
        "preload('pyspark.worker')\n"
        "before = set(sys.modules)\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "import pyspark.worker\n"
        "from pyspark.sql.worker import plan_data_source_read, write_into_data_source\n"
        "from headrace.spark import datasource, reader, source\n"
        "import pandas\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
