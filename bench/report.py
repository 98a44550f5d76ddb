"""Results as figures people can read: a Markdown table, the same as JSON, and two charts.

One chart has every ratio that has a goal; the other, for the README, the eight that people ask about first.
"""

import json
import os
import platform
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

Rows = dict[str, dict[str, float]]  # broker -> measure -> value


@dataclass
class Goal:
    """A ratio of Headrace to what it is held against."""

    what: str
    ratio: float
    bound: float
    at_least: bool

    @property
    def is_met(self) -> bool:
        return self.ratio >= self.bound if self.at_least else self.ratio <= self.bound


@dataclass
class Part:
    name: str
    title: str
    rows: Rows = field(default_factory=dict)
    goals: list[Goal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def goal(self, what: str, measure: str, *, at_least: float = 0.0, at_most: float = 0.0,
             of: str = "headrace", against: str = "apache") -> None:  # fmt: skip
        """Compares one measure of two rows; silent when either was not measured."""
        ours, theirs = self.rows.get(of, {}).get(measure), self.rows.get(against, {}).get(measure)
        if ours is not None and theirs:
            self.goals.append(Goal(what, ours / theirs, at_least or at_most, bool(at_least)))


@dataclass(frozen=True)
class Way:
    """One bar: a measure of Headrace over Apache Kafka's, so turned that more is better."""

    told: str
    part: str
    measure: str
    ours: str = "headrace"
    theirs: str = "apache"
    more_is_better: bool = True

    def times_better(self, parts: list[Part]) -> float | None:
        rows = next((part.rows for part in parts if part.name == self.part), {})
        ours, theirs = rows.get(self.ours, {}).get(self.measure), rows.get(self.theirs, {}).get(self.measure)
        if not ours or not theirs:
            return None
        return ours / theirs if self.more_is_better else theirs / ours


CONSUMER = "confluent-kafka consumer"
ASKED_FIRST: dict[str, tuple[Way, ...]] = {
    "writing small batches, MB/s": (
        Way("checks each batch's header and checksum, the default", "produce-small", "MB/s"),
        Way("looks into every record, as Kafka does", "produce-small", "MB/s", ours="headrace-records"),
    ),
    "latency of one record, p50": (Way("", "latency", "p50 µs", more_is_better=False),),
    "every record on disk, requests/s": (
        Way("1 partition", "fsync", "requests/s", "headrace-fsync, 1 partitions", "apache, 1 partitions"),
        Way("20 partitions", "fsync", "requests/s", "headrace-fsync, 20 partitions", "apache, 20 partitions"),
    ),
    "reading with confluent-kafka, records/s": (
        Way(
            "its defaults, with which it pauses", "clients", "records/s", f"{CONSUMER}, headrace", f"{CONSUMER}, apache"
        ),
        Way(
            "without its pauses",
            "clients",
            "records/s",
            f"{CONSUMER} without pauses, headrace",
            f"{CONSUMER} without pauses, apache",
        ),
    ),
    "three nodes, three copies, MB/s": (Way("", "cluster", "MB/s"),),
    "leader killed with -9: writes go on after": (Way("", "failover", "kill -9 s", more_is_better=False),),
    "memory after load": (Way("", "memory", "PSS MB", more_is_better=False),),
    "start to first answer": (Way("", "start", "start s", more_is_better=False),),
}
"""What is measured in two ways is shown in both, also where the like-for-like one is not the better."""


def figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(rows: Rows, first: str = "") -> list[str]:
    measures = list(dict.fromkeys(m for row in rows.values() for m in row))
    lines = ["| " + " | ".join([first, *measures]) + " |", "|---" + "|---:" * len(measures) + "|"]
    for name, row in rows.items():
        lines.append("| " + " | ".join([name, *(figure(row[m]) if m in row else "" for m in measures)]) + " |")
    return lines


def machine() -> str:
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        "",
    )
    return (
        f"{os.cpu_count()} cores of {model or platform.machine()}, Linux {platform.release()}, Python"
        f" {platform.python_version()}"
    )


def markdown(parts: list[Part]) -> str:
    lines = [
        "# Headrace and Apache Kafka 4.3.1, side by side",
        "",
        f"Written by `make bench` on {time.strftime('%Y-%m-%d')}: {machine()}.",
        "Both brokers are warm and take turns at the same work on the same machine; figures are medians of the turns.",
        "The ratios carry over to other machines, the absolute figures do not.",
        "",
    ]
    goals = [goal for part in parts for goal in part.goals]
    if goals:
        lines += [
            "![ratios](ratios.png)",
            "",
            "| Headrace against Apache Kafka | ratio | goal | |",
            "|---|---:|---:|---|",
        ]
        for goal in goals:
            sign = "≥" if goal.at_least else "≤"
            lines.append(
                f"| {goal.what} | {goal.ratio:.2f}x | {sign} {goal.bound:g}x | {'yes' if goal.is_met else '**no**'} |"
            )
        lines.append("")
    for part in parts:
        lines += [f"## {part.title}", "", *table(part.rows, part.name), "", *(f"{note}\n" for note in part.notes)]
    return "\n".join(lines)


