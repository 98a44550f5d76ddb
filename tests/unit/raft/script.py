"""One node of a quorum, driven by a script of events: each command is answered by what the node wants done, and its
state.

start voters=1,2,3 [id=1] [epoch=4] [leader=2] [voted=2] [log=1:3,2:5]     the log as epoch:end offset
at 150                         the clock, and whatever is due then
vote|prevote from=2 epoch=3 [last=5@2] [as=1|other]                        as: the disk that the candidate knows
begin|end leader=2 epoch=3 [successors=3,1]
fetch from=2 epoch=3 offset=0 [last=0] [wait=500] [hw=0] | snapshot from=2 epoch=3 id=5@1 [position=0]
add|remove|update 4 [caught-up] | probed 4 [none]
granted|rejected 2 [error=X] [leader=3] [epoch=4] | records [3:2] [hw=2] [error=X] [leader=] [epoch=]
diverging 3@2 | behind 9@4 | chunk 0..5 of=9 | failed 2 [refused] | gone 2 | resign
saved | synced | write 2 | rejected-records
"""

from typing import Any

from headrace.errors import Err
from headrace.raft import messages as r
from headrace.raft.leader import Leader
from headrace.raft.node import RaftNode
from headrace.raft.states import Follower, Nominee, Resigned
from headrace.raft.types import NOBODY, Election, OffsetEpoch, RaftMember, RaftOptions, ReplicaKey
from headrace.raft.voters import Voter, VoterSet
from tests.simulation.raft_model import Entry, Model, ModelLog


def place(text: str) -> OffsetEpoch:
    offset, _, epoch = text.partition("@")
    return OffsetEpoch(int(offset), int(epoch or 0))


def key(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id, Model.voter(node_id).directory_id)


