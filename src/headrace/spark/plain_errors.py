"""Errors that are for the user reach the user as their sentence, not behind a traceback of Spark's worker and ours.

A worker sends what it prints to the JVM, which puts it into the exception of the query. Spark's own switch for leaving
the traceback out is a variable of the worker's environment, which it reads when something is raised. A worker ends with
an exception, so what is set here concerns nobody else.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import isgeneratorfunction
from types import SimpleNamespace
from typing import Any, TypeVar

from headrace.client.errors import ClientError
from headrace.errors import KafkaError

HIDE = "SPARK_HIDE_TRACEBACK"
F = TypeVar("F", bound=Callable[..., Any])


class UserError(Exception):
    """Something that the user can mend: `problem` says what is wrong, `fix` what to do, `option` which option it is."""

    def __init__(self, problem: str, fix: str = "", *, option: str | None = None) -> None:
        super().__init__(problem, fix)
        self.problem = problem
        self.fix = fix
        self.option = option

    def __str__(self) -> str:
        return f"{self.problem}: {self.fix}" if self.fix else self.problem


SAID_PLAINLY = (UserError, ClientError, KafkaError)


def plain_errors(function: F) -> F:
    """For whatever Spark calls: an error of ours is told without its traceback, a bug with it."""
    if isgeneratorfunction(function):

        @wraps(function)
        def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
            try:
                yield from function(*args, **kwargs)
            except SAID_PLAINLY:
                os.environ[HIDE] = "1"
                raise

        return generate  # type: ignore[return-value]

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except SAID_PLAINLY:
            os.environ[HIDE] = "1"
            raise

    return call  # type: ignore[return-value]


def hang_up_quietly() -> None:
    """In a worker of Spark's own daemon: print no traceback when Spark hangs up because its query has all the rows it
    wants.

    `limit`, `show` and `take` end so. The daemon runs as a program, and this worker is a fork of it.
    """
    daemon = sys.modules["__main__"]
    if getattr(daemon.__spec__, "name", "") == "pyspark.daemon" and daemon.traceback is traceback:
        daemon.traceback = SimpleNamespace(format_exc=traceback.format_exc, print_exc=_print_but_hang_ups)  # type: ignore[attr-defined]


def _print_but_hang_ups() -> None:
    if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
        traceback.print_exc()
