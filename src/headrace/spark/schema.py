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
from headrace.spark.plan import Plan, read_plan

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


def source_schema(options: Mapping[str, str]) -> StructType:
    """The columns of a read; asked first of all, so that bad options are answered at load()."""
    plan = read_plan(options)
    typed = typed_values(plan)
    return default_schema(plan.values, typed and typed.decoder.spark_schema)


def typed_values(plan: Plan) -> "TypedValues | None":
    """How values are decoded, where the options ask for it; None for bytes as they are."""
    check_bad_rows(plan.values)
    if plan.values["valueFormat"] is None:
        return None
    # Schemas, registries and letters: nothing that a read of plain bytes should wait for.
    from headrace.spark.formats import decoder_for
    from headrace.spark.formats.bad_rows import TypedValues

    return TypedValues(decoder_for(plan.values), plan.values, plan.task_client)


def default_schema(values: Mapping[str, Any], value_type: DataType | None = None) -> StructType:
    """What a read without a schema of its own gives."""
    chosen: Sequence[str] = [name for name in TYPES if name != HEADERS or values["includeHeaders"]]
    if values["columns"] is not None:
        chosen = [_known(name) for name in values["columns"]]
    types = TYPES if value_type is None else {**TYPES, "value": value_type}
    return StructType([StructField(name, types[name]) for name in chosen])


def check_schema(schema: StructType, values: Mapping[str, Any], value_type: DataType | None = None) -> None:
    """A user's schema may leave columns out and order them anew, but not invent any."""
    types = TYPES if value_type is None else {**TYPES, "value": value_type}
    for field in schema.fields:
        kind = types.get(field.name)
        if kind is None:
            raise OptionError(f"the schema has a column {field.name!r}: a read has only {', '.join(types)}")
        if not _same(field.dataType, kind):
            raise OptionError(
                f"the schema says {field.name} is {field.dataType.simpleString()}: it is {kind.simpleString()}; "
                f"write so, and cast it afterwards"
            )
        if not field.nullable and field.name in ("key", "value", HEADERS):
            raise OptionError(f"the schema says {field.name} is never null, which records do not promise: leave NOT NULL out")
    if values["columns"] is not None and [_known(name) for name in values["columns"]] != schema.fieldNames():
        raise OptionError("option 'columns' and the schema name different columns: leave one of them out")


def _same(given: DataType, kind: DataType) -> bool:
    return bool(given.simpleString() == kind.simpleString())


def _known(name: str) -> str:
    by_key = {one.lower(): one for one in TYPES}
    found = by_key.get(name.lower())
    if found is None:
        raise OptionError(f"option 'columns' names {name!r}: there are {', '.join(TYPES)}")
    return found
