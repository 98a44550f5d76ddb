"""Each room of the client offers its public names, and importing one loads no more than it needs."""

import ast
import importlib
import inspect
import subprocess
import sys

import pytest

ROOMS = ["", ".admin", ".api", ".columnar", ".consume", ".net", ".produce", ".security"]


@pytest.mark.parametrize("room", ROOMS)
def test_type_checkers_and_python_see_the_same_names(room: str) -> None:
    package = importlib.import_module(f"headrace.client{room}")
    told = {
        alias.name: node.module
        for branch in ast.parse(inspect.getsource(package)).body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
    assert sorted(told) == package.__all__ == dir(package)
    for name, home in told.items():
        assert getattr(package, name) is getattr(importlib.import_module(home), name), name
    with pytest.raises(AttributeError, match="nobody"):
        package.nobody  # noqa: B018


def test_a_connection_loads_neither_administration_nor_the_reading_of_settings() -> None:
    check = (
        "import sys, headrace.client.net.connection;"
        "parts = ('admin', 'produce', 'consume', 'columnar', 'security.settings', 'security.tls');"
        "found = {f'headrace.client.{part}' for part in parts} & set(sys.modules); assert not found, found"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
