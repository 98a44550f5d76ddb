"""`headrace proof`: consistency against availability, measured on brokers of its own that are lost."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from headrace.cli.output import JSON, print_json
from headrace.client.errors import ClientError
from headrace.proof.cases import ACKS, DURABILITIES, MIN_IN_SYNC, REPLICAS, Case, Choice, Progress
from headrace.terminal import print_table

CASE_S = 6.0
"""What a case takes, all its stages together, before anything is known: for the first estimate."""


def proof(
    quick: Annotated[
        bool, typer.Option("--quick", help="Only eight cases where the answers differ most: under a minute.")
    ] = False,
    replicas: Annotated[
        list[int] | None, typer.Option("--replicas", "-r", metavar="N", help="Only this replication factor, 1 to 3.")
    ] = None,
    min_in_sync: Annotated[
        list[int] | None, typer.Option("--min-in-sync", metavar="N", help="Only this min.insync.replicas, 1 to 3.")
    ] = None,
    acks: Annotated[list[str] | None, typer.Option("--acks", metavar="A", help="Only these acks: 0, 1 or all.")] = None,
    durability: Annotated[
        list[str] | None, typer.Option("--durability", metavar="D", help="Only this durability: fsync or replicated.")
    ] = None,
    svg: Annotated[Path | None, typer.Option("--svg", metavar="FILE", help="Draw the table as a picture.")] = None,
    as_json: bool = JSON,
) -> None:
    """Measure what replicas, acks and durability keep and cost.

    Starts brokers in a temporary folder, writes to a topic for each combination, loses one broker and then a second one
    with their disks, and reads every acknowledged record again. Options may be repeated.
    """
    _check("--replicas", replicas or (), REPLICAS)
    _check("--min-in-sync", min_in_sync or (), MIN_IN_SYNC)
    _check("--acks", acks or (), ACKS)
    _check("--durability", durability or (), DURABILITIES)
    cases = Choice(quick, replicas or (), min_in_sync or (), acks or (), durability or ()).cases()
    if not cases:
        raise ClientError("no case is left: --quick has replicas and minimum 1/1, 2/1, 3/1 and 3/2 with acks 1 and all")
    if svg is not None and not svg.absolute().parent.is_dir():
        raise ClientError(f"--svg {svg}: there is no folder {svg.absolute().parent}")
    _run(cases, svg, as_json)


def _check(option: str, given: object, known: tuple[object, ...]) -> None:
    assert isinstance(given, list | tuple)
    for value in given:
        if value not in known:
            raise ClientError(f"{option} {value}: there are {', '.join(map(str, known))}")


def _run(cases: list[Case], svg: Path | None, as_json: bool) -> None:
    from headrace.local_cluster.process import terminated_like_interrupted
    from headrace.proof.picture import proof_picture
    from headrace.proof.run import prove
    from headrace.proof.table import COLUMNS, NUMBERS, rows
    from headrace.proof.trial import TrialFailed

    shown = _Progress(len(cases))
    try:
        with terminated_like_interrupted():
            results = prove(cases, shown.show)
    except (TrialFailed, RuntimeError) as error:
        raise ClientError(str(error)) from None
    finally:
        shown.close()
    if svg is not None:
        svg.write_text(proof_picture(results, f"{os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}.").svg())
    if as_json:
        print_json(json.loads(msgspec.json.encode(results)))
        return
    print_table(COLUMNS, rows(results), numbers=NUMBERS)
    print(
        "\nLATENCY is the median of records sent one at a time, RECORDS/S what one producer writes to one partition, of"
        " 100 bytes each.\nOffline: no replica that is left may lead; what is lost was found after an unclean election."
    )
    if svg is not None:
        print(f"The picture is in {svg}")


class _Progress:
    """A line on stderr: rewritten on a terminal, one for each new thing to do elsewhere."""

    def __init__(self, cases: int) -> None:
        self._begun = time.monotonic()
        self._guess_s = cases * CASE_S
        self._is_live = sys.stderr.isatty()
        self._last = ""

    def show(self, progress: Progress) -> None:
        doing = progress.doing if self._is_live else progress.doing.partition(": measuring")[0]
        if doing == self._last:
            return
        self._last = doing
        passed_s = time.monotonic() - self._begun
        share = progress.done / progress.total
        left_s = passed_s * (1 - share) / share if share > 0.2 else max(self._guess_s - passed_s, 0)
        line = f"{share:4.0%}  {doing}  (about {left_s:.0f} s left)"
        print(f"\r\033[K{line}" if self._is_live else line, end="" if self._is_live else "\n", file=sys.stderr)
        sys.stderr.flush()

    def close(self) -> None:
        if self._is_live and self._last:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
