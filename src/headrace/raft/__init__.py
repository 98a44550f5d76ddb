"""KRaft consensus without a socket, a disk or a clock: who leads, what is committed, who has a vote.

`node.RaftNode` takes an event and a reading of the clock and returns what to do about it; `headrace.quorum` does it.
"""
