"""`headrace log dump`: every kind of file that a broker keeps, in readable lines. Reads only, never writes.

`kinds` tells files apart, `segments` prints batches and records, `decode` reads what internal topics hold, `sidecars`
prints everything beside a log, `verify` holds indexes against the log.
"""
