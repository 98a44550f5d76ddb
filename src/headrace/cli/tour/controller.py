"""The page on the controller: it has a successor, and keeps partitions even when brokers are added and lost."""

from headrace.cli.tour.stage import Stage
from headrace.client.admin.admin import Admin
from headrace.client.admin.operations import Operations
from headrace.pictures.balance import Share, balance_picture

OPTIONS = ("auto.balance=true", "auto.balance.moves.max=100")


def balance(stage: Stage) -> None:
    print("The controller is one of the brokers. If it is lost, another one takes over.\n")
    first = stage.controller()
    print(f"$ kill -9 broker {first}\n")
    stage.brokers[first].kill9()
    stage.wait("another controller", lambda: stage.controller() not in (-1, first))
    print(f"Broker {stage.controller()} is the controller now, broker {first} comes back, and a broker is added.\n")
    stage.brokers[first].start()
    stage.show("topic", "create", "even", "-p", "12", "-r", "3")
    stage.wait_in_sync("even")
    added = stage.cluster.add()
    stage.wait(f"broker {added} is up", lambda: added in _up(stage))
    moments = [_shown(stage, f"broker {added} is added")]
    print("With auto.balance the controller moves partitions by itself.\n")
    stage.show("config", "alter", "--all-brokers", *(word for option in OPTIONS for word in ("--set", option)))
    stage.wait("all brokers have their share", lambda: _is_even(stage, set(stage.brokers)))
    moments.append(_shown(stage, "the controller has moved partitions to it"))
    print(
        "A broker that is to be taken away is emptied. One that is lost for 30 minutes is replaced in the same way.\n"
    )
    stage.show("cluster", "drain", str(added), "--yes")
    stage.wait("others have what it had", lambda: _is_even(stage, set(stage.brokers) - {added}))
    moments.append(_shown(stage, f"broker {added} is drained, to be taken away"))
    stage.draw("balance", balance_picture(moments))


def _up(stage: Stage) -> set[int]:
    brokers = stage.ask(lambda admin: Operations(admin).brokers())
    return {broker.node_id for broker in brokers if not broker.is_fenced}


def _shown(stage: Stage, what: str) -> tuple[str, dict[int, Share]]:
    stage.show("cluster", "status")
    return what, _shares(stage)


def _shares(stage: Stage) -> dict[int, Share]:
    """How many partitions each broker leads and holds, and whether it runs."""

    async def look(admin: Admin) -> dict[int, Share]:
        partitions = [p for topic in await Operations(admin).topics() for p in topic.partitions.values()]
        return {
            node: Share(
                sum(p.leader == node for p in partitions),
                sum(node in p.replicas for p in partitions),
                not broker.is_running,
            )
            for node, broker in stage.brokers.items()
        }

    return stage.ask(look)


def _is_even(stage: Stage, nodes: set[int]) -> bool:
    """These brokers hold all replicas, equally many, and lead equally many."""
    shares = _shares(stage)
    held, leads = ([getattr(shares[node], what) for node in nodes] for what in ("replicas", "leads"))
    gone = sum(share.replicas for node, share in shares.items() if node not in nodes)
    return not gone and all(max(counts) - min(counts) <= 1 for counts in (held, leads))
