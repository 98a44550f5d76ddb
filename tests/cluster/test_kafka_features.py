"""`kafka-features` against nodes whose voters are in the configuration, Headrace's and Apache Kafka's: the same is
said.

Both begin with folders that Kafka's own tool has formatted at an older release.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from headrace.metadata.versions import SERVED_FEATURES
from headrace.testing.child import Child
from tests.reference.apache import ApacheKafka, Unavailable, java, libs, random_cluster_id, run_java, run_tool

pytestmark = [pytest.mark.reference, pytest.mark.soak, pytest.mark.timeout(600)]

RELEASE = "4.0-IV3"

FEATURES = """
describe
upgrade --feature kraft.version=2
upgrade --feature kraft.version=1 --dry-run
downgrade --feature kraft.version=0
downgrade --feature kraft.version=1
upgrade --feature kraft.version=1
upgrade --feature kraft.version=1
describe
upgrade --feature kraft.version=0
downgrade --feature kraft.version=0
downgrade --feature kraft.version=0 --unsafe
disable --feature kraft.version
upgrade --feature nonsense=1
upgrade --feature metadata.version=99
disable --feature metadata.version
upgrade --metadata 4.1-IV1 --dry-run
upgrade --metadata 4.1-IV1
upgrade --metadata 4.1-IV1
downgrade --metadata 4.0-IV0 --dry-run
downgrade --metadata 3.9-IV0
downgrade --metadata 3.9-IV0 --unsafe
downgrade --metadata 4.1-IV0
upgrade --metadata 4.0-IV3
upgrade --release-version 4.0-IV0
upgrade --metadata 4.3-IV0 --feature eligible.leader.replicas.version=1
downgrade --release-version 4.2-IV1
describe
downgrade --feature group.version=0
disable --feature group.version
upgrade --feature group.version=1 --feature group.version=1
upgrade --feature group.version=1
downgrade --feature eligible.leader.replicas.version=0
describe
upgrade --release-version 4.1 --feature group.version=1
upgrade --release-version 9.9
upgrade --release-version 4.3 --dry-run
upgrade --release-version 4.3
upgrade --release-version 4.3
upgrade --release-version 4.2
downgrade --release-version 4.3
downgrade --release-version 4.2 --dry-run
downgrade --release-version 4.0 --unsafe
upgrade --feature transaction.version=1
upgrade --feature transaction.version=3
downgrade --feature transaction.version=1
disable --feature share.version --feature streams.version --feature transaction.version
upgrade --feature share.version=1 --feature streams.version=1
upgrade
describe
version-mapping --release-version 4.1
version-mapping
feature-dependencies --feature eligible.leader.replicas.version=1 --feature transaction.version=2
feature-dependencies --feature nonsense=1
"""

MAIN = """
import java.io.*;
import java.lang.reflect.Method;
import java.nio.file.*;

public class Main {
    public static void main(String[] args) throws Exception {
        Method tool = Class.forName("org.apache.kafka.tools.FeatureCommand").getDeclaredMethod("mainNoExit", String[].class);
        tool.setAccessible(true);
        for (String line : Files.readAllLines(Path.of(args[1]))) {
            if (line.isEmpty()) continue;
            System.out.println("$ " + line);
            System.setErr(System.out);
            int code = (int) tool.invoke(null, (Object) ("--bootstrap-server " + args[0] + " " + line).split(" "));
            System.out.println("-> " + code);
        }
        System.exit(0);
    }
}
"""


@pytest.fixture(scope="module", autouse=True)
def jars() -> None:
    try:
        java()
        libs()
    except Unavailable as missing:
        pytest.skip(str(missing))


def formatted(folder: Path, count: int) -> dict[int, ApacheKafka]:
    """Nodes as a configuration with static voters and Kafka's tool make them, not running yet."""
    nodes = {n: ApacheKafka(folder / f"node-{n}", node_id=n) for n in range(1, count + 1)}
    voters = ",".join(f"{n}@127.0.0.1:{node.controller_port}" for n, node in nodes.items())
    cluster_id = random_cluster_id()
    for node in nodes.values():
        text = re.sub(
            r"controller\.quorum\.bootstrap\.servers=.*",
            f"controller.quorum.voters={voters}",
            node.config_file.read_text(),
        )
        node.config_file.write_text(text)

    def form(node: ApacheKafka) -> None:
        run_tool(
            "kafka.tools.StorageTool",
            "format",
            "-t",
            cluster_id,
            "-c",
            str(node.config_file),
            "--release-version",
            RELEASE,
        )

    with ThreadPoolExecutor() as pool:
        list(pool.map(form, nodes.values()))
    return nodes


@contextmanager
def apache(folder: Path, count: int) -> Iterator[str]:
    nodes = formatted(folder, count)
    try:
        for node in nodes.values():
            node.launch()
        for node in nodes.values():
            node.wait_ready()
        yield ",".join(node.bootstrap for node in nodes.values())
    finally:
        for node in nodes.values():
            node.kill9()


@contextmanager
def headrace(folder: Path, count: int) -> Iterator[str]:
    nodes = formatted(folder, count)
    with ExitStack() as stack:
        children = []
        for n, node in nodes.items():
            child = Child(f"node {n}", folder / f"node-{n}.log")
            child.run(["--config", str(node.config_file)])
            stack.callback(child.kill)
            children.append(child)
        for child in children:
            child.wait_ready()
        yield ",".join(node.bootstrap for node in nodes.values())


def transcript(bootstrap: str, folder: Path) -> list[str]:
    """What the tool says, without what differs from run to run, and without features that Headrace tells nobody of."""
    commands = folder / "commands.txt"
    commands.write_text(FEATURES)
    ready = folder / "ready.txt"
    ready.write_text("upgrade --feature kraft.version=1 --dry-run\n")
    for _ in range(30):  # voters tell the leader of their disks by and by
        if "can be upgraded" in run_java(MAIN, bootstrap, str(ready)):
            break
    said = []
    for line in run_java(MAIN, bootstrap, str(commands)).splitlines():
        if (named := re.match(r"Feature: (\S+)", line)) and named[1] not in SERVED_FEATURES:
            continue
        line = re.sub(r"Epoch: \d+|Local controller \d", "...", line)
        said.append(" ".join(line.split()))
    return said


@pytest.mark.parametrize("count", [1, 3])
def test_kafka_features_says_the_same_of_both(tmp_path: Path, count: int) -> None:
    texts = {}
    for name, cluster in (("apache", apache), ("headrace", headrace)):
        folder = tmp_path / name
        folder.mkdir()
        with cluster(folder, count) as bootstrap:
            texts[name] = transcript(bootstrap, folder)
    assert sum(line.startswith("$") for line in texts["apache"]) == len(FEATURES.split("\n")) - 2
    assert texts["headrace"] == texts["apache"]
