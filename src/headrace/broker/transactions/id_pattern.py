"""Patterns of transactional ids in ListTransactions: any regular expression a client may think of, within limits."""

from collections.abc import Callable

from headrace.errors import Err, KafkaError

LENGTH_MAX = 1_000
SECONDS_MAX = 0.02
"""For one id. Whoever writes a pattern that takes longer gets an error, and nobody else waits."""


def id_pattern(pattern: str | None) -> Callable[[str], bool]:
    """Whether an id matches as a whole; without a pattern all do. Raises INVALID_REGULAR_EXPRESSION, then or later."""
    if not pattern:
        return lambda id: True
    import regex  # a tenth of a second that a start need not wait for

    if len(pattern) > LENGTH_MAX:
        raise KafkaError(Err.INVALID_REGULAR_EXPRESSION, f"a pattern of more than {LENGTH_MAX} characters")
    try:
        compiled = regex.compile(pattern)
    except regex.error as error:
        raise KafkaError(Err.INVALID_REGULAR_EXPRESSION, f"{pattern!r} is no regular expression: {error}") from None

    def matches(id: str) -> bool:
        try:
            return compiled.fullmatch(id, timeout=SECONDS_MAX) is not None
        except TimeoutError:
            raise KafkaError(Err.INVALID_REGULAR_EXPRESSION, f"{pattern!r} takes too long") from None

    return matches
