"""The main job, shown and checked: a live shop feed, a queue and subscribers, a Spark pipeline, and a verdict.

`events` and `expected` say what must come out and know no broker; `feed`, `groups` and `job` do the work through
the client alone; `dashboard` and `report` show it. Brokers are given to it, so that it runs on one or on a cluster.
"""
