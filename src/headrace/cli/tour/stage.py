"""The brokers of a tour, the commands that are shown on them, and the pictures that are drawn."""

import asyncio
import io
import shlex
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TypeVar

from headrace.cli.output import with_admin
from headrace.client.admin.admin import Admin
from headrace.client.admin.operations import Operations
from headrace.client.errors import ClientError, RequestFailed
from headrace.client.net.cluster import Topic
from headrace.errors import Err
from headrace.local_cluster.layout import Wish
from headrace.local_cluster.process import ClusterProcesses
from headrace.pictures.canvas import Canvas
from headrace.pictures.replicas import Broker, Placed

T = TypeVar("T")

BROKERS = 4
RACKS = ("a", "b")
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "min.insync.replicas": "1",
    # Members of a group are seen to share partitions at once, and not after five seconds.
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    # A frozen broker counts as slow, not as lost. A process that dies is noticed at once all the same.
    "broker.session.timeout.ms": "60000",
}
PATIENCE_S = 60.0
POLL_S = 0.1
ANSWER_S = 2.0
"""A frozen broker is asked too, now and then: then another one."""
LONG_WORD = 40


class Stage:
    def __init__(self, folder: Path, pictures: Path | None = None) -> None:
        self.folder = folder
        self._pictures_folder = pictures
        self.cluster = ClusterProcesses(
            folder / "cluster", Wish(BROKERS, port=0, racks=RACKS, settings=SETTINGS)
        )  # fmt: skip
        self.brokers = self.cluster.brokers
        self.bootstrap = self.cluster.bootstrap
        self.pictures: list[str] = []

    def show(self, *words: str, hide: bool = False) -> None:
        """Run a command as if it were typed. One that fails ends the tour."""
        from headrace.cli.app import run

        if not hide:
            print("$ headrace " + shlex.join(word if len(word) < LONG_WORD else f"{word[:8]}..." for word in words))
        with redirect_stdout(io.StringIO()) if hide else _nothing():
            try:
                status = run([*words, "-b", self.bootstrap])
            except SystemExit as end:  # the way of some commands to end well, too
                status = int(end.code or 0)
        if status:
            raise ClientError(f"`headrace {words[0]} {words[1]}` ended with exit status {status}")
        if not hide:
            print()

    def draw(self, name: str, picture: Canvas) -> None:
        """A picture under its name, written where pictures are wanted."""
        text = picture.svg()
        if self._pictures_folder is not None:
            (self._pictures_folder / f"{name}.svg").write_text(text)
        self.pictures.append(name)

    # -- what the cluster says

    def ask(self, work: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
        return with_admin(self.bootstrap, work)

    def topic(self, name: str) -> Topic:
        return self.ask(lambda admin: admin.describe_topic(name))

    def placed(self, name: str) -> list[Placed]:
        parts = sorted(self.topic(name).partitions.items())
        return [Placed(number, part.replicas, part.leader, part.isr) for number, part in parts]

    def controller(self) -> int:
        return self.ask(lambda admin: Operations(admin).quorum()).leader_id

    def patient_admin(self, bootstrap: str) -> Admin:
        """For pages on which brokers are frozen."""
        return Admin(bootstrap, request_timeout_s=ANSWER_S)

    def shown_brokers(self, *node_ids: int) -> list[Broker]:
        """Those named, or all, with their racks, as they run or not."""
        chosen = node_ids or tuple(self.brokers)
        return [Broker(n, RACKS[(n - 1) % len(RACKS)], not self.brokers[n].is_running) for n in chosen]

    def wait(self, what: str, look: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not look():
            if time.monotonic() > deadline:
                raise ClientError(f"not within {PATIENCE_S:.0f} s: {what}")
            time.sleep(POLL_S)

    async def wait_here(self, what: str, look: Callable[[], Awaitable[bool]]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not await look():
            if time.monotonic() > deadline:
                raise ClientError(f"not within {PATIENCE_S:.0f} s: {what}")
            await asyncio.sleep(POLL_S)

    def wait_in_sync(self, name: str) -> None:
        def look() -> bool:
            try:
                return all(set(part.in_sync) == set(part.replicas) for part in self.placed(name))
            except RequestFailed as error:
                if error.error is not Err.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                return False  # it was just created, and not every broker has heard of it

        self.wait(f"all replicas of {name} in sync", look)


@contextmanager
def _nothing() -> Iterator[None]:
    yield
