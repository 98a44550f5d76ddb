"""Faults on a real broker, by the script of a test: errors, delays, lost connections, a clock that is advanced.

A broker has none of this unless the test kit starts it: `node` puts it between the broker's connections and handlers.
"""
