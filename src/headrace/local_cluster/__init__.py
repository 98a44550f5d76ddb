"""Brokers and clusters on one machine, as processes: for the command line, the demo and tests; no part of a broker."""
