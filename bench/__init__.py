"""Headrace and Apache Kafka side by side: the same work, interleaved, as ratios. `python -m bench --help`."""
