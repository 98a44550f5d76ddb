"""What a failure leads to: the same record again after a while, a retry topic, the dead letters, or the end."""

from dataclasses import dataclass
from typing import NamedTuple

from headrace.client.errors import ClientError

DELAYS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class ListenerRefused(ClientError, ValueError):
    """A listener, or an option of one, that cannot work, with what to do about it."""


class Undecodable(ClientError):
    """The value of a record cannot be made into what the handler takes: trying again would not help."""


class Skip(Exception):
    """Raised by a handler: leave this record, as if it had been handled."""


class Fatal(Exception):
    """Raised by a handler: do not try this record again; it goes to the dead letters at once."""


class BatchFailed(Exception):
    """Raised by a handler of batches: those before `index` are done with, and the record at `index` has failed."""

    def __init__(self, index: int, reason: BaseException | str = "") -> None:
        super().__init__(f"record {index} of the batch failed: {reason}")
        self.index = index


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often and when a record that failed is tried again.

    `attempts` counts the first one; None tries for ever. Between them its key waits for `delay_s`, which grows by
    `factor` up to `delay_s_max`, and other keys go on. With `topics`, delays such as `("10s", "5m")`, a record whose
    attempts have failed goes to a retry topic and is read from there after the delay: its key goes on without it, so
    that the order of the key is given up. What only fails for `never` types is not tried again.
    """

    attempts: int | None = 3
    delay_s: float = 0.5
    factor: float = 2.0
    delay_s_max: float = 60.0
    topics: tuple[str, ...] = ()
    on: tuple[type[BaseException], ...] = (Exception,)
    never: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.attempts is not None and self.attempts < 1:
            raise ListenerRefused(f"Retry(attempts={self.attempts}): write 1 or more, or None to try for ever")
        if self.attempts is None and self.topics:
            raise ListenerRefused("Retry(topics=...) never comes to pass with attempts=None: write a number")
        if self.delay_s < 0 or self.delay_s_max < 0 or self.factor < 1:
            raise ListenerRefused("Retry: delays are at least 0 and factor is at least 1")
        for delay in self.topics:
            delay_of(delay)

    def delay_after(self, attempt: int) -> float:
        """How long to wait after the attempt of this number has failed."""
        if self.delay_s == 0 or self.factor == 1:
            return min(self.delay_s, self.delay_s_max)
        # A power beyond this is far above any limit, and would only overflow.
        return float(min(self.delay_s * self.factor ** min(attempt - 1, 64), self.delay_s_max))


NO_RETRY = Retry(attempts=1)


class Again(NamedTuple):
    """The same record once more, after a while."""

    delay_s: float


class ToRetryTopic(NamedTuple):
    """To the retry topic of this number, to be read from there after its delay."""

    stage: int
    delay_s: float


class DeadLetter(NamedTuple):
    """To the dead letters."""


class Leave(NamedTuple):
    """Go on without it."""


class Stop(NamedTuple):
    """The listener ends: it can neither handle the record nor put it aside."""


Decision = Again | ToRetryTopic | DeadLetter | Leave | Stop


def decide(
    error: BaseException, retry: Retry, *, attempt: int, stage: int = 0, dead_letter: bool, skip: bool = False
) -> Decision:
    """What to do with a record whose attempt of this number has just failed.

    `stage` is 0 in the listener's own topics and n in its nth retry topic; attempts are counted anew in each. `skip`:
    without dead letters, go on instead of ending.
    """
    if isinstance(error, Skip):
        return Leave()
    final = isinstance(error, (Undecodable, Fatal, *retry.never)) or not isinstance(error, retry.on)
    if not final:
        if retry.attempts is None or attempt < retry.attempts:
            return Again(retry.delay_after(attempt))
        if stage < len(retry.topics):
            return ToRetryTopic(stage + 1, delay_of(retry.topics[stage]))
    if dead_letter:
        return DeadLetter()
    return Leave() if skip else Stop()


def delay_of(text: str) -> float:
    """Seconds of `500ms`, `10s`, `5m`, `1h`."""
    for unit, seconds in DELAYS.items():
        number = text.removesuffix(unit)
        if number != text and number.isdigit() and int(number) > 0:
            return int(number) * seconds
    raise ListenerRefused(f"the delay of a retry topic is {text!r}: write such as '500ms', '10s', '5m' or '1h'")


def retry_topic(topic: str, group: str, delay: str) -> str:
    """Where records of a topic wait to be tried again by a group. Each group has its own: others did not fail."""
    return f"{topic}.{group}.retry-{delay}"
