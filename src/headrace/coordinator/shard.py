"""One partition of `__consumer_offsets` as a state machine: groups, offsets, and a handler for each request.

Handlers decide on everything written so far and return an `Outcome`; `apply` and `replay` alone change what is durable.
Reads for clients (describe, list, fetch without require_stable) see what is below the high watermark.

Signatures (GroupShard):

    GroupShard(config: ShardConfig, *, note=None)
    -- load, in log order; the high watermark first, then `advance` again whenever it moves
    advance(high_watermark)
    replay(offset, producer_id, producer_epoch, key: bytes, value: bytes | None)      during a load
    replay_marker(offset, producer_id, producer_epoch, committed: bool)               control batches, load and live
    loaded(now_ms) -> Outcome                         once, when all is replayed: timers, rebalances
    -- live
    apply(offset, producer_id, producer_epoch, record)   each record of an outcome, before the next handler
    timeout(key, now_ms) -> Outcome
    expire(now_ms) -> Outcome                            every offsets.retention.check.interval.ms
    on_metadata(image, now_ms) -> Outcome                whenever the image changes (first before loaded())
    unload() -> list[Promise]                            promises left open; the runtime refuses them
    -- requests: (request, context, now_ms) -> Outcome
    join_group, sync_group, heartbeat, leave_group, offset_commit, txn_offset_commit, offset_delete,
    consumer_group_heartbeat
    delete_groups(group_ids, now_ms) -> Outcome          response: list of DeleteGroupsResponse.DeletableGroupResult
    -- reads
    fetch_offsets(group: OffsetFetchRequest.OffsetFetchRequestGroup, require_stable, now_ms)
        -> OffsetFetchResponse.OffsetFetchResponseGroup  v0-7: make a group of one; topics None is all;
           with require_stable the answer waits, like an outcome without records, for what was written before
    describe_groups(group_ids, version) -> list of DescribeGroupsResponse.DescribedGroup
    consumer_group_describe(group_ids) -> list of ConsumerGroupDescribeResponse.DescribedGroup
    list_groups(states, types) -> list of ListGroupsResponse.ListedGroup

shard_requests.py: `precheck(request, context, config) -> response | None` before a shard is looked up (empty group ids,
session timeouts), and `refusal(request, error, message=None) -> response` for NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS and failed appends, for every request above.

consumer.py (KIP-848) provides `ConsumerGroups(state: ShardState, classic: ClassicGroups)`, called by GroupShard:

    heartbeat(request, context, now_ms, out: Outcome) -> response         may raise KafkaError
    describe(group_ids) -> list of ConsumerGroupDescribeResponse.DescribedGroup     committed state
    classic_join(group, request, context, now_ms, out) -> response | Promise        classic members of a consumer group
    classic_sync, classic_heartbeat, classic_leave: the same; KafkaError becomes the error code of the answer
    (upgrade: inside heartbeat(), when `state.groups` holds a ClassicGroup of classic_group.py; complete its waiting
    members with `classic.abandon(group, error, out)`. Downgrade: build a ClassicGroup, add `group.record()` to the
    records and call `classic.adopt(group, now_ms, out, rebalance_reason)`, which puts it into `state.groups`.
    Live, `apply` meets the new group already: tombstones of one type never remove a group of the other.)
    replay(offset, kind, key_message, value_message | None)               record kinds 3 to 8 and 16
    timeout(key, now_ms, out)                                             keys whose kind starts with "consumer-"
    loaded(now_ms, out), on_metadata(old: Image, new: Image, now_ms, out)
    advance(high_watermark)
    expire(now_ms, out)
and `ConsumerGroup`, which fulfils `shard_state.Group`.
"""
