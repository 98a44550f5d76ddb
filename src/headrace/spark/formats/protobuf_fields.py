"""Between protobuf messages and columns, field by field: getting them out, and setting them."""

import datetime
from collections.abc import Callable
from typing import Any

from pyspark.sql.types import DataType, IntegerType, LongType, StructType

from headrace.spark.formats.columns import Getter, Shape
from headrace.spark.formats.schemas import FormatError

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
TIMESTAMP = "google.protobuf.Timestamp"


def shape_for(descriptor: Any) -> Shape:
    """How to get a message's fields, and those of messages within it."""
    return Shape([(_getter(field), _shape_within(field)) for field in descriptor.fields])


def _shape_within(field: Any) -> Shape | None:
    if field.message_type is None:
        return None
    message = _message_within(field)
    return None if message is None or message.full_name == TIMESTAMP else shape_for(message)


def _message_within(field: Any) -> Any:
    message = field.message_type
    return message.fields_by_name["value"].message_type if message.GetOptions().map_entry else message


def _getter(field: Any) -> Getter:
    name = field.name
    one = _value_of(field)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        item = _value_of(field.message_type.fields_by_name["value"])
        if item is None:
            return lambda message: dict(getattr(message, name))
        return lambda message: {key: item(value) for key, value in getattr(message, name).items()}
    if field.is_repeated:
        if one is None:
            return lambda message: list(getattr(message, name))
        return lambda message: [one(value) for value in getattr(message, name)]
    if field.has_presence:
        if one is None:
            return lambda message: getattr(message, name) if message.HasField(name) else None
        return lambda message: one(getattr(message, name)) if message.HasField(name) else None
    if one is None:
        return lambda message: getattr(message, name)
    return lambda message: one(getattr(message, name))


def _value_of(field: Any) -> Callable[[Any], Any] | None:
    """What turns protobuf's value into Arrow's; None where it is one already."""
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if field.message_type is not None and field.message_type.full_name == TIMESTAMP:
        return lambda stamp: EPOCH + datetime.timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)
    return None


def fill(message: Any, row: dict[str, Any]) -> Any:
    """Set a message's fields from a row; what is null stays unset. Raises ValueError naming the field."""
    fields = message.DESCRIPTOR.fields_by_name
    for name, value in row.items():
        if value is None:
            continue
        try:
            _set(message, fields[name], value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"field '{name}': {error}") from None
    return message


def _set(message: Any, field: Any, value: Any) -> None:
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        target, item = getattr(message, name), field.message_type.fields_by_name["value"]
        for key, one in value.items():
            if one is None:
                raise ValueError(f"the value of {key!r} is null, which a protobuf map cannot hold")
            if item.message_type is not None:
                _fill_message(target[key], item, one)
            else:
                target[key] = _scalar(item, one)
    elif field.is_repeated:
        target = getattr(message, name)
        for one in value:
            if one is None:
                raise ValueError("an element is null, which a repeated field cannot hold")
            if field.message_type is not None:
                _fill_message(target.add(), field, one)
            else:
                target.append(_scalar(field, one))
    elif field.message_type is not None:
        target = getattr(message, name)
        target.SetInParent()
        _fill_message(target, field, value)
    else:
        setattr(message, name, _scalar(field, value))


def _fill_message(target: Any, field: Any, value: Any) -> None:
    if field.message_type.full_name == TIMESTAMP:
        if value.tzinfo is None:
            value = value.replace(tzinfo=datetime.UTC)
        since = value - EPOCH
        target.seconds = since.days * 86_400 + since.seconds
        target.nanos = since.microseconds * 1000
    else:
        fill(target, value)


def _scalar(field: Any, value: Any) -> Any:
    if field.enum_type is None:
        return value
    found = field.enum_type.values_by_name.get(value)
    if found is not None:
        return found.number
    if value.lstrip("-").isdecimal():
        return int(value)
    known = ", ".join(field.enum_type.values_by_name)
    raise ValueError(f"{value!r} is not one of the enum's values: {known}")


def check_columns(descriptor: Any, schema: StructType, columns: StructType, origin: str) -> None:
    """Columns of a row against the message's fields. Raises FormatError naming the column and the fix."""
    known: dict[str, DataType] = {field.name: field.dataType for field in schema}
    for column in columns:
        wanted = known.get(column.name)
        if wanted is None:
            raise FormatError(
                f"column '{column.name}' is not a field of {descriptor.full_name} in {origin}",
                "leave it out, or add it there",
            )
        if isinstance(column.dataType, IntegerType) and isinstance(wanted, LongType):
            continue
        if type(column.dataType) is not type(wanted):
            text = wanted.simpleString()
            raise FormatError(
                f"column '{column.name}' is {column.dataType.simpleString()}, {descriptor.full_name} in {origin} says "
                f"{text}",
                f"use CAST({column.name} AS {text.upper()})",
            )
