"""Formats that are no part of Spark, and whether the jars are there that they need, for the Spark that is there."""

import os
import re
from pathlib import Path
from typing import NamedTuple

from headrace.spark.pipelines.spec.model import Part, Pipeline
from headrace.spark.pipelines.spec.problems import Problem


class Extra(NamedTuple):
    """How a jar's name begins, and what to fetch. Delta and Iceberg reach deep into Spark: each of their jars is made
    for one version of it, which stands in its name, and fails in the middle of a query on others."""

    prefix: str
    coordinates: str
    is_bound: bool = True


EXTRAS = {
    "delta": Extra("delta-spark_", "io.delta:delta-spark_{spark}_2.13:VERSION"),
    "iceberg": Extra("iceberg-spark-runtime-", "org.apache.iceberg:iceberg-spark-runtime-{spark}_2.13:VERSION"),
    "avro": Extra("spark-avro_", "org.apache.spark:spark-avro_2.13:{release}", is_bound=False),
}
UNNAMED_UNTIL = (4, 4, 0)
"""Delta's jars that name no Spark are made for Spark 4.1 and before it, up to this release of Delta."""


def check_jars(pipeline: Pipeline) -> list[Problem]:
    if pipeline.spark.master.startswith("sc://"):
        return []  # the server has its own jars
    parts: list[tuple[Part, str | None]] = [(source, source.format) for source in pipeline.sources.values()]
    parts += [(sink, sink.format) for sink in pipeline.sinks.values()]
    problems = []
    for part, format_ in parts:
        if format_ not in EXTRAS:
            continue
        extra = EXTRAS[format_]
        wanted = spark_release().rpartition(".")[0]
        fetch = extra.coordinates.format(spark=wanted, release=spark_release())
        found = jars_of(pipeline, extra.prefix)
        other = _made_for(found[0], extra.prefix) if found and extra.is_bound else None
        if not found:
            fix = f"add to the spec: spark: {{packages: [{fetch}]}}"
            if extra.is_bound:
                fix += f", if there is a release for Spark {wanted} by now, or write parquet, which is exactly once too"
            problems.append(Problem(part.place("format"), f"Spark has no jar for {format_}", fix))
        elif other is not None and other != wanted:
            problems.append(
                Problem(
                    part.place("format"),
                    f"{found[0]} is made for Spark {other} and fails on Spark {wanted}, which is here",
                    f"use {fetch} if there is such a release by now, a Spark Connect server that has Spark {other}, or"
                    " parquet",
                )
            )
    return problems


def jars_of(pipeline: Pipeline, prefix: str) -> list[str]:
    """Coordinates and names of jars that begin so, of those that the driver will have."""
    conf = pipeline.spark.conf
    named = [*pipeline.spark.packages, *pipeline.spark.jars]
    for key, separator in (("spark.jars", ","), ("spark.jars.packages", ","), ("spark.driver.extraClassPath", ":")):
        named += conf.get(key, "").split(separator)
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    named += [path.name for path in (home / "jars").glob(f"{prefix}*")]
    return [name for name in (one.strip().rpartition("/")[2] for one in named) if prefix in name]


def spark_release() -> str:
    import pyspark

    return str(pyspark.__version__)


def _made_for(name: str, prefix: str) -> str | None:
    """The version of Spark that a jar's name says it is made for; None where it says none."""
    found = re.search(re.escape(prefix) + r"(?:(\d+\.\d+)_)?\d+\.\d+[-:](\d+)\.(\d+)\.(\d+)", name)
    if found is None:
        return None
    if found[1] is None and tuple(map(int, found.groups()[1:])) <= UNNAMED_UNTIL:
        return "4.1"
    return found[1]