class Script:
    def __init__(self) -> None:
        self.now_ms = 0
        self.node: RaftNode
        self.log: ModelLog
        self.saving: Election | None = None
        self.sent: dict[str, tuple[int, Any]] = {}

    def command(self, line: str) -> list[str]:
        """The lines that a command is answered by."""
        name, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        effects = getattr(self, "do_" + name.replace("-", "_"))(plain, options)
        return [f"  {text}" for text in [*self.executed(effects), self.state()]]

    # --- commands -----------------------------------------------------------------------------------------------------

    def do_start(self, plain: list[str], options: dict[str, str]) -> Any:
        own = int(options.get("id", "1"))
        voters = VoterSet(Model.voter(int(n)) for n in options["voters"].split(","))
        self.log = ModelLog(voters)
        for part in filter(None, options.get("log", "").split(",")):
            epoch, end = map(int, part.split(":"))
            while self.log.end_offset < end:
                self.log.append(Entry(epoch, "x"))
        self.log.durable_end = self.log.end_offset
        voted = options.get("voted")
        election = Election(
            int(options.get("epoch", "0")),
            int(options.get("leader", "-1")),
            key(int(voted)) if voted else None,
        )
        endpoints = Model.voter(own).endpoints
        servers = tuple((f"c{n}", int(n)) for n in options.get("servers", "").split(",") if n)
        raft = RaftOptions(
            bootstrap_servers=servers,
            is_controller="broker" not in plain,
            auto_join="join" in plain,
        )
        # No dice: what may be random is the least it can be.
        self.node = RaftNode(RaftMember(key(own), endpoints), raft, self.log, election, self.now_ms, lambda bound: 0)
        return self.node.tick(self.now_ms)

    def do_at(self, plain: list[str], options: dict[str, str]) -> Any:
        self.now_ms = int(plain[0])
        return self.node.tick(self.now_ms)

    def step(self, event: r.Event) -> Any:
        return self.node.step(event, self.now_ms)

    def received(self, request: r.Request) -> Any:
        return self.step(r.Received("asked", request))

    def do_vote(self, plain: list[str], options: dict[str, str], pre_vote: bool = False) -> Any:
        known = {"other": ReplicaKey(self.node.key.id, b"o" * 16), "nobody": None}.get(
            options.get("as", ""), self.node.key
        )
        last = place(options.get("last", "0@0"))
        return self.received(r.Vote(int(options["epoch"]), key(int(options["from"])), last, pre_vote, known))

    def do_prevote(self, plain: list[str], options: dict[str, str]) -> Any:
        return self.do_vote(plain, options, True)

    def do_begin(self, plain: list[str], options: dict[str, str]) -> Any:
        leader = int(options["leader"])
        return self.received(r.BeginEpoch(int(options["epoch"]), leader, Model.voter(leader).endpoints, self.node.key))

    def do_end(self, plain: list[str], options: dict[str, str]) -> Any:
        successors = tuple(key(int(n)) for n in options.get("successors", "").split(",") if n)
        return self.received(r.EndEpoch(int(options["epoch"]), int(options["leader"]), successors))

    def do_fetch(self, plain: list[str], options: dict[str, str]) -> Any:
        return self.received(
            r.Fetch(
                int(options["epoch"]),
                key(int(options["from"])),
                int(options["offset"]),
                int(options.get("last", "0")),
                int(options.get("wait", "0")),
                int(options.get("hw", str(1 << 62))),
            )
        )

    def do_snapshot(self, plain: list[str], options: dict[str, str]) -> Any:
        snapshot, position = place(options["id"]), int(options.get("position", "0"))
        return self.received(r.FetchSnapshot(int(options["epoch"]), key(int(options["from"])), snapshot, position))

    def do_add(self, plain: list[str], options: dict[str, str]) -> Any:
        return self.received(r.AddVoter(Model.voter(int(plain[0]))))

    def do_remove(self, plain: list[str], options: dict[str, str]) -> Any:
        return self.received(r.RemoveVoter(key(int(plain[0]))))

    def do_update(self, plain: list[str], options: dict[str, str]) -> Any:
        old = Model.voter(int(plain[0]))
        moved = Voter(old.id, old.directory_id, (("CONTROLLER", options["host"], 1),))
        return self.received(r.UpdateVoter(int(options["epoch"]), moved))

    def do_probed(self, plain: list[str], options: dict[str, str]) -> Any:
        return self.step(r.Probed(int(plain[0]), None if "none" in plain else (0, 1)))

    def do_granted(self, plain: list[str], options: dict[str, str], granted: bool = True) -> Any:
        to, request = self.sent.pop(f"Vote {plain[0]}")
        reply = r.VoteReply(Err[options.get("error", "NONE")], self.said(options), granted)
        return self.step(r.Answered(to, request, reply))

    def do_rejected(self, plain: list[str], options: dict[str, str]) -> Any:
        return self.do_granted(plain, options, False)

    def said(self, options: dict[str, str], leader: int = NOBODY) -> r.Leadership:
        leader = int(options.get("leader", leader))
        endpoints = Model.voter(leader).endpoints if leader != NOBODY else ()
        return r.Leadership(int(options.get("epoch", self.node.epoch)), leader, endpoints)

    def fetched(self, options: dict[str, str], **content: Any) -> Any:
        to, request = self.sent.pop("Fetch")
        leadership = self.said(options, self.node.leader_id)
        error, hw = Err[options.get("error", "NONE")], int(options.get("hw", "-1"))
        return self.step(r.Answered(to, request, r.FetchReply(error, leadership, hw, 0, **content)))

    def do_records(self, plain: list[str], options: dict[str, str]) -> Any:
        entries = []
        for word in plain:
            epoch, number = map(int, word.split(":"))
            entries += [Entry(epoch, "x")] * number
        return self.fetched(options, records=entries)

    def do_diverging(self, plain: list[str], options: dict[str, str]) -> Any:
        return self.fetched(options, diverging=place(plain[0]))

    def do_behind(self, plain: list[str], options: dict[str, str]) -> Any:
        return self.fetched(options, snapshot=place(plain[0]))

    def do_chunk(self, plain: list[str], options: dict[str, str]) -> Any:
        to, request = self.sent.pop("FetchSnapshot")
        start, end = map(int, plain[0].split(".."))
        chunk = [Entry(request.snapshot.epoch, "x")] * (end - start)
        leadership = self.said(options, self.node.leader_id)
        error = Err[options.get("error", "NONE")]
        reply = r.SnapshotReply(error, leadership, request.snapshot, int(options["of"]), start, chunk)
        return self.step(r.Answered(to, request, reply))

    def do_failed(self, plain: list[str], options: dict[str, str]) -> Any:
        name = next(name for name in self.sent if name.endswith(plain[0]) or name == plain[0])
        to, request = self.sent.pop(name)
        return self.step(r.Failed(to, request, "refused" in plain))

    def do_gone(self, plain: list[str], options: dict[str, str]) -> Any:
        return self.step(r.PeerGone(int(plain[0])))

    def do_resign(self, plain: list[str], options: dict[str, str]) -> Any:
        return self.step(r.Resign())

    def do_saved(self, plain: list[str], options: dict[str, str]) -> Any:
        assert self.saving is not None
        saved, self.saving = self.saving, None
        return self.step(r.Persisted(saved))

    def do_synced(self, plain: list[str], options: dict[str, str]) -> Any:
        self.log.durable_end = self.log.end_offset
        return self.step(r.Durable())

    def do_stored(self, plain: list[str], options: dict[str, str]) -> Any:
        return self.step(r.Stored())

    def do_write(self, plain: list[str], options: dict[str, str]) -> Any:
        for _ in range(int(plain[0])):
            self.log.append(Entry(self.node.epoch, "x"))
        return self.step(r.Appended())

    def do_rejected_records(self, plain: list[str], options: dict[str, str]) -> Any:
        return self.step(r.Rejected())

    # --- what comes out -----------------------------------------------------------------------------------------------

    def executed(self, effects: list[r.Effect]) -> list[str]:  # noqa: C901 - one case for each kind
        lines = []
        for effect in effects:
            match effect:
                case r.Persist(election):
                    self.saving = election
                    voted = f" voted {election.voted.id}" if election.voted else ""
                    leader = f" leader {election.leader_id}" if election.leader_id != NOBODY else ""
                    lines.append(f"save epoch {election.epoch}{leader}{voted}")
                case r.Send(to, address, request):
                    name = type(request).__name__
                    single = isinstance(request, r.Fetch | r.FetchSnapshot)
                    self.sent[name if single else f"{name} {to}"] = (to, request)
                    lines.append(f"send to {to if to != NOBODY else address[0]}: {shown(request)}")
                case r.Answer(_, reply):
                    lines.append(f"answer {shown(reply)}")
                case r.AppendControl(epoch, records):
                    lines.append(f"append in epoch {epoch}: {', '.join(map(shown, records))}")
                    for record in records:
                        if not isinstance(record, int):
                            self.log.append(Entry(epoch, record))
                    lines += self.executed(self.step(r.Appended()))
                case r.AppendFetched(entries):
                    lines.append(f"append {len(entries)} fetched")
                    for entry in entries:
                        self.log.append(entry)
                    lines += self.executed(self.step(r.Appended()))
                case r.Truncate(end_offset):
                    lines.append(f"truncate to {end_offset}")
                    self.log.truncate(end_offset)
                case r.StoreChunk(snapshot, position, chunk, last):
                    lines.append(
                        f"store {position}..{position + len(chunk)} of {shown(snapshot)}{', the last' if last else ''}"
                    )
                    if last:
                        self.log.install(snapshot, list(chunk))
                case r.Probe(voter):
                    lines.append(f"probe {voter.id}")
        return lines

    def state(self) -> str:
        node, state = self.node, self.node.state
        match state:
            case Leader():
                what = f"leader from {state.epoch_start}"
            case Follower():
                what = f"follower of {state.leader_id}"
            case Nominee():
                what = "prospective" if state.pre_vote else "candidate"
            case Resigned():
                what = "resigned"
            case _:
                what = "unattached" + (f" (voted {node.election.voted.id})" if node.election.voted else "")
        if not node.is_voter:
            what += ", no vote"
        due_ms = node.deadline_ms
        due = f", due at {due_ms}" if due_ms < 1 << 60 else ""
        return f"= {what}, epoch {node.epoch}, end {self.log.end_offset}, hw {node.high_watermark}{due}"


