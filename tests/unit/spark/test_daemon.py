"""What Spark's workers find loaded when they are forked, and from where."""

import os
import platform
import resource
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from zipimport import zipimporter

import pytest

pytest.importorskip("pyspark", reason="needs headrace[spark]")

from headrace.spark.launch.daemon import PRELOADED, TASKS, drop_pyspark_zip, forget_zip_importers
from headrace.spark.launch.fork_client import SERVER
from headrace.spark.launch.worker_python import worker_python


def test_the_package_is_taken_instead_of_its_copy_in_a_zip_file(tmp_path: Path) -> None:
    archive, py4j = str(tmp_path / "pyspark/python/lib/pyspark.zip"), str(tmp_path / "pyspark/python/lib/py4j-src.zip")
    path = [archive, py4j, "/elsewhere", str(tmp_path)]
    drop_pyspark_zip(path)
    assert path == [archive, py4j, "/elsewhere", str(tmp_path)], "there is no package to take"
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark/__init__.py").touch()
    drop_pyspark_zip(path)
    assert path == [py4j, "/elsewhere", str(tmp_path)]
    (tmp_path / "link").symlink_to(tmp_path)
    path = [archive, str(tmp_path / "link")]
    drop_pyspark_zip(path)
    assert path == [str(tmp_path / "link")], "Spark knows the package by another path"
    # The zip file of another Spark than the one that is installed: that one runs the driver, and this has to match it.
    path = ["/opt/spark/python/lib/pyspark.zip", str(tmp_path)]
    drop_pyspark_zip(path)
    assert path == ["/opt/spark/python/lib/pyspark.zip", str(tmp_path)]


def test_workers_are_forked_with_their_own_module_and_without_threads() -> None:
    program = (
        "import sys, threading\n"
        "from headrace.spark.launch.daemon import preload\n"
        "preload('pyspark.worker')\n"
        "before = set(sys.modules)\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "import pyspark.worker\n"
        "from pyspark.sql.worker import plan_data_source_read, write_into_data_source\n"
        "from headrace.spark import datasource\n"
        "from headrace.spark.sink import writer\n"
        "from headrace.spark.source import batch, range_reader\n"
        "import pandas\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's settings")
def test_memory_of_one_batch_is_there_for_the_next() -> None:
    program = (
        "import resource\n"
        "from headrace.spark.launch.daemon import keep_freed_memory\n"
        "def batch():\n"
        "    columns = [b'x' * (10 << 20) for _ in range(5)]\n"
        "    del columns\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "keep_freed_memory()\n"
        "first = batch()\n"
        "for _ in range(20):\n"
        "    last = batch()\n"
        "print(last - first)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    pages_of_a_column = (10 << 20) // resource.getpagesize()
    assert int(done.stdout) < pages_of_a_column


def test_importers_of_zip_files_are_forgotten(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "one.zip", "w") as archive:
        archive.writestr("inside/__init__.py", "")
    path = str(tmp_path / "one.zip")
    folder = object()
    importers = {
        path: zipimporter(path),
        f"{path}/inside": zipimporter(f"{path}/inside"),
        "/folder": folder,
        "/none": None,
    }
    forget_zip_importers(importers)
    assert importers == {"/folder": folder, "/none": None}


def test_messages_of_tasks_are_compiled_before_the_fork() -> None:
    program = (
        "from headrace.spark.launch.daemon import preload\n"
        "preload('pyspark.worker')\n"
        "import builtins\n"
        "def compile(*arguments):\n"
        "    raise AssertionError(arguments)\n"
        "builtins.compile = compile\n"
        "from headrace.protocol import messages as m\n"
        "from headrace.protocol.api import API, ApiKey\n"
        "from headrace.protocol.frames import encode_request\n"
        "for key, body in ((ApiKey.FETCH, m.FetchRequest()), (ApiKey.METADATA, m.MetadataRequest())):\n"
        "    encode_request(API[key], API[key].latest_stable, 1, 'x', body)\n"
        "API[ApiKey.FETCH].response.decoder(API[ApiKey.FETCH].latest_stable)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_spark_starts_this_python_with_the_installed_pyspark(tmp_path: Path) -> None:
    python = worker_python(tmp_path / "it's a cache")
    import pyspark

    spark = Path(pyspark.__file__).parent
    archive, jar = f"{spark}/python/lib/pyspark.zip", f"{spark}/jars/spark-core.jar"
    program = (
        "import os, sys, pyspark; print(sys.executable, pyspark.__file__, os.environ['PYTHONPATH'], *sys.argv[1:])"
    )
    for path, left in [
        (f"{archive}:{jar}:/a:/b", "/a:/b"),
        (f"/a b/*:{archive}:{jar}:{archive}", "/a b/*"),
        (f"/a:{archive}:/b", "/a:/b"),
        (archive, ""),
        (f"/a:{spark.resolve()}/python/lib/pyspark.zip", "/a"),
        ("/a:/elsewhere/pyspark.zip", "/a:/elsewhere/pyspark.zip"),
        (None, ""),
    ]:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {} if path is None else {"PYTHONPATH": path}
        command = [python, "-c", program, "a word", "another"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == f"{sys.executable} {pyspark.__file__} {left} a word another\n"
    assert worker_python(tmp_path / "it's a cache") == python


def test_planners_are_forked_with_what_they_import_by_the_same_daemon_as_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SERVER, raising=False)  # of a session that another test has made in this process
    modules = tmp_path / "headrace/spark/launch"
    modules.mkdir(parents=True)
    for folder in (modules.parent.parent, modules.parent, modules):
        (folder / "__init__.py").touch()
    (modules / "daemon.py").write_text("import sys; print(*sys.argv[1:])")
    python, environment = worker_python(tmp_path), os.environ | {"PYTHONPATH": str(tmp_path)}
    for words, said in [
        (["-m", "pyspark.daemon", "pyspark.sql.worker.some planner", "x"], "pyspark.sql.worker.some planner x\n"),
        (["-c", "print('as it is')"], "as it is\n"),
    ]:
        done = subprocess.run([python, *words], env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == said


@pytest.mark.parametrize("planner", [name for name in PRELOADED if name != TASKS])
def test_what_a_planner_finds_loaded_starts_no_threads(planner: Any) -> None:
    program = (
        "import sys, threading\n"
        "from headrace.spark.launch import daemon\n"
        f"daemon.preload('{planner}')\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        f"assert '{planner}' in sys.modules and 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_session_can_be_had_from_the_package() -> None:
    program = "import sys, headrace.spark as s\nassert 'headrace.spark.launch.session' not in sys.modules\n"
    program += "from headrace.spark import spark_session\nprint(spark_session.__module__, hasattr(s, 'nothing'))\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "headrace.spark.launch.session False\n"


def test_without_a_place_for_a_launcher_spark_starts_this_python(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert worker_python(tmp_path / "file") == sys.executable
