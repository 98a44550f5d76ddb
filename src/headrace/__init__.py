"""Headrace: Kafka's whole job in Python."""

__version__ = "0.1.0"