def shown(what: Any) -> str:  # noqa: C901 - one case for each kind
    match what:
        case OffsetEpoch(offset, epoch):
            return f"{offset}@{epoch}"
        case ReplicaKey(node_id, _):
            return str(node_id)
        case Voter():
            return f"voter {what.id} at {what.endpoints[0][1]}"
        case VoterSet():
            return f"voters {','.join(f'{v.id}' for v in what)}"
        case r.LeaderChange(leader, _, granting):
            return f"leader {leader} by {','.join(map(str, granting))}"
        case r.Leadership(epoch, leader, _):
            return f"epoch {epoch}" + (f" leader {leader}" if leader != NOBODY else "")
        case r.Vote(epoch, candidate, last, pre_vote, _):
            return f"{'PreVote' if pre_vote else 'Vote'} for {candidate.id} in epoch {epoch}, log {shown(last)}"
        case r.Fetch(epoch, _, offset, last_epoch, wait_ms, hw):
            known = f", hw {hw}" if hw < 1 << 62 else ""
            return f"Fetch from {offset}@{last_epoch} in epoch {epoch}{f', wait {wait_ms}' if wait_ms else ''}{known}"
        case Err():
            return str(what.name)
        case int():
            return f"kraft.version {what}"
        case tuple() if not hasattr(what, "_asdict"):
            return "+".join(map(shown, what))
        case tuple():
            parts = [
                f"{name} {shown(value) if not isinstance(value, int) or isinstance(value, Err) else value}"
                for name, value in what._asdict().items()  # type: ignore[attr-defined]
                if (value not in (None, (), -1, "") and name not in ("endpoints", "voter", "kraft_versions"))
                or (name == "voter" and isinstance(value, Voter))
            ]
            return f"{type(what).__name__}({', '.join(parts)})"
    return str(what)
