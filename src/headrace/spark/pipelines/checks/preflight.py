"""Everything that can be checked before Spark starts: options, schemas, jars, the master and the topics."""

import asyncio

from headrace.spark.launch.masters import MasterUnusable, check_master
from headrace.spark.pipelines.checks.jars import check_jars
from headrace.spark.pipelines.checks.options import check_options
from headrace.spark.pipelines.checks.topics import prepare_topics
from headrace.spark.pipelines.spec.model import Pipeline
from headrace.spark.pipelines.spec.problems import Problem, SpecInvalid


def check_before_start(pipeline: Pipeline, *, create_topics: bool = False) -> None:
    """Raises SpecInvalid with everything that is wrong. The brokers are asked only when the rest is right."""
    problems = check_options(pipeline) + check_jars(pipeline) + check_spark_master(pipeline)
    if not problems:
        problems = asyncio.run(prepare_topics(pipeline, create=create_topics))
    if problems:
        raise SpecInvalid(problems)


def check_spark_master(pipeline: Pipeline) -> list[Problem]:
    """Whether there is a Spark where the pipeline is to run. Raises MasterUnusable for one that is not in the spec."""
    try:
        check_master(pipeline.spark.master, pipeline.spark.conf)
    except MasterUnusable as error:
        if "master" not in pipeline.spark.at:
            raise
        return [Problem(pipeline.spark.place("master"), error.message, error.fix)]
    return []
