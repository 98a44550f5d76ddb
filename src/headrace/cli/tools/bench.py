"""`headrace bench`: a load test of your own cluster."""

import asyncio
from pathlib import Path
from typing import Any

import typer

from headrace.cli.group_reset import parse_duration
from headrace.cli.output import BOOTSTRAP, JSON, SECURITY, print_json
from headrace.cli.tools.bars import bar
from headrace.client.errors import ClientError, ConnectionRefused
from headrace.tools.loadtest.histogram import Histogram
from headrace.tools.loadtest.workload import PHASES, SIZE_BYTES_MIN, Bench, BenchReport, BenchRequest, Flow

BAR_CHARACTERS = 40
HISTOGRAM_LINES = 14
NS_PER_MS = 1e6


def bench(
    only: str = typer.Option(
        ",".join(PHASES), "--only", metavar="NAME,...", help="Some of produce, consume and latency."
    ),
    duration: str = typer.Option("10s", "--for", metavar="TIME", help="How long to produce, and to hold the rate."),
    records: int | None = typer.Option(
        None, "--records", "-n", metavar="N", min=1, help="At most so many of each.", show_default=False
    ),
    rate: float = typer.Option(1_000, "--rate", metavar="N", min=0.1, help="Records per second of the latency test."),
    warmup: str = typer.Option("1s", "--warm-up", metavar="TIME", help="Of the latency test; does not count."),
    size: int = typer.Option(100, "--size", metavar="BYTES", min=SIZE_BYTES_MIN, help="Of a record's value."),
    keys: int = typer.Option(0, "--keys", metavar="N", min=0, help="Records have so many different keys; 0: none."),
    partitions: int = typer.Option(1, "--partitions", metavar="N", min=1, help="Of the topic that is made for it."),
    replication: int = typer.Option(
        -1, "--replication-factor", metavar="N", help="Of that topic [the brokers' default].", show_default=False
    ),
    topic: str | None = typer.Option(None, "--topic", metavar="NAME", help="Use this one; it stays, with the records."),
    acks: str = typer.Option("all", "--acks", metavar="N", help="Wait for: all in-sync replicas, 1 (the leader), 0."),
    codec: str = typer.Option("none", "--codec", "-z", metavar="CODEC", help="none, gzip, snappy, lz4 or zstd."),
    linger_ms: int = typer.Option(0, "--linger-ms", metavar="N", min=0, help="How long a batch waits for more."),
    keep: bool = typer.Option(False, "--keep", help="Do not delete the topic at the end."),
    plot: Path | None = typer.Option(None, "--plot", metavar="FILE", help="Draw the latencies: .png, .svg, .pdf."),
    bootstrap: str = BOOTSTRAP,
    as_json: bool = JSON,
) -> None:
    """Measure a cluster with a load of your own.

    Records are written as fast as they go, then read back, and then written at a steady rate and timed from end to end.
    A record's time counts from when it was meant to be sent, so that a cluster that is stuck for a second shows a
    thousand late records at 1,000 per second, and not one. What is measured includes this client, in Python.
    """
    duration_s = parse_duration(duration, "--for") / 1000
    if duration_s <= 0:
        raise ClientError(f"--for {duration}: write a time such as 10s or 1m")
    request = BenchRequest(
        phases=tuple(name.strip() for name in only.split(",") if name.strip()),
        duration_s=duration_s,
        warmup_s=parse_duration(warmup, "--warm-up") / 1000,
        records_max=records,
        rate=rate,
        size_bytes=size,
        partitions=partitions,
        replication_factor=replication,
        acks=acks,
        codec=codec,
        linger_ms=linger_ms,
        keys=keys,
        topic=topic,
        keep=keep,
    )
    work = Bench(request, bootstrap, SECURITY.get())
    if plot is not None:
        from headrace.tools.loadtest import plot as plotting

        plotting.check(plot)
    with bar("bench", quiet=as_json) as advance:
        try:
            report = asyncio.run(work.run(lambda phase, part: advance(part, 1.0, phase)))
        except ConnectionRefused as error:
            raise ClientError(f"{error}. Is a broker running? Start one with: headrace up") from None
    if plot is not None:
        title = f"{size} B, {rate:g} records/s, acks={acks}, {codec}"
        series = {"end to end": report.end_to_end, "acknowledged": report.steady_acks}
        plotting.draw(plot, series if report.steady else {"acknowledged": report.produce_acks}, title)
    if as_json:
        print_json(summary(report))
    else:
        print_report(report, rate)
    if report.lost:
        raise typer.Exit(1)


def summary(report: BenchReport) -> dict[str, Any]:
    found: dict[str, Any] = {"topic": report.topic}
    if report.produce is not None:
        found["produce"] = {**_flow(report.produce), "ack_ms": report.produce_acks.summary(NS_PER_MS)}
    if report.consume is not None:
        found["consume"] = _flow(report.consume)
    if report.steady is not None:
        found["latency"] = {
            **_flow(report.steady),
            "ack_ms": report.steady_acks.summary(NS_PER_MS),
            "end_to_end_ms": report.end_to_end.summary(NS_PER_MS),
            "measured": report.end_to_end.count,
            "sent_late": report.late,
            "lost": report.lost,
            "doubled": report.doubled,
        }
    return found


def _flow(flow: Flow) -> dict[str, float]:
    return {
        "records": flow.records,
        "seconds": round(flow.seconds, 3),
        "records_per_s": round(flow.records_per_s, 1),
        "mb_per_s": round(flow.mb_per_s, 3),
    }


def print_report(report: BenchReport, rate: float) -> None:
    for name, flow in (("produce", report.produce), ("consume", report.consume)):
        if flow is not None:
            print(
                f"{name:8} {flow.records:>12,} records in {flow.seconds:.1f} s: {flow.records_per_s:,.0f} records/s,"
                f" {flow.mb_per_s:,.1f} MB/s"
            )
    if report.steady is None:
        if report.produce is not None:
            print(f"\n{_header()}\n{_percentiles('acknowledged', report.produce_acks)}")
        return
    print(f"latency  {report.steady.records:>12,} records at {rate:,g} per second\n\n{_header()}")
    print(_percentiles("acknowledged", report.steady_acks))
    print(_percentiles("end to end", report.end_to_end))
    print()
    most = max((count for _, _, count in report.end_to_end.rows(HISTOGRAM_LINES)), default=1)
    for low, high, count in report.end_to_end.rows(HISTOGRAM_LINES):
        drawn = "█" * round(count / most * BAR_CHARACTERS) or ("▏" if count else "")
        print(f"{low / NS_PER_MS:>10.3f} - {high / NS_PER_MS:<10.3f} {count:>9,} {drawn}".rstrip())
    if report.late:
        print(f"\n{report.late:,} records left over 10 ms late: this client cannot keep that rate, or was held up")
    if report.lost or report.doubled:
        print(f"\n{report.lost:,} records did not come back, {report.doubled:,} came twice")


def _header() -> str:
    return f"{'ms':14}" + "".join(f"{name:>10}" for name in ("p50", "p90", "p99", "p99.9", "max"))


def _percentiles(name: str, histogram: Histogram) -> str:
    figures = histogram.summary(NS_PER_MS)
    return f"{name:14}" + "".join(f"{figures[one]:>10.3f}" for one in ("p50", "p90", "p99", "p99.9", "max"))
