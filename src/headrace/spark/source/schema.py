"""Which columns a read gives: those of Spark's Kafka source, or the ones that an option or a schema picks from them.

Spark asks for them in a process of its own, before anything else: nothing here loads Arrow or talks to brokers.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.spark.options import OptionError, check_bad_rows
from headrace.spark.source.options import SourceOptions

if TYPE_CHECKING:
    from headrace.spark.formats.bad_rows import TypedValues

TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())]), containsNull=True
    ),
}
HEADERS = "headers"


def source_schema(given: Mapping[str, str]) -> StructType:
    """The columns of a read; asked first of all, so that bad options are answered at load()."""
    options = SourceOptions.read(given)
    typed = typed_values(options)
    return default_schema(options.values, typed and typed.decoder.spark_schema)


def typed_values(options: SourceOptions) -> "TypedValues | None":
    """How values are decoded, where the options ask for it; None for bytes as they are."""
    check_bad_rows(options.values)
    if options.values["valueFormat"] is None:
        return None
    # Schemas, registries and letters: nothing that a read of plain bytes should wait for.
    from headrace.spark.formats import decoder_for
    from headrace.spark.formats.bad_rows import TypedValues

    return TypedValues(decoder_for(options.values), options.values, options.task_client)


def default_schema(values: Mapping[str, Any], value_type: DataType | None = None) -> StructType:
    """What a read without a schema of its own gives."""
    chosen: Sequence[str] = [name for name in TYPES if name != HEADERS or values["includeHeaders"]]
    if values["columns"] is not None:
        chosen = [_known(name) for name in values["columns"]]
    types = _types(values, value_type)
    return StructType([StructField(name, types[name]) for name in [*chosen, *_error_column(values)]])


def check_schema(schema: StructType, values: Mapping[str, Any], value_type: DataType | None = None) -> None:
    """A user's schema may leave columns out and order them anew, but not invent any."""
    types = _types(values, value_type)
    for field in schema.fields:
        kind = types.get(field.name)
        if kind is None:
            raise OptionError(f"the schema has a column {field.name!r}", f"a read has only {', '.join(types)}")
        if not _same(field.dataType, kind):
            raise OptionError(
                f"the schema says {field.name} is {field.dataType.simpleString()}",
                f"it is {kind.simpleString()}; write so, and cast it afterwards",
            )
        if not field.nullable and field.name in ("key", "value", HEADERS):
            raise OptionError(
                f"the schema says {field.name} is never null, which records do not promise", "leave NOT NULL out"
            )
    chosen = None if values["columns"] is None else [*map(_known, values["columns"]), *_error_column(values)]
    if chosen is not None and chosen != schema.fieldNames():
        raise OptionError(
            "option 'columns' and the schema name different columns", "leave one of them out", option="columns"
        )


def _types(values: Mapping[str, Any], value_type: DataType | None) -> dict[str, DataType]:
    types = TYPES if value_type is None else {**TYPES, "value": value_type}
    return types | dict.fromkeys(_error_column(values), StringType())


def _error_column(values: Mapping[str, Any]) -> list[str]:
    """Of bad rows that stay: the name of the column with the reason, if one is asked for."""
    name = values.get("errorColumn")
    if name is not None and name.lower() in {one.lower() for one in TYPES}:
        raise OptionError(
            f"option 'errorColumn' is {name!r}, which is a column already", "choose another name", option="errorColumn"
        )
    return [] if name is None else [name]


def _same(given: DataType, kind: DataType) -> bool:
    return bool(given.simpleString() == kind.simpleString())


def _known(name: str) -> str:
    by_key = {one.lower(): one for one in TYPES}
    found = by_key.get(name.lower())
    if found is None:
        raise OptionError(f"option 'columns' names {name!r}", f"there are {', '.join(TYPES)}", option="columns")
    return found
