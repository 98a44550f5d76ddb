"""What is to go wrong with which requests: rules, in the order in which they were given."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

from headrace.errors import Err
from headrace.protocol.api import API
from headrace.testing.records import CLIENT_ID

BEFORE, AFTER = "before", "after"
DELAY_S_MAX = 3600.0

_NODE = re.compile(r"headrace-\d+|broker-\d+-fetcher")
"""What nodes of a cluster call themselves to one another."""


class RuleRefused(ValueError):
    """A rule that says nothing, or names what does not exist."""


@dataclass(slots=True)
class Rule:
    """One kind of fault. Requests of other nodes are passed over unless `between_brokers`."""

    api_key: int | None
    """None: any."""
    error: Err | None = None
    delay_s: float = 0.0
    drop: str | None = None
    """The connection is lost: `before` the request is handled, or `after` it, instead of the answer."""
    times: int | None = 1
    """How often; None: until it is taken back."""
    skip: int = 0
    """So many requests that it is about pass unharmed at first."""
    client_id: str = "*"
    between_brokers: bool = False
    hits: int = 0
    """How often it has struck."""

    @property
    def is_spent(self) -> bool:
        return self.times is not None and self.hits >= self.times

    def is_about(self, api_key: int, client_id: str | None) -> bool:
        name = client_id or ""
        if self.is_spent or self.api_key not in (None, api_key) or name == CLIENT_ID:
            return False
        if _NODE.fullmatch(name) and not self.between_brokers:
            return False
        return fnmatchcase(name, self.client_id)


class Rules:
    """All rules of one broker. A rule that is spent is kept, so that it can be asked how often it struck."""

    def __init__(self) -> None:
        self._all: dict[int, Rule] = {}
        self.active: list[Rule] = []
        """Those that may still strike."""

    def add(self, rule: Rule) -> int:
        """Returns the number by which it is asked about and taken back."""
        number = len(self._all) + 1
        self._all[number] = rule
        self.active.append(rule)
        return number

    def find(self, api_key: int, client_id: str | None) -> Rule | None:
        """The first rule that is about this request; `struck` counts it."""
        for rule in self.active:
            if rule.is_about(api_key, client_id):
                if rule.skip <= 0:
                    return rule
                rule.skip -= 1
        return None

    def struck(self, rule: Rule) -> None:
        rule.hits += 1
        if rule.is_spent:
            self.active.remove(rule)

    def hits(self, number: int) -> int:
        return self._all[number].hits

    def remove(self, number: int | None = None) -> None:
        """Take one back, or all."""
        gone = list(self.active) if number is None else [self._all[number]]
        for rule in gone:
            if rule in self.active:
                self.active.remove(rule)


def read_rule(said: Mapping[str, Any]) -> Rule:
    """A rule from what a test said. Raises RuleRefused."""
    api, error, drop, times = said.get("api"), said.get("error"), said.get("drop"), said.get("times", 1)
    rule = Rule(
        api_key=None if api is None else _found(str(api), {each.name: key for key, each in API.items()}, "API"),
        error=None if error is None else Err(_found(str(error), {each.name: int(each) for each in Err}, "error")),
        delay_s=float(said.get("delay_s", 0.0)),
        drop=drop,
        times=times,
        skip=int(said.get("skip", 0)),
        client_id=str(said.get("client_id") or "*"),
        between_brokers=bool(said.get("between_brokers")),
    )
    if rule.error is None and not rule.delay_s and drop is None:
        raise RuleRefused("a fault needs an error, a delay_s or a drop")
    if drop not in (None, BEFORE, AFTER):
        raise RuleRefused(f"drop is {drop!r}: write 'before' or 'after'")
    if rule.error is not None and drop is not None:
        raise RuleRefused("a request gets either an error or a lost connection: inject two faults")
    if times is not None and (not isinstance(times, int) or times < 1):
        raise RuleRefused(f"times is {times!r}: write a number from 1 on, or None for as often as it comes")
    if not 0 <= rule.delay_s <= DELAY_S_MAX:
        raise RuleRefused(f"delay_s is {rule.delay_s:g}: write seconds from 0 to {DELAY_S_MAX:g}")
    return rule


def _found(name: str, known: Mapping[str, int], what: str) -> int:
    number = known.get(name)
    if number is None:
        close = get_close_matches(name, known, 1)
        raise RuleRefused(f"{what} {name!r} does not exist" + (f"; did you mean {close[0]}?" if close else ""))
    return number
