"""The other quorum: metadata in the znodes of a ZooKeeper ensemble, in Kafka 3.x's layout.

`paths`, `operations`, `znodes`, `writing` and `reading` are pure; `client` is the port to an ensemble, `session` runs
it on kazoo, `quorum` puts all together behind `headrace.quorum.Quorum`.
"""
