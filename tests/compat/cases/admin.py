"""What admin tools ask in passing: producer ids, reassignments, quotas, access lists."""

from typing import Any

from tests.compat.cases import Talk, case


@case("InitProducerId")
def new_ids(t: Talk) -> None:
    t.until_producer_ids()
    first = t.ask(transactional_id=None, transaction_timeout_ms=60_000)
    second = t.ask(transactional_id=None, transaction_timeout_ms=60_000)
    t.note(f"differ: {first.producer_id != second.producer_id}")
    t.ask(transactional_id=None, transaction_timeout_ms=0)
    t.ask(transactional_id=None, transaction_timeout_ms=-1)
    t.ask(transactional_id=None, transaction_timeout_ms=2147483647)
    t.ask(transactional_id="", transaction_timeout_ms=60_000)
    for timeout_ms in (0, -5, 2147483647):
        t.ask(transactional_id="mine", transaction_timeout_ms=timeout_ms)


@case("InitProducerId", versions=range(3, 6))
def ids_given(t: Talk) -> None:
    t.until_producer_ids()
    for who in ((5, 0), (5, -1), (-1, 5), (-2, -2), (1 << 60, 32767)):
        t.note(f"id {who[0]} epoch {who[1]}")
        t.ask(transactional_id=None, transaction_timeout_ms=60_000, producer_id=who[0], producer_epoch=who[1])


@case("ListPartitionReassignments")
def reassignments(t: Talk) -> None:
    topic = t.topic()
    t.ask(topics=None)
    t.ask(topics=[])
    t.ask(topics=[{"name": topic, "partition_indexes": [0, 9]}])
    t.ask(topics=[{"name": t.name("nowhere"), "partition_indexes": [0]}])


@case("DescribeClientQuotas")
def quotas(t: Talk) -> None:
    t.ask(components=[])
    t.ask(components=[], strict=True)
    for kind, match, value in (("user", 0, "me"), ("user", 1, None), ("client-id", 2, None), ("ip", 0, "127.0.0.1")):
        t.note(f"{kind} {match} {value}")
        t.ask(components=[{"entity_type": kind, "match_type": match, "match": value}])
    for kind, match, value in (("planet", 0, "x"), ("user", 9, None), ("user", 0, None), ("", 2, None)):
        t.note(f"{kind} {match} {value}")
        t.ask(components=[{"entity_type": kind, "match_type": match, "match": value}])
    for kind, match, value in (
        ("user", 0, ""),
        ("ip", 0, "nowhere"),
        ("ip", 0, None),
        ("client-id", 1, "x"),
        ("USER", 2, None),
    ):
        t.note(f"strictly {kind} {match} {value}")
        t.ask(components=[{"entity_type": kind, "match_type": match, "match": value}], strict=True)
    twice = {"entity_type": "user", "match_type": 2, "match": None}
    t.ask(components=[twice, twice])
    t.ask(components=[twice, {"entity_type": "ip", "match_type": 2, "match": None}])


@case("DescribeAcls")
def access_lists(t: Talk) -> None:
    def ask(**fields: object) -> None:
        every: dict[str, Any] = {
            "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
            "host_filter": None, "operation": 1, "permission_type": 1,
        }  # fmt: skip
        t.ask(**(every | fields))

    ask()
    ask(resource_type_filter=2, resource_name_filter="x", pattern_type_filter=3)
    ask(resource_type_filter=0)
    ask(resource_type_filter=99)
    ask(operation=0)
    ask(permission_type=99)
    ask(pattern_type_filter=99)


@case("DescribeUserScramCredentials")
def passwords_of_nobody(t: Talk) -> None:
    for users in (None, [], ["me"], ["me", "me", "you"], [""]):
        t.ask(users=users if users is None else [{"name": name} for name in users])


@case("CreateAcls")
def access_given(t: Talk) -> None:
    def ask(*changes: dict[str, object]) -> None:
        one = {
            "resource_type": 2, "resource_name": "x", "resource_pattern_type": 3, "principal": "User:me", "host": "*",
            "operation": 3, "permission_type": 3,
        }  # fmt: skip
        t.ask(creations=[one | change for change in changes])

    ask()
    ask({}, {"resource_pattern_type": 4})
    ask({"principal": "nobody"})
    for field in ("resource_type", "resource_pattern_type", "operation", "permission_type"):
        for value in (0, 1, 99):
            ask({field: value})


@case("DeleteAcls")
def access_taken(t: Talk) -> None:
    def ask(*changes: dict[str, object]) -> None:
        every: dict[str, Any] = {
            "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
            "host_filter": None, "operation": 1, "permission_type": 1,
        }  # fmt: skip
        t.ask(filters=[every | change for change in changes])

    ask()
    ask({}, {"resource_type_filter": 2, "resource_name_filter": "x", "pattern_type_filter": 3})
    for field in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type"):
        for value in (0, 99):
            ask({field: value})


@case("CreateDelegationToken")
def token_without_a_login(t: Talk) -> None:
    t.ask(renewers=[], max_lifetime_ms=-1)
    t.ask(renewers=[{"principal_type": "User", "principal_name": "me"}], max_lifetime_ms=1000)
    t.ask(renewers=[{"principal_type": "Group", "principal_name": "me"}], max_lifetime_ms=0)
    if t.version >= 3:
        t.ask(renewers=[], max_lifetime_ms=-1, owner_principal_type="User", owner_principal_name="you")


@case("RenewDelegationToken")
def renewed_without_a_login(t: Talk) -> None:
    t.ask(hmac=b"x", renew_period_ms=-1)


@case("ExpireDelegationToken")
def expired_without_a_login(t: Talk) -> None:
    t.ask(hmac=b"x", expiry_time_period_ms=-1)


@case("DescribeDelegationToken")
def tokens_of_nobody(t: Talk) -> None:
    for owners in (None, [], [{"principal_type": "User", "principal_name": "me"}]):
        t.ask(owners=owners)
