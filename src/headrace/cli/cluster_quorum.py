"""`headrace cluster quorum`: who leads the controllers, who votes, how far behind everybody is; votes given and
taken."""

import sys
import time
from pathlib import Path
from typing import Any

import typer

from headrace.cli.dump.report import counted
from headrace.cli.output import BOOTSTRAP, JSON, command_group, print_json, with_admin
from headrace.client.admin.admin import Admin
from headrace.client.admin.operations import Operations, Quorum, QuorumReplica
from headrace.client.errors import ClientError
from headrace.client.net.address import parse_address
from headrace.storage.checkpoints import (
    META_PROPERTIES,
    CorruptCheckpoint,
    MetaProperties,
    decode_uuid,
    encode_uuid,
)
from headrace.terminal import print_table

app = command_group("Show the controllers' quorum; give and take votes.", invoke_without_command=True)

NODE = typer.Argument(..., metavar="NODE", help="The controller's node id.", show_default=False)
NO_DIRECTORY = bytes(16)


@app.callback(invoke_without_command=True)
def show(context: typer.Context, bootstrap: str = BOOTSTRAP, as_json: bool = JSON) -> None:
    """Show the controllers' quorum; give and take votes."""
    if context.invoked_subcommand is not None:
        return
    quorum = with_admin(bootstrap, lambda admin: Operations(admin).quorum())
    facts = quorum_facts(quorum)
    if as_json:
        print_json(facts)
        return
    print(f"node {facts['leader']} leads epoch {facts['epoch']}; committed up to offset {facts['high_watermark']}")
    now_ms = time.time() * 1000
    rows = [
        (
            r["id"],
            role,
            "-" if r["lag"] is None else r["lag"],
            _ago(r, now_ms),
            ", ".join(r["addresses"]) or "-",
            r["directory_id"] or "-",
        )
        for role, group in (("voter", facts["voters"]), ("observer", facts["observers"]))
        for r in group
    ]
    columns = ("NODE", "ROLE", "LAG", "CAUGHT UP", "ADDRESS", "DIRECTORY")
    print_table(columns, rows, numbers=("NODE", "LAG"))


def quorum_facts(quorum: Quorum) -> dict[str, Any]:
    def row(replica: QuorumReplica) -> dict[str, Any]:
        known = replica.directory_id != NO_DIRECTORY
        return {
            "id": replica.node_id,
            "directory_id": encode_uuid(replica.directory_id) if known else None,
            "end_offset": replica.end_offset,
            "lag": quorum.lag(replica),
            "last_fetch_ms": replica.last_fetch_ms,
            "last_caught_up_ms": replica.last_caught_up_ms,
            "addresses": list(replica.addresses),
            "leads": replica.node_id == quorum.leader_id,
        }

    return {
        "leader": quorum.leader_id,
        "epoch": quorum.leader_epoch,
        "high_watermark": quorum.high_watermark,
        "voters": list(map(row, quorum.voters)),
        "observers": list(map(row, quorum.observers)),
    }


def lag_text(row: dict[str, Any]) -> str:
    """What there is to say about a voter, if anything."""
    if row["lag"] is None:
        return " (not heard of)"
    return f" ({row['lag']} behind)" if row["lag"] else ""


def _ago(row: dict[str, Any], now_ms: float) -> str:
    if row["leads"]:
        return "leads"
    if row["last_caught_up_ms"] < 0:
        return "never"
    ago_s = max(0.0, (now_ms - row["last_caught_up_ms"]) / 1000)
    return "now" if ago_s < 1.5 else f"{ago_s:,.0f} s ago"


@app.command("add")
def add(
    node: int = NODE,
    at: str = typer.Option(..., "--at", metavar="HOST:PORT", help="Where its controller listener is."),
    listener: str = typer.Option("CONTROLLER", "--listener", metavar="NAME", help="The name of that listener."),
    directory_id: str = typer.Option(
        None, "--directory-id", metavar="ID", help="Id of its metadata folder, if the quorum does not know it."
    ),
    data: Path = typer.Option(
        None, "--data", metavar="DIR", help="Its metadata folder on this machine, to read that id from."
    ),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Give a vote to a controller that already follows the quorum."""
    host, port = parse_address(at)

    async def work(admin: Admin) -> None:
        operations = Operations(admin)
        quorum = await operations.quorum()
        if any(voter.node_id == node for voter in quorum.voters):
            raise ClientError(f"node {node} is a voter already")
        refuse_fixed(quorum)
        directory = _directory(directory_id, data)
        if directory is None:
            directory = next((o.directory_id for o in quorum.observers if o.node_id == node), None)
        if directory is None or directory == NO_DIRECTORY:
            raise ClientError(
                f"node {node} does not follow the quorum: start it with these controllers as its bootstrap, or give"
                " --directory-id"
            )
        await operations.add_voter(node, directory, (listener, host, port))

    with_admin(bootstrap, work)
    print_json({"node": node, "votes": True}) if as_json else print(f"node {node} is a voter")


def refuse_fixed(quorum: Quorum) -> None:
    """Voters of `controller.quorum.voters` are known by number alone, and cannot be changed while the cluster runs."""
    if any(voter.directory_id == NO_DIRECTORY for voter in quorum.voters):
        raise ClientError(
            "the voters of this quorum are fixed (controller.quorum.voters): "
            "make them replaceable first, with kafka-features.sh upgrade --feature kraft.version=1"
        )


def _directory(given: str | None, data: Path | None) -> bytes | None:
    try:
        if given is not None:
            return decode_uuid(given)
        if data is not None:
            return MetaProperties.decode((data / META_PROPERTIES).read_bytes()).directory_id
    except OSError as error:
        raise ClientError(f"cannot read {data}/{META_PROPERTIES}: {error.strerror}") from None
    except (CorruptCheckpoint, ValueError) as error:
        raise ClientError(str(error)) from None
    return None


@app.command("remove")
def remove(
    node: int = NODE,
    directory_id: str = typer.Option(
        None, "--directory-id", metavar="ID", help="Which of two entries of the same node."
    ),
    yes: bool = typer.Option(False, "--yes", "-y", help="Do not ask, also where the quorum is left with less safety."),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Take a controller's vote away, also of one whose disk is lost."""
    quorum = with_admin(bootstrap, lambda admin: Operations(admin).quorum())
    wanted = _directory(directory_id, None)
    found = [v for v in quorum.voters if v.node_id == node and wanted in (None, v.directory_id)]
    if not found:
        raise ClientError(f"node {node} is no voter; voters are {', '.join(str(v.node_id) for v in quorum.voters)}")
    if len(found) > 1:
        ids = ", ".join(encode_uuid(v.directory_id) for v in found)
        raise ClientError(f"node {node} votes from several folders: choose one with --directory-id ({ids})")
    refuse_fixed(quorum)
    rest = len(quorum.voters) - 1
    if not rest:
        raise ClientError(
            f"node {node} is the only voter: without it nothing could be decided; give another one a vote first"
        )
    if rest < 3 and not yes:
        may_fail = (rest - 1) // 2
        print(f"{counted(rest, 'voter')} would remain, of which {may_fail} may fail.", file=sys.stderr)
        if not typer.confirm("Go on?", err=True):
            raise typer.Exit(1)
    with_admin(bootstrap, lambda admin: Operations(admin).remove_voter(node, found[0].directory_id))
    print_json({"node": node, "votes": False}) if as_json else print(f"node {node} has no vote any more")
