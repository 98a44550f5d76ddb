"""From files to a checked Pipeline: reads the spec and the SQL and Python it names, never runs any of it, needs no
Spark.

Everything wrong is collected and said at once.
"""

import ast
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from headrace.spark.pipelines.spec import keys
from headrace.spark.pipelines.spec.decorated import decorated_name, is_decorated, tables_read
from headrace.spark.pipelines.spec.document import Block, Items, Scalar, Value, read_document
from headrace.spark.pipelines.spec.graph import cycle_in
from headrace.spark.pipelines.spec.keys import exactly_one, read_part
from headrace.spark.pipelines.spec.model import (
    DROP,
    REJECTED,
    Expectation,
    Node,
    Part,
    Pipeline,
    Retries,
    Sink,
    Source,
    SparkSettings,
    Transform,
    ValueFormat,
    Watermark,
)
from headrace.spark.pipelines.spec.problems import Problem, SpecInvalid, Where, choose
from headrace.spark.pipelines.spec.sql_tables import tables_of

SPEC_NAMES = ("pipeline.yaml", "pipeline.yml", "spark-pipeline.yml", "spark-pipeline.yaml")
SPEC_BYTES_MAX = 1 << 20
SCHEMALESS = frozenset({"text", "delta"})
TYPED = frozenset({"json", "avro", "protobuf"})

P = TypeVar("P", bound=Part)


def find_spec(path: Path | None) -> Path:
    """The spec a user means: a file, a folder with one, or none given: the current folder's."""
    place = Path.cwd() if path is None else path
    if place.is_dir():
        for name in SPEC_NAMES:
            if (place / name).is_file():
                return (place / name).resolve()
        missing = Where(place / SPEC_NAMES[0], 1, "")
        raise SpecInvalid(
            [Problem(missing, "there is no spec here", "name its file or folder, or make one: headrace pipeline init")]
        )
    if not place.is_file():
        raise SpecInvalid(
            [Problem(Where(place, 1, ""), "there is no such file", "headrace pipeline init makes an example")]
        )
    return place.resolve()


def read_text(path: Path) -> str:
    """The text of a file of the project. Raises SpecInvalid."""
    found = path.read_bytes()
    try:
        return found.decode()
    except UnicodeDecodeError as error:
        line = found.count(b"\n", 0, error.start) + 1
        raise SpecInvalid(
            [Problem(Where(path, line, ""), "this is not written in UTF-8", "save the file as UTF-8")]
        ) from None


def load_pipeline(path: Path, environment: Mapping[str, str] | None = None) -> Pipeline:
    """Raises SpecInvalid with all problems."""
    if path.stat().st_size > SPEC_BYTES_MAX:
        raise SpecInvalid([Problem(Where(path, 1, ""), "larger than 1 MB", "move SQL to files of its own: sql_file")])
    document = read_document(read_text(path), path, os.environ if environment is None else environment)
    return _Loader(path.parent).pipeline(document)


