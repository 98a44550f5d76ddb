"""Connections: bytes in, requests to their handlers, answers out in order, within limits of memory and time.

Knows no partition, group or cluster: handlers do.
"""
