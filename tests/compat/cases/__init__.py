"""The questions both brokers are asked. A case is a short talk with a broker, held once for every version of its API
that Kafka 4.3 serves; what it `ask`s is recorded, what it merely `call`s is set-up. One module per family of APIs."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.protocol.codec import CODECS
from tests.compat.normalise import Normaliser
from tests.compat.raw import Closed, Connection, batch, decode_response

UNSTABLE = {"InitProducerId": 6}  # versions above what a broker serves by default
READY_LIMIT_S = 60


@dataclass(frozen=True)
class Case:
    api: str
    name: str
    run: Callable[["Talk"], None]
    versions: tuple[int, ...]

    @property
    def id(self) -> str:
        return f"{self.api}.{self.name}"


CASES: dict[str, Case] = {}


def served(api: str) -> tuple[int, ...]:
    codec = CODECS[f"{api}Request"]
    return tuple(range(codec.min_version, UNSTABLE.get(api, codec.max_version + 1)))


def case(
    api: str, versions: Iterable[int] | None = None
) -> Callable[[Callable[["Talk"], None]], Callable[["Talk"], None]]:
    """Registers a function as a case of this API; `versions` narrows it to some of those served."""

    def register(run: Callable[["Talk"], None]) -> Callable[["Talk"], None]:
        wanted = served(api) if versions is None else tuple(v for v in served(api) if v in versions)
        new = Case(api, run.__name__, run, wanted)
        assert wanted, new.id
        assert new.id not in CASES, new.id
        CASES[new.id] = new
        return run

    return register


@dataclass
class Talk:
    """One case with one broker at one version."""

    port: int
    case: Case
    version: int
    settle_s: float = 0.0
    answers: list[Any] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    ids: dict[bytes, str] = field(default_factory=dict)
    _connection: Connection | None = None

    # Asking

    def ask(self, api: str | None = None, version: int | None = None, *, mine: str = "", **fields: Any) -> Any:
        """Sends a request and records the answer. `mine` names an array in it of which only the entries about this
        case's own topics are recorded, since other cases share the broker."""
        api = api or self.case.api
        answer = self._exchange(api, version, fields)
        if answer is None:
            self.answers.append("<closed>")
        else:
            self.record(api, answer, mine)
        return answer

    def record(self, api: str, answer: Any, mine: str = "") -> None:
        tree = Normaliser(self.names, self.ids).answer(api, answer)
        if mine:
            keep_own(tree, mine)
        self.answers.append(tree)

    def call(self, api: str, version: int | None = None, **fields: Any) -> Any:
        """Sends a request that is not part of the comparison, at its API's latest version."""
        answer = self._exchange(api, served(api)[-1] if version is None else version, fields)
        assert answer is not None, f"{api} closed the connection"
        return answer

    def note(self, what: object) -> None:
        self.answers.append(what)

    def _exchange(self, api: str, version: int | None, fields: Mapping[str, Any]) -> Any:
        version = self.version if version is None else version
        try:
            return self.connection.ask(api, version, fields)
        except Closed:
            self.close()
            return None
        except TimeoutError as silence:
            raise AssertionError(f"no answer to {api} v{version} {fields}") from silence

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            self._connection = Connection(self.port)
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.__exit__(None, None, None)
            self._connection = None

    def frame(self, request: bytes, api: str = "", version: int = 0) -> None:
        """Sends a hand-made request and records the answer, or that there was none."""
        self.connection.send(request)
        self.outcome(api, version)

    def outcome(self, api: str = "", version: int = 0) -> None:
        try:
            answer = self.connection.receive()
        except Closed:
            self.close()
            self.answers.append("<closed>")
            return
        self.record(api, decode_response(api, version, answer, None))

    # Topics

    def name(self, label: str = "t") -> str:
        """A topic name of this talk's own; recorded as `$label`."""
        name = f"{self.case.api}-{self.case.name}-v{self.version}-{label}"
        self.names[name] = f"${label}"
        return name

    def topic(self, label: str = "t", partitions: int = 1, **configs: str) -> str:
        """A new topic that is ready to serve. Its records are never too old to keep."""
        name = self.name(label)
        settings = {"retention.ms": "-1"} | {k.replace("_", "."): v for k, v in configs.items()}
        self.create(name, partitions, settings)
        return name

    def create(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        new = {"name": name, "num_partitions": partitions, "replication_factor": 1}
        entries = [{"name": k, "value": v} for k, v in configs.items()]
        (result,) = self.call("CreateTopics", topics=[new | {"configs": entries}]).topics
        assert result.error_code == 0, (name, result)
        self.ids[result.topic_id] = f"<id of {self.names.get(name, name)}>"
        asked = [{"partition_index": p, "timestamp": -1} for p in range(partitions)]
        self.until(
            lambda: all(
                p.error_code == 0
                for p in self.call("ListOffsets", replica_id=-1, topics=[{"name": name, "partitions": asked}])
                .topics[0]
                .partitions
            )
        )

    def id_of(self, label: str = "t") -> bytes:
        return next(topic_id for topic_id, text in self.ids.items() if text == f"<id of ${label}>")

    def until(self, ready: Callable[[], bool]) -> None:
        """Waits for the broker to catch up with its controller, which Apache Kafka does a moment after answering."""
        deadline = time.monotonic() + READY_LIMIT_S
        while not ready():
            assert time.monotonic() < deadline, "not ready"
            time.sleep(0.005)

    def settle(self) -> None:
        """The same, where there is nothing to see from outside."""
        time.sleep(self.settle_s)

    def until_producer_ids(self) -> None:
        """A broker just started may still be waiting for its first block of them."""
        self.until(
            lambda: self.call("InitProducerId", transactional_id=None, transaction_timeout_ms=1000).error_code == 0
        )

    # Records

    def produced(self, topic: str, *batches: bytes, partition: int = 0) -> None:
        """Set-up: appends these batches, one request each."""
        for data in batches:
            parts = [{"index": partition, "records": data}]
            answer = self.call(
                "Produce", 12, acks=-1, timeout_ms=5000, topic_data=[{"name": topic, "partition_data": parts}]
            )
            (result,) = answer.responses[0].partition_responses
            assert result.error_code == 0, result

    def three_batches(self, topic: str, partition: int = 0) -> None:
        """Offsets 0-1, 2, 3-5; timestamps 10 ms apart per batch."""
        now = 1_600_000_000_000
        self.produced(topic, batch(b"a", b"b", base_timestamp=now), partition=partition)
        self.produced(topic, batch(b"c", base_timestamp=now + 10), partition=partition)
        self.produced(topic, batch(b"d", b"e", b"f", base_timestamp=now + 20), partition=partition)


def keep_own(tree: Any, array: str) -> None:
    """Drops from the named arrays, wherever they are, the entries about other cases' topics and resources."""
    if isinstance(tree, dict):
        if isinstance(tree.get(array), list):
            tree[array] = [e for e in tree[array] if any(isinstance(v, str) and v.startswith("$") for v in e.values())]
        for value in tree.values():
            keep_own(value, array)
    elif isinstance(tree, list):
        for value in tree:
            keep_own(value, array)


def hold(case: Case, version: int, port: int, settle_s: float = 0.0) -> list[Any]:
    """Runs one case at one version and returns what was recorded."""
    talk = Talk(port, case, version, settle_s)
    try:
        case.run(talk)
    finally:
        talk.close()
    return talk.answers


def load() -> dict[str, Case]:
    """All cases; importing their modules registers them."""
    from tests.compat.cases import (  # noqa: F401
        admin,
        configs,
        fetch,
        groups,
        metadata,
        offsets,
        produce,
        topics,
        transactions,
        wire,
    )

    return CASES
