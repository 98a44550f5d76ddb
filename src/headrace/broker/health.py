"""`/health` and `/ready` on the metrics port: does this process work, and should clients come to it?

Each is answered by 200, or by 503 and a line for every reason. They are asked in a thread of the metrics server and
looked up on the event loop, so that an answer shows that the loop turns.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from itertools import islice
from typing import Any

from headrace.broker.cluster.lifecycle import Lifecycle, State
from headrace.broker.metadata_cache import MetadataCache
from headrace.broker.replicas.hosted import Replicas
from headrace.broker.tasks import Tasks
from headrace.quorum import Quorum
from headrace.storage.manager import LogManager

LOOP_LIMIT_S = 5.0
NAMED_MAX = 3
"""Partitions that are named one by one."""

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Health:
    """What can be said about one node. `lifecycle` is None where the node is no broker."""

    def __init__(
        self,
        node_id: int,
        loop: AbstractEventLoop,
        tasks: Tasks,
        logs: LogManager,
        metadata: MetadataCache,
        quorum: Quorum,
        replicas: Replicas,
        lifecycle: Lifecycle | None,
    ) -> None:
        self._node_id = node_id
        self._loop = loop
        self._tasks = tasks
        self._logs = logs
        self._metadata = metadata
        self._quorum = quorum
        self._replicas = replicas
        self._lifecycle = lifecycle
        self.serving = False
        """Whether the listeners are open, from the end of the start to the beginning of the stop."""

    # -- on the loop

    def troubles(self) -> list[str]:
        """Why this process does not work as it should."""
        found = [f"log dir {one.path} is offline: {one.failed}" for one in self._logs.dirs if one.failed is not None]
        if self._tasks.failure is not None:
            found.append(f"an internal task failed: {self._tasks.failure!r}")
        return found

    def obstacles(self) -> list[str]:
        """Why clients should go to others for now."""
        found = self.troubles()
        if not self.serving:
            found.append("starting, or stopping: it does not serve")
        if self._lifecycle is None:
            return found if self._quorum.leader_id >= 0 else [*found, "no controller leads the quorum"]
        return found + self._not_a_member(self._lifecycle) + self._not_led()

    def _not_a_member(self, lifecycle: Lifecycle) -> list[str]:
        if lifecycle.state is State.STARTING:
            return ["it is not registered with the controller"]
        if lifecycle.state in (State.LEAVING, State.STOPPED):
            return ["it hands over what it leads, and stops"]
        if lifecycle.out_of_touch:
            return ["no controller has answered for broker.session.timeout.ms"]
        known = self._metadata.image.brokers.get(self._node_id)
        if known is None or known.fenced or not lifecycle.running:
            return ["the controller has fenced it"]
        return []

    def _not_led(self) -> list[str]:
        """Partitions that the metadata gives to this node to lead, and that it does not serve yet, or no more."""
        node_id, hosted = self._node_id, self._replicas.by_id

        def lacking() -> Iterable[str]:
            for topic in self._metadata.image.topics.values():
                here = hosted.get(topic.id, {})
                for index, assigned in topic.partitions.items():
                    if assigned.leader == node_id:
                        partition = here.get(index)
                        if partition is None or partition.leader is None or partition.failed:
                            yield f"{topic.name}-{index}"

        names = list(islice(lacking(), NAMED_MAX + 1))
        if not names:
            return []
        more = " and others" if len(names) > NAMED_MAX else ""
        return [f"it does not serve {', '.join(names[:NAMED_MAX])}{more}, which it should lead"]

    # -- in a thread of the metrics server

    def beside(self, metrics: App) -> App:
        """An application that answers for both paths and leaves all others to `metrics`."""
        checks = {"/health": self.troubles, "/ready": self.obstacles}

        def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            check = checks.get(environ["PATH_INFO"])
            if check is None:
                return metrics(environ, start_response)
            lines = on_loop(self._loop, check)
            status = "503 Service Unavailable" if lines else "200 OK"
            start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")])
            return ["".join(f"{line}\n" for line in lines or ["ok"]).encode()]

        return app


def on_loop(loop: AbstractEventLoop, check: Callable[[], list[str]], limit_s: float = LOOP_LIMIT_S) -> list[str]:
    """What a check says on the loop, asked from another thread; or that the loop does not turn."""
    answer: Future[list[str]] = Future()

    def run() -> None:
        try:
            answer.set_result(check())
        except Exception as error:
            answer.set_exception(error)

    try:
        loop.call_soon_threadsafe(run)
        return answer.result(limit_s)
    except TimeoutError:
        return [f"the event loop has not turned for {limit_s:g} s"]
    except RuntimeError as error:  # the loop is closed
        return [str(error)]
