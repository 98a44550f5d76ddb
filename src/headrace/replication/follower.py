"""A follower's rules: where to cut a log whose history is not its leader's.

Pure. By epochs only, and never to the high watermark, which lags behind what is committed (KIP-101, KIP-279).
"""


def cut_offset(leader_epoch: int, leader_end: int, own_epoch: int, own_end: int, log_end: int) -> int:
    """The first offset that the leader does not have, as far as can be told.

    `leader_epoch` is the latest that leader and follower may share, and ends there at `leader_end`; `own_epoch` is the
    latest here that is not above it, and ends at `own_end`. Where the two differ there is more to ask: the next Fetch
    names the epoch that is the last one then. Where all that is here is of earlier epochs (`own_epoch` is -1), the log
    was cut since it was asked about: two Fetches can be under way, and the second is answered as the first was.
    """
    if own_epoch < 0:
        return min(leader_end, log_end)
    if own_epoch == leader_epoch:
        return min(leader_end, own_end, log_end)
    return min(own_end, log_end)
