"""What a handler function takes and gives, read from its annotations: values with their types, records, batches."""

import asyncio
import dataclasses
import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Union, get_args, get_origin

from headrace.client.api.serializers import Decode, Json, decoder_of
from headrace.client.api.types import Record
from headrace.client.errors import ClientError, NotReady
from headrace.client.registry.errors import RegistryUnreachable
from headrace.listeners.core.retry import BatchFailed, ListenerRefused, Undecodable
from headrace.listeners.idempotence import Idempotence

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Send:
    """A record that a handler returns to have it sent. Bytes and text go as they are, everything else as JSON."""

    topic: str
    value: Any
    key: Any = None
    headers: Any = None
    timestamp: int | None = None
    partition: int | None = None


class Ack:
    """Given to a handler of a listener with `ack="manual"`: call it, now or later and from any thread, once the record
    is done with. Until then nothing behind the record is committed in its partition."""

    __slots__ = ("_acknowledge", "is_done")

    def __init__(self, acknowledge: Callable[[], object]) -> None:
        self._acknowledge = acknowledge
        self.is_done = False

    def __call__(self) -> None:
        if not self.is_done:
            self.is_done = True
            self._acknowledge()


VALUE, RECORD, ACK = "value", "record", "ack"


class Handler:
    """A function, and how to call it with records."""

    def __init__(self, function: Callable[..., Any], decoder: Any = None) -> None:
        self.function = function
        self.name = getattr(function, "__name__", type(function).__name__)
        self.is_async = _is_async(function)
        parameters, hints = _parameters(function, self.name)
        self.parameters: tuple[str, ...] = tuple(_role(one, hints, first=not i) for i, one in enumerate(parameters))
        kind = hints.get(parameters[0].name, bytes)
        self.is_batch = get_origin(kind) in (list, Sequence, typing.Sequence) or kind is list
        if self.is_batch:
            (kind,) = get_args(kind) or (bytes,)
        self.takes_records = kind is Record
        self._decode = None if self.takes_records else value_decoder(kind, decoder, self.name)
        self.idempotence: Idempotence | None = getattr(function, "__headrace_idempotence__", None)
        if self.is_batch and self.idempotence is not None:
            raise ListenerRefused(f"{self.name}: idempotent processing knows single records: take one, not a list")
        if self.is_batch and RECORD in self.parameters:
            raise ListenerRefused(f"{self.name}: a handler of batches takes list[Record] for whole records")

    def arguments(self, records: Sequence[Record], ack: Ack | None) -> list[Any]:
        """What to call the function with. Raises Undecodable, or for a batch BatchFailed because of it."""
        value = self._values(records) if self.is_batch else self.value(records[0])
        given = {VALUE: value, ACK: ack, RECORD: records[0]}
        return [given[role] for role in self.parameters]

    def _values(self, records: Sequence[Record]) -> list[Any]:
        found = []
        for index, record in enumerate(records):
            try:
                found.append(self.value(record))
            except Undecodable as error:
                raise BatchFailed(index, error) from error
        return found

    def identity_of(self, record: Record) -> str:
        """The id by which idempotent processing knows the record."""
        assert self.idempotence is not None
        return self.idempotence.identity_of(record, self.value(record))

    def value(self, record: Record) -> Any:
        """The record's value as the handler wants it."""
        return record if self._decode is None else self._decode(record)


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    call = getattr(type(function), "__call__", None)  # noqa: B004 - an object whose __call__ is async counts, too
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


def _parameters(function: Callable[..., Any], name: str) -> tuple[list[inspect.Parameter], dict[str, Any]]:
    target = function
    while isinstance(target, functools.partial):
        target = target.func
    try:
        hints = typing.get_type_hints(target if inspect.isroutine(target) else type(target).__call__)
    except NameError as error:
        raise ListenerRefused(f"{name}: an annotation names what is not there: {error}") from None
    found = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
    if not found or any(one.kind not in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in found):
        raise ListenerRefused(f"{name}: write it as a function of the value, such as def {name}(order: Order)")
    return found, hints


def _role(parameter: inspect.Parameter, hints: dict[str, Any], *, first: bool) -> str:
    kind = hints.get(parameter.name)
    if kind is Ack:
        return ACK
    if first:
        return VALUE
    if kind is Record:
        return RECORD
    raise ListenerRefused(
        f"parameter {parameter.name!r} of a handler: the first one is the value, more are annotated as Record or Ack"
    )


def value_decoder(kind: Any, given: Any, name: str) -> Callable[[Record], Any]:
    """A function that makes a record's value into `kind`: bytes, text, or JSON of that type. `given` decodes instead
    of JSON, as the consumer's option value_deserializer does."""
    inner, optional = _without_none(kind)
    if given is not None:
        of_type = getattr(given, "of_type", None)
        if callable(of_type) and inner not in (bytes, dict, Any, inspect.Parameter.empty):
            given = of_type(inner)  # the annotation says what a registry's format makes of values
        decode: Decode | None = decoder_of(given, "value_deserializer")
    elif inner in (bytes, Any, inspect.Parameter.empty):
        decode = None
    elif inner is str:
        decode = decoder_of("str", "value_deserializer")
    else:
        try:
            decode = Json(inner).deserialize
        except TypeError as error:
            raise ListenerRefused(f"{name}: values of type {kind!r} cannot be read: {error}") from None

    def value_of(record: Record) -> Any:
        value = record.value
        if value is None:
            if optional or inner is Any:
                return None
            raise Undecodable(
                f"{where(record)} has no value (a tombstone): annotate the value as `... | None` to get it"
            )
        if decode is None:
            return value
        try:
            return decode(record.topic, value)
        except NotReady:
            raise
        except Exception as error:
            raise Undecodable(
                f"the value of {where(record)} is no {getattr(inner, '__name__', inner)}: {error}"
            ) from error

    return value_of


async def when_ready(call: Callable[[], T]) -> T:
    """What a call returns, once its serializer has asked for the schemas it needs, in a thread. A registry that is away
    is a failure like any other: it may pass. A schema that is not there will not come."""
    while True:
        try:
            return call()
        except NotReady as wait:
            try:
                await asyncio.to_thread(wait.learn)
            except RegistryUnreachable:
                raise
            except ClientError as error:
                raise Undecodable(str(error)) from error


def _without_none(kind: Any) -> tuple[Any, bool]:
    if get_origin(kind) not in (Union, types.UnionType):
        return kind, kind is None or kind is type(None)
    members = [one for one in get_args(kind) if one is not type(None)]
    return functools.reduce(operator.or_, members), len(members) < len(get_args(kind))


def where(record: Record) -> str:
    """The record's name, for people."""
    return f"the record at {record.topic}-{record.partition} offset {record.offset}"


def sends_of(result: Any, records: Sequence[Record], send_to: str | None, name: str) -> list[Send]:
    """The records that a handler's result stands for: `Send`s, or values for the topic `send_to`, with the key of the
    record they were made from."""
    if result is None:
        return []
    rows = result if isinstance(result, list | tuple) else [result]
    found = []
    for row in rows:
        if isinstance(row, Send):
            found.append(row)
        elif send_to is not None:
            key = records[0].key if len(records) == 1 else None
            found.append(Send(topic=send_to, value=row, key=key))
        else:
            raise TypeError(f"{name} returned {type(row).__name__}: return a Send(...), or give the listener send_to=")
    return found
