"""Spark's own Kafka connector and format("headrace") with one set of options, read as JSON from stdin; prints the
values.

A process of its own: the connector's jars must be there when a driver starts.
"""

import json
import sys


def main() -> None:
    from headrace.spark.launch.session import spark_session
    from tests.reference.spark_kafka import class_path

    options = json.load(sys.stdin)
    spark = spark_session("local[2]", "secured-job", class_path(), build_class_cache=False)
    found = {}
    for kind in ("kafka", "headrace"):
        frame = spark.read.format(kind).options(**options).load().selectExpr("CAST(value AS STRING) AS value", "offset")
        found[kind] = [row.value for row in frame.orderBy("offset").collect()]
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
