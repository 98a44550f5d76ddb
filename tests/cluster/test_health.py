"""`/ready` of a broker that the others cannot hear: it works, and clients should go elsewhere."""

import re
import urllib.error
import urllib.request

from headrace.testing.cluster import TestCluster, TestNode


def asked(node: TestNode, path: str) -> tuple[int, str]:
    (url,) = re.findall(r"metrics on (http://\S+)/metrics", node.node.log.read_text())[-1:]
    try:
        with urllib.request.urlopen(url + path, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def test_a_broker_without_controllers_is_healthy_and_not_ready() -> None:
    with TestCluster(3, settings={"metrics.port": "0"}) as cluster:
        cluster.create_topic("orders", 3, 3)
        cluster.wait("all ready", lambda: all(asked(node, "/ready") == (200, "ok\n") for node in cluster.running))
        cluster.freeze(1)
        cluster.freeze(2)
        cluster.wait("not ready", lambda: asked(cluster[3], "/ready")[0] == 503)
        assert "no controller has answered" in asked(cluster[3], "/ready")[1]
        assert asked(cluster[3], "/health") == (200, "ok\n")
        cluster.thaw(1)
        cluster.thaw(2)
        cluster.wait("ready again", lambda: asked(cluster[3], "/ready")[0] == 200)