class _Loader:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[Problem] = []

    def wrong(self, where: Where, message: str, fix: str) -> None:
        self.problems.append(Problem(where, message, fix))

    def pipeline(self, document: Block) -> Pipeline:
        found = read_part(document, keys.PIPELINE, "a pipeline", self.problems) or {}
        entries = document.entries
        sources = self._named(entries.get("sources"), self._source)
        transforms = self._named(entries.get("transforms"), self._transform)
        sinks = self._named(entries.get("sinks"), self._sink)
        spark = self._part(entries.get("spark"), keys.SPARK, SparkSettings, "spark")
        retries = self._part(entries.get("retries"), keys.RETRIES, Retries, "retries")
        self._same_names(sources, transforms)
        declared = {name for key in ("sources", "transforms") for name in _entries(entries.get(key))}
        self._check_inputs(sources, transforms, sinks, declared)
        if self.problems:
            raise SpecInvalid(self.problems)
        nothing: dict[str, Any] = {"where": document.where, "at": {}}
        name = found["name"]
        given = found.get("storage", f".headrace/{name}")
        return Pipeline(
            **{
                key: value
                for key, value in found.items()
                if key not in ("sources", "transforms", "sinks", "spark", "retries", "storage")
            },
            folder=self.folder,
            storage=self._address(given),
            spark=spark or SparkSettings(**nothing),
            retries=retries or Retries(**nothing),
            sources=sources,
            transforms=transforms,
            sinks=sinks,
        )

    def _named(self, value: Value | None, read: Callable[[str, Value], P | None]) -> dict[str, P]:
        """A map of names to parts."""
        if value is None:
            return {}
        if not isinstance(value, Block) or not value.entries:
            self.wrong(value.where, "this must be a map of names", "write a name, a colon, and its keys indented below")
            return {}
        found = {}
        for name, item in value.entries.items():
            if not keys._NAME.fullmatch(name):
                self.wrong(
                    item.where,
                    f"{name!r} is no name",
                    "use letters, digits and _, beginning with a letter: SQL must be able to say it",
                )
                continue
            made = read(name, item)
            if made is not None:
                found[name] = made
        return found

    def _part(
        self, value: Value | None, table: Mapping[str, keys.Key], kind: type[P], what: str, **more: Any
    ) -> P | None:
        if value is None:
            return None
        found = read_part(value, table, what, self.problems)
        return None if found is None else kind(**found, **more)

    # -- sources

    def _source(self, name: str, value: Value) -> Source | None:
        found = read_part(value, keys.SOURCE, "a source", self.problems)
        if found is None or not exactly_one(
            found, ("topic", "pattern", "files", "table"), value.where, "a source", self.problems
        ):
            return None
        found |= self._node_parts(value)
        is_topic = "topic" in found or "pattern" in found
        self._only_for(found, ("value", "start", "bootstrap"), is_topic, "a topic")
        self._only_for(found, ("format", "schema", "schema_file"), "files" in found, "files")
        self._only_for(found, ("static",), not is_topic, "files or a table")
        if "value" in found:
            found["value"] = self._value_format(found["value"])
        found["schema_file"] = self._path(found, "schema_file")
        if "files" in found:
            self._file_source(found)
            found["files"] = self._address(found["files"])
        return Source(name=name, **found)

    def _file_source(self, found: dict[str, Any]) -> None:
        where = found["at"]["files"]
        if "format" not in found:
            self.wrong(where, "the files' format is missing", "add `format:`, such as format: json")
        elif found["format"] not in SCHEMALESS and not found.get("schema") and not found["schema_file"]:
            self.wrong(
                where,
                "the files' schema is missing, which streams need before there are files",
                "add `schema:`, such as schema: id BIGINT, at TIMESTAMP",
            )
        address = self._address(found["files"])
        if "://" not in address and not _folder_of(Path(address)).exists():
            self.wrong(
                where,
                f"there is no folder {_folder_of(Path(address))}",
                "create it, or correct the path; it is relative to the spec's folder",
            )

    def _value_format(self, value: Value) -> ValueFormat | None:
        if isinstance(value, Scalar):
            value = Block(value.where, {"format": value})
        made = self._part(value, keys.VALUE, ValueFormat, "value")
        if made is None:
            return None
        made = replace(made, schema_file=self._path({"at": made.at, "schema_file": made.schema_file}, "schema_file"))
        given = [key for key in ("schema", "schema_file", "registry") if getattr(made, key) is not None]
        if made.format in TYPED and not given:
            self.wrong(
                made.where, f"{made.format} values need a schema", "add `schema:`, `schema_file:` or `registry:`"
            )
        if len(given) > 1:
            self.wrong(made.place(given[1]), f"both {given[0]} and {given[1]} are given", "keep one")
        if made.dead_letters is not None and made.on_error == "fail":
            if "on_error" in made.at:
                self.wrong(
                    made.place("on_error"),
                    "dead_letters is set, but on_error says fail",
                    "write on_error: dead-letter, or drop dead_letters",
                )
            made = replace(made, on_error="dead-letter")
        elif made.on_error == "dead-letter" and made.dead_letters is None:
            self.wrong(made.place("on_error"), "there is no topic for dead letters", "add `dead_letters: TOPIC`")
        return made

    def _node_parts(self, value: Value) -> dict[str, Any]:
        assert isinstance(value, Block)
        parts: dict[str, Any] = {}
        if "watermark" in value.entries:
            parts["watermark"] = self._part(value.entries["watermark"], keys.WATERMARK, Watermark, "a watermark")
        if "expect" in value.entries:
            parts["expect"] = self._expectations(value.entries["expect"])
        return parts

    def _expectations(self, value: Value) -> tuple[Expectation, ...]:
        if not isinstance(value, Items):
            self.wrong(
                value.where, "expect is a list", "write each as: - {name: positive, check: amount > 0, action: drop}"
            )
            return ()
        made = [self._part(item, keys.EXPECT, Expectation, "an expectation") for item in value]
        seen: set[str] = set()
        for one in made:
            if one is not None and one.name in seen:
                self.wrong(one.where, f"there are two expectations {one.name}", "give each a name of its own")
            if one is not None:
                seen.add(one.name)
        return tuple(one for one in made if one is not None)

    # -- transforms

    def _transform(self, name: str, value: Value) -> Transform | None:
        found = read_part(value, keys.TRANSFORM, "a transform", self.problems)
        if found is None or not exactly_one(
            found, ("sql", "sql_file", "python"), value.where, "a transform", self.problems
        ):
            return None
        found |= self._node_parts(value)
        self._only_for(found, ("inputs",), "python" in found, "python")
        if "python" in found:
            return self._python(name, found)
        assert isinstance(value, Block)
        if "sql" in found:
            scalar = value.entries["sql"]
            if not isinstance(scalar, Scalar) or not scalar.text.strip():
                self.wrong(scalar.where, "sql is the text of a query", "write sql: | and the query indented below")
                return None
            found |= {"sql": scalar.text, "sql_path": scalar.where.file, "sql_line": scalar.first_line}
        else:
            path = self._path(found, "sql_file")
            del found["sql_file"]
            if path is None:
                return None
            found |= {"sql": read_text(path), "sql_path": path, "sql_line": 1}
        found["sql"] = found["sql"].rstrip().removesuffix(";")
        return Transform(name=name, inputs=(), **found)

    def _python(self, name: str, found: dict[str, Any]) -> Transform | None:
        text, where = found.pop("python"), found["at"]["python"]
        file, colon, function = text.rpartition(":")
        path = self.folder / file
        if not colon or not file or not function.isidentifier():
            self.wrong(where, f"{text!r} names no function", "write file.py:function")
            return None
        if not path.is_file():
            self.wrong(where, f"there is no file {file}", "correct the path; it is relative to the spec's folder")
            return None
        try:
            tree = ast.parse(read_text(path))
        except SyntaxError as error:
            self.wrong(
                Where(path, error.lineno or 1, found["where"].key),
                f"this is no Python: {error.msg}",
                "correct the file",
            )
            return None
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        if function not in functions:
            self.wrong(where, f"{file} has no function {function}", choose(function, list(functions), "functions"))
            return None
        if is_decorated(functions[function]):
            return self._decorated(name, path, functions[function], found)
        arguments = functions[function].args
        parameters = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]
        wants_spark = "spark" in parameters
        taken = [parameter for parameter in parameters if parameter != "spark"]
        inputs = found.pop("inputs", tuple(taken))
        if len(inputs) != len(taken):
            self.wrong(
                found["at"]["inputs"],
                f"{function} takes {len(taken)} inputs, {len(inputs)} are given",
                f"name one for each of: {', '.join(taken)}",
            )
        return Transform(
            name=name, inputs=tuple(inputs), python_path=path, function=function, wants_spark=wants_spark, **found
        )

    def _decorated(self, name: str, path: Path, function: ast.FunctionDef, found: dict[str, Any]) -> Transform:
        """What it reads must be literal in its text; names that are no parts of the spec are tables of the catalog."""
        given = found.pop("inputs", None)
        reads = tables_read(function) if given is None else given
        made = Transform(
            name=name, inputs=tuple(reads), python_path=path, function=decorated_name(function), decorated=True, **found
        )
        return made

    # -- sinks

    def _sink(self, name: str, value: Value) -> Sink | None:
        found = read_part(value, keys.SINK, "a sink", self.problems)
        if found is None:
            return None
        if "jdbc" in found:
            found["jdbc_table"] = found.pop("table", None)
            if found["jdbc_table"] is None:
                self.wrong(value.where, "the database's table is missing", "add `table:`")
                return None
        kinds = ("topic", "files", "jdbc", "console") if "jdbc" in found else ("topic", "files", "table", "console")
        if not exactly_one(found, kinds, value.where, "a sink", self.problems):
            return None
        self._only_for(
            found,
            ("key", "value", "headers", "create_partitions", "delivery", "bootstrap"),
            "topic" in found,
            "a topic",
        )
        self._only_for(found, ("driver", "user", "password"), "jdbc" in found, "jdbc")
        self._only_for(found, ("format", "partition_by"), "files" in found or "table" in found, "files or a table")
        if isinstance(found.get("value"), Block):
            found["value"] = self._value_format(found["value"])
        elif "value" in found:
            found["value"] = found["value"].text if isinstance(found["value"], Scalar) else None
        if "files" in found:
            self._file_sink(found)
        if "table" in found:
            found.setdefault("format", "parquet")
        return Sink(name=name, **found)

    def _file_sink(self, found: dict[str, Any]) -> None:
        found["files"] = self._address(found["files"])
        found.setdefault("format", "parquet")
        if found["format"] == "iceberg":
            self.wrong(
                found["at"]["format"],
                "Iceberg knows tables, not folders",
                "write `table: catalog.database.name` in place of files",
            )
        if found.get("mode", "append") != "append" and found["format"] != "delta":
            self.wrong(
                found["at"]["mode"],
                f"files can only be appended to, not written in mode {found['mode']}",
                "drop `mode:` and give the aggregation a watermark",
            )

    # -- the whole

    def _only_for(self, found: Mapping[str, Any], wanted: tuple[str, ...], fits: bool, what: str) -> None:
        for key in wanted:
            if key in found["at"] and not fits:
                self.wrong(found["at"][key], f"this is only for {what}", "remove it")

    def _same_names(self, sources: Mapping[str, Source], transforms: Mapping[str, Transform]) -> None:
        seen: dict[str, Where] = {}
        for node in [*sources.values(), *transforms.values()]:
            first = seen.setdefault(node.name.lower(), node.where)
            if first is not node.where:
                self.wrong(
                    node.where,
                    f"there is another {node.name} on line {first.line}",
                    "give one of them another name: SQL does not see upper and lower case",
                )

    def _check_inputs(
        self,
        sources: Mapping[str, Source],
        transforms: dict[str, Transform],
        sinks: Mapping[str, Sink],
        declared: set[str],
    ) -> None:
        by_lower = {name.lower(): name for name in declared}
        for name, transform in transforms.items():
            if transform.sql is not None:
                transforms[name] = replace(transform, inputs=self._sql_inputs(transform, by_lower))
                continue
            if transform.decorated:
                transforms[name] = replace(
                    transform, inputs=tuple(read for read in transform.inputs if read in declared)
                )
                continue
            for read in transform.inputs:
                if read not in declared:
                    self.wrong(
                        transform.place("inputs" if "inputs" in transform.at else "python"),
                        f"{transform.function} reads {read}, which is no source or transform",
                        choose(read, sorted(declared), "sources and transforms"),
                    )
        cycle = cycle_in({name: transform.inputs for name, transform in transforms.items()})
        if cycle:
            self.wrong(
                transforms[cycle[0]].where,
                f"this reads itself: {' -> '.join([*cycle, cycle[0]])}",
                "let one of them read a source instead",
            )
        nodes: dict[str, Node] = {**sources, **transforms}
        for sink in sinks.values():
            self._check_from(sink, nodes, declared)

    def _sql_inputs(self, transform: Transform, by_lower: Mapping[str, str]) -> tuple[str, ...]:
        assert transform.sql is not None and transform.sql_path is not None
        found = []
        for table in tables_of(transform.sql):
            known = by_lower.get(table.parts[0].lower()) if len(table.parts) == 1 else None
            if known is not None:
                found.append(known)
            elif len(table.parts) == 1:
                where = Where(transform.sql_path, transform.sql_line + table.line - 1, transform.where.key)
                self.wrong(
                    where,
                    f"{table.parts[0]!r} is no source or transform",
                    choose(table.parts[0], sorted(by_lower.values()), "sources and transforms")
                    + " (write tables of Spark's catalog as database.table)",
                )
        return tuple(dict.fromkeys(found))

    def _check_from(self, sink: Sink, nodes: Mapping[str, Node], declared: set[str]) -> None:
        if sink.input not in declared:
            self.wrong(
                sink.place("from"),
                f"{sink.from_!r} is no source or transform",
                choose(sink.input, sorted(declared), "sources and transforms"),
            )
            return
        node = nodes.get(sink.input)
        if node is not None and sink.takes_rejected and not any(one.action == DROP for one in node.expect):
            self.wrong(
                sink.place("from"),
                f"{sink.input} drops no rows, so there is no {sink.input}{REJECTED}",
                f"give {sink.input} an expectation with action: drop",
            )

    def _path(self, found: Mapping[str, Any], key: str) -> Path | None:
        given = found.get(key)
        if given is None:
            return None
        path = self.folder / str(given)
        if not path.is_file():
            self.wrong(
                found["at"][key], f"there is no file {given}", "correct the path; it is relative to the spec's folder"
            )
            return None
        return path

    def _address(self, given: str) -> str:
        """A path relative to the spec's folder made whole; addresses of other file systems stay."""
        return given if "://" in given else str((self.folder / Path(given).expanduser()).absolute())


def _entries(value: Value | None) -> Mapping[str, Value]:
    return value.entries if isinstance(value, Block) else {}


def _folder_of(path: Path) -> Path:
    """The deepest folder above any wildcard."""
    while any(mark in str(path) for mark in "*?[{"):
        path = path.parent
    return path
