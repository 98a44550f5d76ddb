"""What the cluster knows about itself: records, the immutable image they add up to, and the controller that writes
them.

Everything here is pure: a request and an image go in, records and a response come out. `headrace.quorum` commits them.
"""
