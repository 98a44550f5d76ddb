"""What a listener has done, counted: plain numbers that metrics and health show when somebody asks."""

from headrace.listeners.core.retry import DeadLetter, Decision, Leave, ToRetryTopic

SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)
"""Upper bounds of the buckets in which calls of handlers are counted by how long they took."""


class Counters:
    """Of one listener, since its app was made; restarts of the listener go on counting."""

    def __init__(self) -> None:
        self.received = 0
        self.processed = 0
        self.failures = 0
        self.retries = 0
        self.sent_to_retry_topics = 0
        self.dead_letters = 0
        self.skipped = 0
        self.duplicates = 0
        self.commits = 0
        self.commit_failures = 0
        self.restarts = 0
        self.seconds = 0.0
        self.calls = 0
        self.buckets = [0] * len(SECONDS)

    def handled(self, records: int, seconds: float) -> None:
        """A call of the handler that went well."""
        self.processed += records
        self.calls += 1
        self.seconds += seconds
        for i, bound in enumerate(SECONDS):
            if seconds <= bound:
                self.buckets[i] += 1
                break

    def shown(self) -> dict[str, int]:
        """The plain counts, by name."""
        return {name: value for name, value in vars(self).items() if isinstance(value, int)}

    def put_aside(self, decision: Decision, records: int) -> None:
        """Records that the listener goes on without."""
        if isinstance(decision, DeadLetter):
            self.dead_letters += records
        elif isinstance(decision, ToRetryTopic):
            self.sent_to_retry_topics += records
        elif isinstance(decision, Leave):
            self.skipped += records
