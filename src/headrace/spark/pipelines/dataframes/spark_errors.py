"""What Spark says when something fails, turned into a place in the spec and one clear line; and whether to try
again."""

import re

from headrace.spark.pipelines.spec.model import Transform
from headrace.spark.pipelines.spec.problems import Problem, Where, no_column

EXPECTATION_MARK = "headrace expectation "
NO_COLUMN = "UNRESOLVED_COLUMN"
_QUOTED = re.compile(r"`((?:[^`]|``)*)`")
_NAME = re.compile(r"`(?:[^`]|``)*`(?:\.`(?:[^`]|``)*`)*")
_LINE = re.compile(r"\(line (\d+), pos(?:ition)? \d+\)|;? line (\d+) pos \d+")
_CLASS = re.compile(r"^\[([A-Z_0-9.]+)\]\s*")
_STATE = re.compile(r"SQLSTATE: ([0-9A-Z]{5})")
_EXPECTATION = re.compile(
    re.escape(EXPECTATION_MARK) + r"(\w+) of (\w+) failed on the row (.*?)(?=\s*SQLSTATE|\s*$)", re.MULTILINE
)
# Wrong data and wrong queries stay wrong; what the network or a machine did may be right the next time.
_HOPELESS_STATES = ("22", "42", "0A")
_HOPELESS = (
    "OptionError",
    "SettingRefused",
    "SecurityFailed",
    "SchemaError",
    "FormatError",
    EXPECTATION_MARK,
    "PICKLING",
    "FileAlreadyExistsException",
)
# What speaks for trying again, whatever it is wrapped in: brokers and workers that are away or slow.
_PASSING = (
    "BrokerUnreachable",
    "ConnectionLost",
    "RequestTimedOut",
    "SocketTimeoutException",
    "ConnectException",
    "could not be kept in group",
)


def problem_of(error: BaseException, where: Where) -> Problem:
    """Any failure while a part is being built, with what the user can do where that is known."""
    if _condition(error).startswith(NO_COLUMN):
        given = error.getMessageParameters()  # type: ignore[attr-defined]
        return no_column(where, _plain_name(given["objectName"]), _plain_names(given.get("proposal", "")))
    text = str(error)
    return Problem(where, first_line(text), _fix(text))


def _condition(error: BaseException) -> str:
    """The class of error by which Spark knows it, such as UNRESOLVED_COLUMN.WITH_SUGGESTION."""
    from pyspark.errors import PySparkException

    return (error.getCondition() or "") if isinstance(error, PySparkException) else ""


def _plain_name(quoted: str) -> str:
    """`o`.`amount` as people write it: o.amount."""
    return ".".join(part.replace("``", "`") for part in _QUOTED.findall(quoted)) or quoted


def _plain_names(quoted: str) -> list[str]:
    return [_plain_name(one) for one in _NAME.findall(quoted)]


def sql_problem(error: BaseException, transform: Transform) -> Problem:
    """A failure of a query, at the line of the SQL that Spark points at."""
    assert transform.sql_path is not None
    found = _LINE.search(_context(error) + str(error))
    line = int(found[1] or found[2]) if found else 1
    place = Where(transform.sql_path, transform.sql_line + line - 1, transform.where.key)
    return problem_of(error, place)


def _context(error: BaseException) -> str:
    """What PySpark knows beside the message."""
    try:
        return "".join(one.summary() for one in error.getQueryContext())  # type: ignore[attr-defined]
    except Exception:
        return ""


def first_line(text: str) -> str:
    """What happened, without the plan, the stack and the error's class."""
    text = _CLASS.sub("", text.strip())
    text = re.sub(r"\s*SQLSTATE: \S+.*", "", text, flags=re.DOTALL)
    line = text.split("\n", 1)[0].strip()
    return line.rstrip(";. ") or "Spark gave no reason"


def _fix(text: str) -> str:
    for pattern, fix in _FIXES:
        found = re.search(pattern, text, re.DOTALL)
        if found:
            return found.expand(fix)
    return ""


_FIXES = (
    (r"streaming aggregations without watermark",
     "give what it reads a `watermark:`, or the sink `mode: complete` or `mode: update`"),
    (r"PARSE_SYNTAX_ERROR", "correct the SQL there"),
    (r"UNRESOLVED_ROUTINE", "correct the function's name"),
    (r"Failed to find the data source: (\S+?)\.? ",
     r"the jar of \1 is not there: add it under spark.packages or spark.jars"),
    (r"ClassNotFoundException: (\S+)", r"the jar with \1 is not there: add it under spark.packages or spark.jars"),
    (r"cannot be null.*watermark|event time.*must be",
     "a watermark's column must be a TIMESTAMP: use CAST(... AS TIMESTAMP)"),
)  # fmt: skip


def cause_of(text: str) -> str:
    """The line that tells most in what a failed query says, which wraps causes in causes."""
    expectation = _EXPECTATION.search(text)
    if expectation:
        return f"expectation {expectation[1]} of {expectation[2]} failed on the row {expectation[3][:300]}"
    python = re.findall(
        r"^(?:[\w.]*\.)?([A-Z]\w*(?:Error|Exception|Failed|Missing|Invalid|Refused|Unreachable|Lost)): (.+)$",
        text,
        re.MULTILINE,
    )
    inner = [
        f"{kind}: {message}"
        for kind, message in python
        if not kind.startswith(("Py4J", "SparkException", "PythonException"))
    ]
    if "Traceback (most recent call last)" in text and inner:
        return inner[-1][:500]
    caused = re.findall(r"Caused by: (?:[\w.]+\.)?(\w+): (.+)", text)
    if caused:
        return first_line(caused[-1][1])[:500] or caused[-1][0]
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("[STREAM_FAILED]")]
    return first_line("\n".join(lines) if lines else text)[:500]


def is_hopeless(text: str) -> bool:
    """Whether the same query would fail the same way again."""
    if any(mark in text for mark in _PASSING):
        return False
    if any(mark in text for mark in _HOPELESS):
        return True
    return any(state.startswith(_HOPELESS_STATES) for state in _STATE.findall(text))
