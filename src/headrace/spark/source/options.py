"""The options of one read, checked and typed, and small enough to travel to every task."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from headrace.client.consume.range_fetcher import FETCH_BYTES
from headrace.spark.options import SECURITY, SOURCE, OptionError, read_options
from headrace.spark.source.offsets import (
    Position,
    TopicPartition,
    check_order,
    ending_position,
    parse_assign,
    starting_position,
)

STRATEGIES = ("subscribe", "subscribePattern", "assign")
ENDS = ("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp")


@dataclass(frozen=True)
class SourceOptions:
    """`client` are the arguments of a Cluster. Exactly one of topics, pattern and assigned is set."""

    bootstrap: str
    strategy: str
    topics: tuple[str, ...] | None
    pattern: str | None
    assigned: tuple[TopicPartition, ...]
    start: Position
    end: Position
    values: Mapping[str, Any] = field(repr=False)
    client: Mapping[str, Any] = field(default_factory=dict)
    task_client: Mapping[str, Any] = field(default_factory=dict)

    @property
    def read_committed(self) -> bool:
        return bool(self.values.get("kafka.isolation.level") == "read_committed")

    @property
    def check_crc(self) -> bool:
        return bool(self.values.get("kafka.check.crcs", True))

    @property
    def fetch_bytes(self) -> int:
        given = [self.values.get("kafka.max.partition.fetch.bytes"), self.values.get("kafka.fetch.max.bytes")]
        return min([one for one in given if one is not None], default=FETCH_BYTES)

    @property
    def fail_on_data_loss(self) -> bool:
        return bool(self.values["failOnDataLoss"])

    @property
    def no_match(self) -> str:
        return str(self.values["startingOffsetsByTimestampStrategy"])

    @property
    def offset_retries(self) -> int:
        return int(self.values["fetchOffset.numRetries"])

    @property
    def offset_pause_s(self) -> float:
        return float(self.values["fetchOffset.retryIntervalMs"]) / 1000

    @classmethod
    def read(cls, given: Mapping[str, str], *, streaming: bool | None = None) -> Self:
        """Check everything that can be checked without a broker. `streaming` None: not known yet, as when a schema is
        asked."""
        values = read_options(given, SOURCE)
        named = [name for name in STRATEGIES if values[name] is not None]
        if len(named) != 1:
            what = "none is set" if not named else f"{' and '.join(named)} are set"
            raise OptionError(f"exactly one of the options subscribe, subscribePattern and assign must be set; {what}")
        start, end = Position("earliest"), Position("latest")
        if streaming is not None:
            start = starting_position(values, streaming=streaming)
        if streaming is False:
            end = ending_position(values)
            check_order(start, end)
        if streaming:
            _check_stream(values)
        client: dict[str, Any] = {
            "client_id": values.get("kafka.client.id", "headrace-spark"),
            "security": values[SECURITY],
        }
        if (timeout := values.get("kafka.request.timeout.ms")) is not None:
            client["request_timeout_s"] = timeout / 1000
        if (timeout := values.get("kafka.socket.connection.setup.timeout.ms")) is not None:
            client["connect_timeout_s"] = timeout / 1000
        return cls(
            bootstrap=values["kafka.bootstrap.servers"],
            strategy=named[0],
            topics=values["subscribe"],
            pattern=values["subscribePattern"],
            assigned=parse_assign(values["assign"]) if values["assign"] is not None else (),
            start=start,
            end=end,
            values=values,
            client=client,
            task_client={**client, "retry_timeout_s": values["kafkaConsumer.pollTimeoutMs"] / 1000},
        )


def _check_stream(values: Mapping[str, Any]) -> None:
    for name in ENDS:
        if values[name] is not None:
            raise OptionError(
                f"option {name!r} cannot be used in a stream, which has no end", "leave it out", option=name
            )
    if values["pushFilters"]:
        raise OptionError("option 'pushFilters' works in batch queries only", "leave it out", option="pushFilters")
    least, most = values["minOffsetsPerTrigger"], values["maxOffsetsPerTrigger"]
    if least is not None and most is not None and least > most:
        raise OptionError(
            f"option 'minOffsetsPerTrigger' is {least}, above maxOffsetsPerTrigger, {most}",
            "lower it",
            option="minOffsetsPerTrigger",
        )
