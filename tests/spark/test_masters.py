"""Where Spark is to run: bad addresses are told at once, and good ones reach the cluster with what it was asked for."""

import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.spark.launch.masters import MasterUnusable, check_master

IMAGE = {"spark.kubernetes.container.image": "registry.local/spark:1"}
YARN_SITE = "<configuration><property><name>{}</name><value>{}</value></property></configuration>"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


@pytest.fixture
def nobody() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return address_of(found)


def address_of(found: socket.socket) -> str:
    return f"127.0.0.1:{found.getsockname()[1]}"


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4]", "local[2,3]", "local-cluster[2,1,1024]"])
def test_local_ones_need_nothing(master: str) -> None:
    check_master(master, {}, {})


@pytest.mark.parametrize(
    "form", ["spark://{}", "spark://127.0.0.1:1,{}", "sc://{}", "sc://{}/;token=x", "k8s://http://{}", "k8s://{}"]
)
def test_clusters_that_answer_are_fine(listener: socket.socket, form: str) -> None:
    check_master(form.format(address_of(listener)), IMAGE, {})


@pytest.mark.parametrize("form", ["spark://{}", "sc://{}", "k8s://https://{}"])
def test_clusters_that_do_not_answer_are_named_at_once(nobody: str, form: str) -> None:
    with pytest.raises(MasterUnusable, match=f"cannot be reached .{nobody}: "):
        check_master(form.format(nobody), IMAGE, {})


@pytest.mark.parametrize(
    "master",
    [
        "",
        "Local[*]",
        "local[0]",
        "localhost:7077",
        "spark://",
        "k8s://",
        "mesos://a:1",
        "yarn-cluster",
        "spark://h:99999999",
    ],
)
def test_what_is_no_address_is_answered_with_the_forms_there_are(master: str) -> None:
    with pytest.raises(MasterUnusable, match=r"write local\[\*\], spark://host:7077, yarn, k8s://"):
        check_master(master, {}, {})


def test_kubernetes_needs_an_image(listener: socket.socket) -> None:
    with pytest.raises(MasterUnusable, match=r"--conf spark.kubernetes.container.image=IMAGE"):
        check_master(f"k8s://http://{address_of(listener)}", {}, {})


def test_yarn_needs_hadoops_settings(tmp_path: Path, nobody: str, listener: socket.socket) -> None:
    with pytest.raises(MasterUnusable, match=r"HADOOP_CONF_DIR nor YARN_CONF_DIR is set.*export HADOOP_CONF_DIR="):
        check_master("yarn", {}, {})
    environment = {"HADOOP_CONF_DIR": str(tmp_path)}
    with pytest.raises(MasterUnusable, match=f"HADOOP_CONF_DIR={tmp_path} has no yarn-site.xml"):
        check_master("yarn", {}, environment)
    site = tmp_path / "yarn-site.xml"
    for text, said in [
        ("<configuration>", "is not XML"),
        ("<configuration/>", "does not say where"),
        (YARN_SITE.format("yarn.resourcemanager.address", nobody), f"cannot be reached .{nobody}"),
    ]:
        site.write_text(text)
        with pytest.raises(MasterUnusable, match=said):
            check_master("yarn", {}, environment)
    site.write_text(YARN_SITE.format("yarn.resourcemanager.address", address_of(listener)))
    check_master("yarn", {}, {"HADOOP_CONF_DIR": "", "YARN_CONF_DIR": str(tmp_path)})


def test_a_python_that_only_executors_have_is_told(listener: socket.socket) -> None:
    master = f"spark://{address_of(listener)}"
    check_master(master, {"spark.pyspark.python": sys.executable}, {})
    check_master(master, {"spark.pyspark.python": "python3"}, {})
    with pytest.raises(MasterUnusable, match=r"spark.pyspark.python=/there/python is not on this machine"):
        check_master(master, {"spark.pyspark.python": "/there/python"}, {})


SUBMIT = """#!/bin/sh
for word in "$@"; do echo "$word"; done > {folder}/words
echo "$PYSPARK_PYTHON" > {folder}/python
exit 1
"""


@pytest.mark.parametrize("kind", ["yarn", "k8s"])
def test_sparks_launcher_is_told_the_cluster_and_every_setting(
    tmp_path: Path, listener: socket.socket, kind: str
) -> None:
    """With a launcher in place of Spark's that only writes down what it is given."""
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(SUBMIT.format(folder=tmp_path))
    submit.chmod(0o755)
    (tmp_path / "yarn-site.xml").write_text(YARN_SITE.format("yarn.resourcemanager.address", address_of(listener)))
    master = "yarn" if kind == "yarn" else f"k8s://http://{address_of(listener)}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
    environment |= {"SPARK_HOME": str(tmp_path), "HADOOP_CONF_DIR": str(tmp_path), "HEADRACE_JVM_CACHE": "off"}
    done = subprocess.run(
        [sys.executable, "-c", OPEN, master, json.dumps({**IMAGE, "spark.executor.memory": "3g"})],
        env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert "JAVA_GATEWAY_EXITED" in done.stderr
    words = (tmp_path / "words").read_text().splitlines()
    settings = dict(word.split("=", 1) for flag, word in itertools.pairwise(words) if flag == "--conf")
    assert settings["spark.master"] == master and settings["spark.executor.memory"] == "3g"
    assert settings["spark.kubernetes.container.image"] == "registry.local/spark:1"
    assert (tmp_path / "python").read_text().strip() == sys.executable
    # What holds for this machine only must not travel to others.
    assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.python.daemon.module"} & settings.keys()


OPEN = """
import json, sys
from headrace.spark.launch.session import spark_session
spark_session(sys.argv[1], "there", json.loads(sys.argv[2]), build_class_cache=False)
"""


class StandIn:
    """Takes connections in a cluster's place, and keeps what is said first on each."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self.heard: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                try:
                    while (found := connection.recv(65536)) and len(self.heard) < 1000:
                        self.heard.append(found)
                        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                except OSError:
                    pass


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind, said", [("yarn", b"hrpc"), ("k8s", b"/api/v1/namespaces/default/pods")])
def test_spark_itself_gets_as_far_as_the_cluster(
    tmp_path: Path, listener: socket.socket, kind: str, said: bytes
) -> None:
    there = StandIn(listener)
    (tmp_path / "yarn-site.xml").write_text(YARN_SITE.format("yarn.resourcemanager.address", address_of(listener)))
    master = "yarn" if kind == "yarn" else f"k8s://http://{address_of(listener)}"
    environment = {**os.environ, "HADOOP_CONF_DIR": str(tmp_path), "HEADRACE_JVM_CACHE": "use"}
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", OPEN, master, json.dumps(IMAGE)], env=environment, stdout=output, stderr=output,
             start_new_session=True
        )  # fmt: skip
        try:
            deadline = time.monotonic() + 300
            while not any(said in found for found in there.heard):
                assert process.poll() is None, log.read_text()[-2000:]
                assert time.monotonic() < deadline, (there.heard[:5], log.read_text()[-2000:])
                time.sleep(0.2)
        finally:
            os.killpg(process.pid, 9)
            process.wait()
