"""A spec against the world outside of it, before Spark starts: options, schemas, jars, the Spark master and topics.

Whatever is wrong becomes a problem at a line of the spec.
"""
