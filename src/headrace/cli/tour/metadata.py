"""The page on where metadata is: KRaft, and a second cluster with ZooKeeper where that can run."""

from headrace.cli.output import with_admin
from headrace.cli.tour.stage import SETTINGS, Stage
from headrace.client.admin.operations import Operations
from headrace.local_cluster.ensemble import Ensemble, Unavailable
from headrace.local_cluster.layout import Wish, free_ports
from headrace.local_cluster.process import ClusterProcesses
from headrace.pictures.quorums import Controller, Log, Znode, quorums_picture

TOPIC = "seats"
DATA_LETTERS = 80
ASSIGNMENT = {0: (1, 2, 3), 1: (2, 3, 1)}


def metadata(stage: Stage) -> None:
    print("Controllers agree on a log of all changes (KRaft). One of them is active, another would take over.\n")
    stage.ask(lambda admin: admin.create_topic(TOPIC, assignments=ASSIGNMENT))
    stage.wait_in_sync(TOPIC)
    stage.show("cluster", "quorum")
    found = stage.ask(lambda admin: Operations(admin).quorum())
    voters = [Controller(one.node_id, one.node_id == found.leader_id, one.end_offset) for one in found.voters]
    facts = [
        f"{TOPIC}-{part.partition}: leader {part.leader}, in sync {','.join(map(str, part.in_sync))}"
        for part in stage.placed(TOPIC)
    ]
    facts += [f"broker {node}: {broker.address}" for node, broker in stage.brokers.items()]
    znodes: list[Znode] = []
    try:
        znodes = _with_zookeeper(stage)
    except (Unavailable, ImportError) as error:
        print(f"The same with ZooKeeper is left out. {error}\n")
    stage.draw("metadata", quorums_picture(Log(found.leader_epoch, voters, facts), znodes))


def _with_zookeeper(stage: Stage) -> list[Znode]:
    from kazoo.client import KazooClient

    print("Older texts have ZooKeeper in its place: ephemeral znodes for who is there, and one for the controller.\n")
    ensemble = Ensemble(stage.folder / "zookeeper", list(free_ports(1)))
    cluster = None
    try:
        ensemble.start()
        settings = {**SETTINGS, "zookeeper.connect": ensemble.connect}
        cluster = ClusterProcesses(stage.folder / "with-zookeeper", Wish(3, port=0, settings=settings))
        cluster.start()
        with_admin(cluster.bootstrap, lambda admin: admin.create_topic(TOPIC, assignments=ASSIGNMENT))
        client = KazooClient(ensemble.connect)
        client.start()
        try:
            found = [_znode(client, path) for path in _paths(client)]
        finally:
            client.stop()
            client.close()
    finally:
        if cluster is not None:
            cluster.close()
        ensemble.kill()
    for znode in found:
        data = znode.data if len(znode.data) <= DATA_LETTERS else f"{znode.data[:DATA_LETTERS]}..."
        print(f"{znode.path:<42} {'ephemeral  ' if znode.is_ephemeral else 'persistent '} {data}")
    print()
    return found


def _paths(client: "object") -> list[str]:
    ids = sorted(client.get_children("/brokers/ids"))  # type: ignore[attr-defined]
    states = [f"/brokers/topics/{TOPIC}/partitions/{number}/state" for number in ASSIGNMENT]
    return ["/controller", "/controller_epoch", *(f"/brokers/ids/{node}" for node in ids), *states]


def _znode(client: "object", path: str) -> Znode:
    data, status = client.get(path)  # type: ignore[attr-defined]
    return Znode(path, data.decode(), bool(status.ephemeralOwner))
