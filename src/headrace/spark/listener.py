"""Progress of queries as soon as each batch is committed: Spark tells its listeners then, and a source only when the
next batch is planned, which for the last one of a query that is stopped is never.
"""

import json
import logging
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener

from headrace.spark.options import OptionError
from headrace.spark.source.offsets import Offsets, from_json
from headrace.spark.source.options import SourceOptions
from headrace.spark.source.progress import BackgroundCommitter, reads

log = logging.getLogger(__name__)

RELATION = "StreamingDataSourceV2ScanRelation"


class ProgressListener(StreamingQueryListener):
    """`spark.streams.addListener(ProgressListener(spark))`, which `spark_session` does by itself. Queries of any sink
    that read format("headrace") are told of; which brokers and which group is found in the query's plan."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._queries: dict[str, Any] = {}
        self._options: dict[str, list[SourceOptions]] = {}
        self._committer = BackgroundCommitter()

    def onQueryStarted(self, event: Any) -> None:
        # Nothing may be asked of the query yet, and nothing of the session once it has ended.
        self._queries[str(event.id)] = self._spark.streams.get(str(event.id))

    def onQueryProgress(self, event: Any) -> None:
        for source in event.progress.sources:
            end = offsets_of(source.endOffset)
            for options in self._options_of(str(event.progress.id)) if end else ():
                if reads(options, end):
                    self._committer.commit(options, end)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        self._queries.pop(str(event.id), None)
        self._options.pop(str(event.id), None)
        if not self._queries:
            self._committer.close()

    def _options_of(self, query_id: str) -> list[SourceOptions]:
        if query_id not in self._options:
            self._options[query_id] = []
            query = self._queries.get(query_id)
            try:
                self._options[query_id] = source_options_of(query) if query is not None else []
            except (Py4JError, OptionError) as error:
                log.warning("progress of query %s is told one batch later, by its source: %s", query_id, error)
        return self._options[query_id]


def source_options_of(query: Any) -> list[SourceOptions]:
    """The reads of format("headrace") in a running query, from the driver's own plan of it."""
    leaves = query._jsq.streamingQuery().logicalPlan().collectLeaves()
    found = []
    for index in range(leaves.size()):
        leaf = leaves.apply(index)
        if leaf.getClass().getSimpleName() == RELATION and leaf.relation().table().name() == "headrace":
            found.append(SourceOptions.read(dict(leaf.relation().options().asCaseSensitiveMap()), streaming=True))
    return found


def offsets_of(text: str | None) -> Offsets:
    """The offsets in a progress event; nothing where another kind of source wrote them."""
    try:
        return from_json(json.loads(text or "{}"))
    except (ValueError, TypeError, AttributeError):
        return {}
