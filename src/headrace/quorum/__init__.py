"""Where committed metadata lives.

`kraft` keeps it in a log of its own, replicated by consensus among the controllers; `zookeeper` keeps it in the znodes
of an ensemble. Both offer what `Quorum` says: decisions are made by `headrace.metadata` on `tip`, which includes what
is written but not yet committed; everybody else reads `image`, which never goes back.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from headrace.metadata.delta import Delta
from headrace.metadata.image import Endpoint, Image
from headrace.metadata.outcome import Outcome
from headrace.metadata.records import Record
from headrace.protocol.api import ApiKey

Listener = Callable[[Delta, Image], None]
"""Called on the loop for each committed batch, in commit order, with what changed and the image after it."""

LeadershipListener = Callable[[int, int, bool], None]
"""Called on the loop with (leader id, leader epoch, whether this node is the active controller) when any changes."""

DepartureListener = Callable[[int], None]
"""Called on the loop with the id of a broker that is known to be gone; also more than once."""

RequestListener = Callable[[ApiKey, Any, int], Awaitable[Any]]
"""Called on the loop with (key, message, version) of a request; the answer, as the client of it would get it. Raises
KafkaError."""

Address = tuple[str, int]

RAFT_APIS = (
    ApiKey.VOTE,
    ApiKey.BEGIN_QUORUM_EPOCH,
    ApiKey.END_QUORUM_EPOCH,
    ApiKey.FETCH,
    ApiKey.FETCH_SNAPSHOT,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.ADD_RAFT_VOTER,
    ApiKey.REMOVE_RAFT_VOTER,
    ApiKey.UPDATE_RAFT_VOTER,
)
"""The quorum's own requests: those that `Quorum.serve` answers."""


class Quorum(Protocol):
    """A place that orders metadata records, keeps them safe, and tells everybody."""

    node_id: int
    on_failure: Callable[[Exception], None] | None

    @property
    def leader_id(self) -> int:
        """-1 while nobody is known to lead."""
        ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def is_voter(self) -> bool:
        """Whether this node has a vote, in the log directory that it runs on."""
        ...

    @property
    def is_active(self) -> bool:
        """This node leads, and all that earlier leaders wrote is committed and in `image`: it may decide."""
        ...

    @property
    def kraft_version(self) -> int:
        """1 when the voters are in the log, 0 when they are in the configuration."""
        ...

    @property
    def image(self) -> Image:
        """After the last committed record."""
        ...

    @property
    def tip(self) -> Image:
        """After the last record written, committed or not: what the next decision must be based on. The leader's."""
        ...

    @property
    def next_offset(self) -> int:
        """Where the next record will stand; a new broker's epoch."""
        ...

    def append(self, records: Sequence[Record]) -> Awaitable[int]:
        """Write an atomic batch, or several of more than `RECORDS_PER_BATCH_MAX` records; resolves to the first offset
        of the last one once all are committed and `image` has them.

        Raises NOT_CONTROLLER where this node does not lead, also later, when it ceases to before the commit: then the
        records may or may not become part of the log.
        """
        ...

    def write(self, decide: Callable[[Image], Outcome[Any]]) -> Awaitable[Any]:
        """Decide on `tip`, append what was decided, answer once it is committed."""
        ...

    def raise_version(self, version: int, validate_only: bool = False) -> Awaitable[None]:
        """Finalize a newer kraft.version; returns once that is committed. Raises KafkaError."""
        ...

    @property
    def is_starved(self) -> bool:
        """Whether there is no room for what the leader sends: then what this node knows is out of date."""
        ...

    @property
    def hears_changes(self) -> bool:
        """Whether changes reach this node by a way that may fail while it still reaches the controller."""
        ...

    def listen(self, listener: Listener) -> None: ...

    def on_leadership(self, listener: LeadershipListener) -> None: ...

    async def announce(self, endpoints: Sequence[Endpoint], rack: str | None) -> None:
        """Show that this broker is there, where the quorum keeps track of that. Before it registers. Raises
        QuorumError."""
        ...

    def is_present(self, broker_id: int) -> bool:
        """Whether a broker is there as far as the quorum keeps track of that. Asked of the active controller's."""
        ...

    def give_way(self) -> bool:
        """Asked of the active controller's, when most brokers that are present are silent to it: let another decide,
        whom they may reach. False where the quorum takes care of that by itself, or there is nobody to give way to."""
        ...

    def on_request(self, listener: RequestListener) -> None:
        """Who answers what is asked for by way of the place where metadata is kept, while this node is the active
        controller."""
        ...

    def on_departure(self, listener: DepartureListener) -> None:
        """Told while this node is the active controller."""
        ...

    def controller_address(self) -> tuple[int, str, int] | None:
        """(node id, host, port) of the leader's controller listener; None while nobody is known to lead."""
        ...

    def peer_gone(self, node_id: int) -> None:
        """That node's process is known to be dead: a follower of it need not wait for its silence to become long."""
        ...

    def serve(self, key: ApiKey, request: Any, version: int, peer: str) -> Awaitable[Any]:
        """Answer one of the quorum's own requests; `peer` names the sender in messages to people."""
        ...

    async def start(self) -> None:
        """Take part. A node that decides alone leads when this returns; others learn later who leads."""
        ...

    async def caught_up(self) -> None:
        """Until `image` has all that was committed when this node joined: what it shows before may be long out of
        date."""
        ...

    async def maintain(self) -> None: ...

    async def close(self) -> None: ...


class QuorumError(Exception):
    """Why this node cannot take part: one line that says what is wrong and, where there is a way, what to do."""


class DamagedMetadata(QuorumError):
    """What this node knew of the cluster is not what it was. It says what is wrong; what to do is the same for all."""

    ADVICE = (
        "restore this node's folders from a copy; or, where other controllers have the metadata, empty them, run "
        "`headrace format --no-initial-controllers` and let the node join again"
    )

    def __str__(self) -> str:
        return f"{super().__str__()}; {self.ADVICE}"


class PeerError(Exception):
    """A request to another node got no answer. `refused`: there is no process at that address."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class Network(Protocol):
    """How a quorum talks to other nodes. Requests on one lane are answered in order; lanes do not wait for each
    other."""

    async def request(
        self,
        address: Address,
        key: ApiKey,
        body: Any,
        *,
        timeout_s: float,
        lane: str = "control",
        version_max: int | None = None,
    ) -> Any:
        """The answer's message. Raises PeerError."""
        ...

    def drop(self, address: Address, lane: str = "control") -> None:
        """Close a lane, and with it whatever waits on it."""
        ...
