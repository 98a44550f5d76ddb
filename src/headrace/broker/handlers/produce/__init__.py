"""Produce: the handler, the checks of records that take long, and the order of a producer's batches."""