def chart(parts: list[Part], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    goals = [goal for part in parts for goal in part.goals][::-1]
    if not goals:
        return
    figure_, axes = pyplot.subplots(figsize=(10, 0.42 * len(goals) + 1.6))
    colours = ["#2a7f62" if goal.is_met else "#c0504d" for goal in goals]
    # Bars grow from 1x, where both are alike.
    axes.barh(range(len(goals)), [goal.ratio - 1 for goal in goals], left=1, color=colours, height=0.62)
    axes.scatter(
        [goal.bound for goal in goals], range(len(goals)), marker="|", s=260, color="black", zorder=3, label="goal"
    )
    axes.axvline(1, color="#555", linewidth=0.8)
    axes.set_xscale("log")
    ticks = [0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 1, 2, 3, 5, 10, 20]
    low, high = min(g.ratio for g in goals) * 0.6, max(g.ratio for g in goals) * 1.9
    axes.set_xlim(min(low, 0.08), max(high, 4))
    axes.set_xticks([t for t in ticks if axes.get_xlim()[0] <= t <= axes.get_xlim()[1]])
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
    axes.set_yticks(range(len(goals)), [goal.what for goal in goals], fontsize=8)
    for row, goal in enumerate(goals):
        side = 1.06 if goal.ratio >= 1 else 0.94
        axes.text(
            goal.ratio * side,
            row,
            f"{goal.ratio:.2f}x",
            va="center",
            ha="left" if goal.ratio >= 1 else "right",
            fontsize=8,
        )
    axes.set_title("Headrace / Apache Kafka 4.3.1 (green: goal met; left of 1x is less, right is more)", fontsize=10)
    axes.legend(loc="lower right", fontsize=8, frameon=False)
    for side_name in ("top", "right"):
        axes.spines[side_name].set_visible(False)
    figure_.tight_layout()
    figure_.savefig(file, dpi=130)


def headline_chart(parts: list[Part], file: Path) -> None:
    """Eight questions, each answered as "times better": to the right Headrace, to the left Apache Kafka."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    bars: list[tuple[str, str, float, bool]] = []
    for question, ways in ASKED_FIRST.items():
        found = [(way, times) for way in ways if (times := way.times_better(parts)) is not None]
        bars += [
            (question if not place else "", way.told, times, place > 0) for place, (way, times) in enumerate(found)
        ]
    if not bars:
        return
    heights, at = [], 0.0
    for question, *_ in bars:
        at += 1.0 if question else 0.72
        heights.append(-at)
    figure_, axes = pyplot.subplots(figsize=(9.5, 0.4 * at + 1.1))
    for y, (_, told, times, is_second) in zip(heights, bars):
        colour = ("#8fc7b0" if is_second else "#2a7f62") if times >= 1 else "#c0504d"
        axes.barh(y, times - 1, left=1, color=colour, height=0.58)
        # Beside the bar on the side of the better: nothing stands left of the line but bars.
        text = f"{times:.{1 if times >= 1 else 2}f}x" + (f"   {told}" if told else "")
        axes.text(max(times, 1) * 1.05, y, text, va="center", fontsize=9)
    axes.axvline(1, color="#555", linewidth=0.9)
    axes.set_xscale("log")
    most = max(times for _, _, times, _ in bars)
    axes.set_xlim(min(0.6, min(times for _, _, times, _ in bars) * 0.8), most * 4)
    axes.set_xticks([tick for tick in (1, 2, 5, 10, 20, 50) if tick <= most * 1.5])
    axes.set_xticks([], minor=True)
    axes.xaxis.set_major_formatter(lambda value, _: "alike" if value == 1 else f"{value:g}x")
    named = [(y, question) for y, (question, *_) in zip(heights, bars) if question]
    axes.set_yticks([y for y, _ in named], [question for _, question in named], fontsize=9.5)
    axes.tick_params(axis="y", length=0)
    axes.set_title("How many times better than Apache Kafka 4.3.1 (red: how much worse)", fontsize=11, loc="left")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    figure_.tight_layout()
    figure_.savefig(file, dpi=130)


def write(parts: list[Part], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.md").write_text(markdown(parts))
    stored = {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "parts": [asdict(part) for part in parts]}
    (folder / "results.json").write_text(json.dumps(stored, indent=1) + "\n")
    chart(parts, folder / "ratios.png")
    headline_chart(parts, folder / "compared.png")


def read(folder: Path) -> list[Part]:
    """The parts of an earlier run, so that one part can be run anew without losing the others."""
    file = folder / "results.json"
    if not file.exists():
        return []
    parts = json.loads(file.read_text())["parts"]
    return [Part(p["name"], p["title"], p["rows"], [Goal(**g) for g in p["goals"]], p["notes"]) for p in parts]
