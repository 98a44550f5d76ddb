"""The options of format("headrace-log"), checked before Spark starts work; names are those of format("headrace")."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.spark.options import (
    Option,
    OptionError,
    boolean,
    names,
    not_negative,
    one_of,
    parsed,
    positive,
    regex,
    text,
    unknown_option,
)

SPLIT_BYTES = 128 << 20
COMMITTED = "committed"

LOG_OPTIONS: tuple[Option, ...] = (
    Option("path", names, None,
        "A broker's data folder, several log.dirs separated by commas, or one partition's folder."),
    Option("subscribe", names, None, "Only these topics, separated by commas. Default: all but the brokers' own."),
    Option("subscribePattern", regex, None, "Only topics whose whole name matches."),
    Option("startingOffsets", text, None, 'earliest, or {"orders": {"0": 23}}.'),
    Option("endingOffsets", text, None, 'latest, or {"orders": {"0": 50}}; the offset itself is not read.'),
    Option("startingTimestamp", not_negative, None, "Only records of this time in ms or younger."),
    Option("endingTimestamp", not_negative, None, "Only records older than this time in ms."),
    Option("includeActive", one_of(COMMITTED, "true", "false"), COMMITTED,
           "Read the segment too that is being written: what the folder says is committed, all that is valid (true),"
           " or nothing."),
    Option("kafka.isolation.level", one_of("read_uncommitted", "read_committed"), "read_uncommitted",
           "read_committed leaves out aborted transactions, and stops where one was open."),
    Option("failOnDataLoss", boolean, True, "Fail at damaged or deleted segments; otherwise warn and go on."),
    Option("splitBytes", positive, SPLIT_BYTES, "About how much one task reads."),
    Option("includeHeaders", boolean, False, "Add the column headers."),
    Option("columns", names, None, "Only these columns."),
    Option("pushFilters", boolean, False,
           "Let filters on partition, offset and timestamp narrow what is read. "
           "Needs spark.sql.python.filterPushdown.enabled=true."),
)  # fmt: skip
BY_KEY = {option.name.lower(): option for option in LOG_OPTIONS}


def read_log_options(given: Mapping[str, str]) -> dict[str, Any]:
    """Typed values of all options, defaults included. Raises OptionError."""
    values: dict[str, Any] = {option.name: option.default for option in LOG_OPTIONS}
    # Names that positions are read from, of which this format has no use.
    values |= {"startingOffsetsByTimestamp": None, "endingOffsetsByTimestamp": None}
    for key, value in given.items():
        option = BY_KEY.get(key.lower())
        if option is None:
            known = [one.name for one in LOG_OPTIONS]
            raise unknown_option(f"option {key!r} is not known to headrace-log", key, key, known)
        values[option.name] = parsed(option.name, option.parse, value)
    _check(values)
    return values


def _check(values: Mapping[str, Any]) -> None:
    if values["path"] is None:
        raise OptionError("option 'path' is missing", "write load('/path/to/the/data/folder')", option="path")
    for path in values["path"]:
        if not Path(path).is_dir():
            raise OptionError(
                "option 'path'", f"{path} is no folder on this machine: give a broker's data folder", option="path"
            )
    if values["subscribe"] is not None and values["subscribePattern"] is not None:
        raise OptionError("options subscribe and subscribePattern are both set", "leave one of them out")
    if values["kafka.isolation.level"] == "read_committed" and values["includeActive"] == "true":
        raise OptionError(
            "option 'includeActive' cannot be had with read_committed",
            "only a broker knows what transactions are open now",
            option="includeActive",
        )
    start, end = values["startingTimestamp"], values["endingTimestamp"]
    if start is not None and end is not None and start >= end:
        raise OptionError(
            f"option 'endingTimestamp' is {end}, not behind startingTimestamp, {start}",
            "raise it",
            option="endingTimestamp",
        )
    for name in ("starting", "ending"):
        if values[f"{name}Timestamp"] is not None and values[f"{name}Offsets"] is not None:
            raise OptionError(f"options {name}Timestamp and {name}Offsets are both set", "leave one of them out")
