"""Progress of queries as soon as each batch is committed: Spark tells its listeners then, and a source only when the next
batch is planned, which for the last one of a query that is stopped is never.
"""

import json
import logging
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

from headrace.spark.offsets import Offsets, from_json
from headrace.spark.options import OptionError
from headrace.spark.plan import Plan, read_plan
from headrace.spark.progress import Publisher, reads

log = logging.getLogger(__name__)

RELATION = "StreamingDataSourceV2ScanRelation"


class ProgressListener(StreamingQueryListener):
    """`spark.streams.addListener(ProgressListener(spark))`, which `spark_session` does by itself. Queries of any sink that
    read format("headrace") are told of; which brokers and which group is found in the query's plan."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._queries: dict[str, Any] = {}
        self._plans: dict[str, list[Plan]] = {}
        self._publisher = Publisher()

    def onQueryStarted(self, event: Any) -> None:
        # Nothing may be asked of the query yet, and nothing of the session once it has ended.
        self._queries[str(event.id)] = self._spark.streams.get(str(event.id))

    def onQueryProgress(self, event: Any) -> None:
        for source in event.progress.sources:
            end = offsets_of(source.endOffset)
            for plan in self._plans_of(str(event.progress.id)) if end else ():
                if reads(plan, end):
                    self._publisher.publish(plan, end)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        self._queries.pop(str(event.id), None)
        self._plans.pop(str(event.id), None)
        if not self._queries:
            self._publisher.close()

    def _plans_of(self, query_id: str) -> list[Plan]:
        if query_id not in self._plans:
            self._plans[query_id] = []
            query = self._queries.get(query_id)
            try:
                self._plans[query_id] = plans_of(query) if query is not None else []
            except (Py4JError, OptionError) as error:
                log.warning("progress of query %s is told one batch later, by its source: %s", query_id, error)
        return self._plans[query_id]


def plans_of(query: Any) -> list[Plan]:
    """The reads of format("headrace") in a running query, from the driver's own plan of it."""
    leaves = query._jsq.streamingQuery().logicalPlan().collectLeaves()
    found = []
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.getClass().getSimpleName() == RELATION and leaf.relation().table().name() == "headrace":
            found.append(read_plan(dict(leaf.relation().options().asCaseSensitiveMap()), streaming=True))
    return found


def offsets_of(text: str | None) -> Offsets:
    """The offsets in a progress event; nothing where another kind of source wrote them."""
    try:
        return from_json(json.loads(text or "{}"))
    except (ValueError, TypeError, AttributeError):
        return {}
