"""Latencies by percentile, as a picture. Needs matplotlib."""

from pathlib import Path

from headrace.client.errors import ClientError
from headrace.tools.loadtest.histogram import Histogram

SHARES = [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9995, 0.9999]


def check(file: Path) -> None:
    """Before anything is measured: that it can be drawn. Raises ClientError."""
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise ClientError("--plot needs matplotlib: pip install 'headrace[plot]'") from None
    kinds = FigureCanvasBase.filetypes
    if file.suffix.lstrip(".").lower() not in kinds:
        raise ClientError(f"--plot {file}: name it .png, .svg or .pdf")


def draw(file: Path, series: dict[str, Histogram], title: str) -> None:
    """One line for each, with a scale on which each further nine takes the same room."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, histogram in series.items():
        if histogram.count:
            shares = [share for share in SHARES if histogram.count * (1 - share) >= 1]
            axes.plot(
                [1 / (1 - share) for share in shares],
                [histogram.percentile(share * 100) / 1e6 for share in shares],
                marker="o",
                label=f"{name} (max {histogram.maximum / 1e6:.1f} ms)",
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    marks = {1: "0", 2: "50", 10: "90", 100: "99", 1_000: "99.9", 10_000: "99.99"}
    axes.set_xticks(list(marks), list(marks.values()))
    axes.set_xlabel("per cent of records that took no longer")
    axes.set_ylabel("milliseconds")
    axes.set_title(title)
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    try:
        figure.savefig(file)
    except OSError as error:
        raise ClientError(f"cannot write {file}: {error.strerror}") from None
