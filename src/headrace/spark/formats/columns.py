"""Python values to Arrow columns and back, along a type: what all formats share.

A format gives its rows as objects and says how a field is got out of one; lists, maps and structs within are taken
apart here, column by column.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

Getter = Callable[[Any], Any]


class Shape:
    """How to get each field of a struct out of an object that stands for it, and the shape of the struct within it."""

    __slots__ = ("fields",)

    def __init__(self, fields: "Sequence[tuple[Getter, Shape | None]]") -> None:
        self.fields = fields


def shape_of(kind: pa.DataType, getters: Callable[[pa.StructType], Sequence[Getter]]) -> Shape | None:
    """The shape of the struct that `kind` is or holds, when objects of one type are all got at in one way."""
    if pa.types.is_list(kind):
        return shape_of(kind.value_type, getters)
    if pa.types.is_map(kind):
        return shape_of(kind.item_type, getters)
    if not pa.types.is_struct(kind):
        return None
    return Shape([(get, shape_of(field.type, getters)) for get, field in zip(getters(kind), kind)])


def build(values: Sequence[Any], kind: pa.DataType, shape: Shape | None) -> pa.Array:
    """A column of `kind`. Raises pa.ArrowException, or what a wrong value raises, without saying which row."""
    if pa.types.is_struct(kind):
        assert shape is not None
        return _build_struct(values, kind, shape)
    if pa.types.is_list(kind) and shape is not None:
        offsets, flat = _flattened(values)
        return pa.ListArray.from_arrays(offsets, build(flat, kind.value_type, shape), type=kind)
    if pa.types.is_map(kind):
        items = [None if value is None else list(value.items()) for value in values]
        offsets, flat = _flattened(items)
        keys = build([key for key, _ in flat], kind.key_type, None)
        return pa.MapArray.from_arrays(
            offsets, keys, build([item for _, item in flat], kind.item_type, shape), type=kind
        )
    return pa.array(values, kind)


def _build_struct(values: Sequence[Any], kind: pa.StructType, shape: Shape) -> pa.StructArray:
    children = [
        build([None if value is None else get(value) for value in values], kind.field(index).type, inner)
        for index, (get, inner) in enumerate(shape.fields)
    ]
    missing = [value is None for value in values]
    mask = pa.array(missing) if any(missing) else None
    if not children:
        return pa.array([None if absent else {} for absent in missing], kind)
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def _flattened(values: Sequence[Any]) -> tuple[pa.Array, list[Any]]:
    """Arrow's offsets for lists, null where a list is, and all items side by side."""
    offsets: list[int | None] = []
    flat: list[Any] = []
    for value in values:
        offsets.append(None if value is None else len(flat))
        if value is not None:
            flat.extend(value)
    offsets.append(len(flat))
    return pa.array(offsets, pa.int32()), flat


Convert = Callable[[Any], Any]


def plain_rows(
    values: pa.StructArray, prepare: Callable[[pa.DataType], Convert | None], errors: dict[int, str]
) -> list[dict[str, Any] | None]:
    """Structs as dicts, maps as dicts too, nulls left in; `prepare` may give a conversion for types of its own.

    What Python has no value for (a time beyond the year 9999) is null, with the reason in `errors`.
    """
    convert = converter(values.type, prepare)
    try:
        rows = values.to_pylist()
    except (ValueError, OverflowError):
        rows = []
        for index, value in enumerate(values):
            try:
                rows.append(value.as_py())
            except (ValueError, OverflowError) as error:
                errors[index] = str(error)
                rows.append(None)
    return rows if convert is None else [None if row is None else convert(row) for row in rows]


def converter(kind: pa.DataType, prepare: Callable[[pa.DataType], Convert | None]) -> Convert | None:
    """None where values need no change."""
    own = prepare(kind)
    if own is not None:
        return own
    if pa.types.is_struct(kind):
        changes = [(field.name, change) for field in kind if (change := converter(field.type, prepare)) is not None]
        return _struct_converter(changes) if changes else None
    if pa.types.is_map(kind):
        item = converter(kind.item_type, prepare)
        if item is None:
            return dict
        return lambda pairs: {key: None if value is None else item(value) for key, value in pairs}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = converter(kind.value_type, prepare)
        if element is None:
            return None
        return lambda values: [None if value is None else element(value) for value in values]
    return None


def _struct_converter(changes: Sequence[tuple[str, Convert]]) -> Convert:
    def convert(row: dict[str, Any]) -> dict[str, Any]:
        for name, change in changes:
            value = row[name]
            if value is not None:
                row[name] = change(value)
        return row

    return convert


def build_apart(rows: Sequence[Any], kind: pa.DataType, shape: Shape | None, errors: dict[int, str]) -> pa.Array:
    """`build`, and where a row does not fit (a number too large, say) a null in its place and the reason in
    `errors`."""
    try:
        return build(rows, kind, shape)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        kept = list(rows)
        for index, row in enumerate(rows):
            try:
                build([row], kind, shape)
            except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
                errors[index] = str(error)
                kept[index] = None
        return build(kept, kind, shape)
