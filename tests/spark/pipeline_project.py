"""Small pipeline projects for tests: a folder, a spec, rows in files."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace.spark.pipelines.spec.load import load_pipeline
from headrace.spark.pipelines.spec.model import Pipeline

FIRST_FILE_S = 1_700_000_000


class Project:
    """A folder with `in/` for JSON rows and `out/` for what comes out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "in").mkdir(parents=True)
        self.files = 0

    def spec(self, text: str, **environment: str) -> Pipeline:
        path = self.folder / "pipeline.yaml"
        path.write_text(text)
        return load_pipeline(path, environment)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def feed(self, rows: Iterable[Mapping[str, Any]], folder: str = "in") -> None:
        """One more file of rows, complete when it appears."""
        self.files += 1
        (self.folder / folder).mkdir(exist_ok=True)
        fresh = self.folder / f".{self.files}.tmp"
        fresh.write_text("".join(json.dumps(row) + "\n" for row in rows))
        # Spark takes files by their age, which for files of one moment is no order.
        os.utime(fresh, (FIRST_FILE_S + self.files, FIRST_FILE_S + self.files))
        fresh.rename(self.folder / folder / f"{self.files:05}.json")

    def rows(self, spark: Any, path: str, order: str, format_: str = "parquet") -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.read.format(format_).load(str(self.folder / path)).orderBy(order).collect()]
