"""`headrace tour`: what texts about Kafka say, page by page, on four brokers that are started for it and removed after.

Each page is a few sentences, commands, and what they print now. The guide "The architecture, shown" has the same.
"""

import io
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import typer

from headrace.cli.output import JSON, print_json, with_admin
from headrace.client.admin.admin import Admin
from headrace.client.admin.groups import Groups
from headrace.client.errors import ClientError
from headrace.client.net.cluster import Topic
from headrace.local_cluster.layout import Wish, open_cluster
from headrace.local_cluster.process import BrokerProcess

BROKERS = 4
SETTINGS = {"offsets.topic.num.partitions": "1", "min.insync.replicas": "1"}
PATIENCE_S = 60.0
POLL_S = 0.1
LONG_WORD = 40


class Stage:
    """The brokers of a tour, and the commands that are shown on them."""

    def __init__(self, folder: Path) -> None:
        cluster = open_cluster(folder, Wish(BROKERS, port=0, racks=("a", "b"), settings=SETTINGS))
        self.brokers = {
            node_id: BrokerProcess(node.data, node.log, ["--config", str(node.properties)], node.port)
            for node_id, node in cluster.nodes.items()
        }
        self.bootstrap = cluster.bootstrap

    def start(self) -> None:
        for broker in self.brokers.values():
            broker.launch()
        for broker in self.brokers.values():
            broker.await_ready()

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.kill9()

    def show(self, *words: str, hide: bool = False) -> None:
        """Run a command as if it were typed. One that fails ends the tour."""
        from headrace.cli.app import run

        if not hide:
            print("$ headrace " + " ".join(word if len(word) < LONG_WORD else f"{word[:8]}..." for word in words))
        with redirect_stdout(io.StringIO()) if hide else _nothing():
            try:
                status = run([*words, "-b", self.bootstrap])
            except SystemExit as end:  # the way of some commands to end well, too
                status = int(end.code or 0)
        if status:
            raise ClientError(f"`headrace {words[0]} {words[1]}` ended with exit status {status}")
        if not hide:
            print()

    def topic(self, name: str) -> Topic:
        found: Topic = with_admin(self.bootstrap, lambda admin: admin.describe_topic(name))
        return found

    def wait(self, what: str, look: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not look():
            if time.monotonic() > deadline:
                raise ClientError(f"not within {PATIENCE_S:.0f} s: {what}")
            time.sleep(POLL_S)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _partitions(stage: Stage) -> None:
    print(
        "A topic is split into partitions, a folder for each. Replicas are partitions times the replication factor.\n"
    )
    stage.show("topic", "create", "fifteen", "-p", "5", "-r", "3")
    stage.show("topic", "describe", "fifteen")


def _segments(stage: Stage) -> None:
    print(
        "A partition's records are in segments: a full one is closed, and another begun. Two indexes are beside each.\n"
    )
    stage.show("topic", "create", "configured-topic", "-p", "3", "-r", "1", "--set", "segment.bytes=1048576")
    values = [word for _ in range(15) for word in ("-v", "x" * 100_000)]
    for partition in range(3):
        stage.show("produce", "configured-topic", "-p", str(partition), *values, hide=True)
    stage.show("topic", "describe", "configured-topic", "--files")


def _leaders(stage: Stage) -> None:
    print("One replica of each partition leads. Partition 0 is led by broker 1, p1 by b2, p2 by b3.\n")
    stage.show("topic", "create", "leaders", "--assignment", "1:2:3,2:3:1,3:1:2")
    stage.show("topic", "describe", "leaders")
    print("Two partitions on four brokers: broker 1 leads one and follows the other.\n")
    stage.show("topic", "create", "two", "--assignment", "1:2:3:4,2:1:4:3")
    stage.show("topic", "describe", "two")


def _placement(stage: Stage) -> None:
    print(
        "Brokers stand in a list that alternates racks. Leaders go round robin; followers are shifted along the list.\n"
    )
    stage.show("topic", "create", "placed", "-p", "4", "-r", "3", "--dry-run")


def _in_sync(stage: Stage) -> None:
    print("A leader is lost: a follower that is in sync leads. The lost one leaves the list of in-sync replicas.\n")
    stage.show("topic", "create", "kept", "--assignment", "4:2:3", "--set", "min.insync.replicas=2")
    print("$ kill -9 broker 4\n")
    stage.brokers[4].kill9()
    stage.wait("another leads", lambda: stage.topic("kept").partitions[0].leader not in (-1, 4))
    stage.show("topic", "describe", "kept")
    print("With two in sync, writes go on. The broker comes back, catches up and leads again.\n")
    stage.show("produce", "kept", "-v", "written with two in sync")
    stage.brokers[4].start()
    stage.wait("broker 4 leads again", lambda: stage.topic("kept").partitions[0].leader == 4)
    stage.show("topic", "describe", "kept")


def _commits(stage: Stage) -> None:
    print("A group commits how far it is. Three partitions of three records, the latest of the first not committed:\n")
    stage.show("topic", "create", "drawing", "-p", "3", "-r", "1")
    for partition in range(3):
        stage.show("produce", "drawing", "-p", str(partition), "-v", "a", "-v", "b", "-v", "c", hide=True)

    async def commit(admin: Admin) -> None:
        await Groups(admin).commit("readers", {("drawing", 0): 2, ("drawing", 1): 3, ("drawing", 2): 3})

    with_admin(stage.bootstrap, commit)
    stage.show("group", "describe", "readers")


class Page(NamedTuple):
    title: str
    show: Callable[[Stage], None]


PAGES = {
    "partitions": Page("Topics, partitions and replicas", _partitions),
    "segments": Page("Segments and indexes", _segments),
    "leaders": Page("Leaders and followers", _leaders),
    "placement": Page("Partition assignment", _placement),
    "in-sync": Page("In-sync replicas", _in_sync),
    "commits": Page("Polling and commits", _commits),
}


def tour(
    pages: list[str] = typer.Argument(
        None, metavar="PAGE", help=f"Only these pages: {', '.join(PAGES)}.", show_default=False
    ),
    as_json: bool = JSON,
) -> None:
    """Show the architecture on four brokers of its own.

    They run in a temporary folder and are removed at the end. On a terminal, Enter turns the page.
    """
    for name in pages or ():
        if name not in PAGES:
            raise ClientError(f"there is no page {name!r}; there are {', '.join(PAGES)}")
    chosen = pages or list(PAGES)
    with tempfile.TemporaryDirectory(prefix="headrace-tour-") as folder:
        stage = Stage(Path(folder))
        try:
            stage.start()
            shown = [_turn(stage, name, last=name == chosen[-1], quiet=as_json) for name in chosen]
        finally:
            stage.close()
    if as_json:
        print_json(dict(zip(chosen, shown)))


def _turn(stage: Stage, name: str, *, last: bool, quiet: bool) -> str:
    page = PAGES[name]
    text = io.StringIO()
    if quiet:
        with redirect_stdout(text):
            page.show(stage)
        return text.getvalue()
    print(f"== {page.title}\n")
    page.show(stage)
    if not last and sys.stdin.isatty() and sys.stdout.isatty():
        typer.prompt("Enter: the next page", default="", show_default=False)
    return ""
