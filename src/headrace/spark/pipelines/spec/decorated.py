"""Functions under the decorators of PySpark's declarative pipelines (`@dp.temporary_view` and its kin) as transforms.

Such a function takes no arguments and reads by name: `spark.readStream.table("orders")`. What it reads is found in its
text, so that the graph is known before Spark starts; the function itself is caught where the decorator registers it.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.spark.pipelines.spec.sql_tables import tables_of

DECORATORS = frozenset({"temporary_view", "table", "materialized_view"})


def is_decorated(function: ast.FunctionDef) -> bool:
    return any(
        _last_name(one.func if isinstance(one, ast.Call) else one) in DECORATORS for one in function.decorator_list
    )


def decorated_name(function: ast.FunctionDef) -> str:
    """`@dp.table(name="x")` names it otherwise."""
    for one in function.decorator_list:
        if isinstance(one, ast.Call):
            for keyword in one.keywords:
                if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                    return str(keyword.value.value)
    return function.name


def tables_read(function: ast.FunctionDef) -> list[str]:
    """Names in `.table("name")` and in the queries of `.sql("...")`, each once, in order."""
    return list(dict.fromkeys(_tables(function)))


def _tables(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
            continue
        text = node.args[0].value
        if not isinstance(text, str):
            continue
        called = _last_name(node.func)
        if called == "table":
            yield text
        elif called == "sql":
            yield from (table.parts[0] for table in tables_of(text) if len(table.parts) == 1)


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def collecting() -> tuple[Any, dict[str, Any]]:
    """A context in which decorators put functions into the dictionary, by the name of what they make."""
    from pyspark.pipelines.graph_element_registry import (
        GraphElementRegistry,
        graph_element_registration_context,
    )

    found: dict[str, Any] = {}

    class Collector(GraphElementRegistry):
        def register_output(self, output: Any) -> None:
            pass

        def register_flow(self, flow: Any) -> None:
            found[flow.target] = flow.func

        def register_auto_cdc_flow(self, flow: Any) -> None:
            raise NotImplementedError("create_auto_cdc_flow runs with Spark's own spark-pipelines only")

        def register_sql(self, sql_text: str, file_path: Path) -> None:
            raise NotImplementedError("SQL files belong under sql_file")

    return graph_element_registration_context(Collector()), found
