"""Requests that are recognised rather than read: a client that repeats itself is served without decoding it again.

Everything works without this package: `fast.path=off` turns it off (decision 0011).
"""
