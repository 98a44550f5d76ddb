"""Protobuf schemas: .proto texts compiled by protoc, compiled descriptors, and the messages in them."""

import base64
import binascii
import importlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from headrace.client.registry.errors import SchemaRefused
from headrace.client.registry.wire import message_path

MAIN_FILE = "value.proto"
COMPILE_LIMIT_S = 60.0
WELL_KNOWN = "google/protobuf/"


class Messages:
    """A compiled schema and the message in it that values are. Picklable."""

    def __init__(self, files: bytes, name: str) -> None:
        self.files = files
        self.name = name
        self._class: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files, "name": self.name, "_class": None}

    @property
    def message(self) -> Any:
        """The message's class."""
        if self._class is None:
            self._class = message_factory.GetMessageClass(pool_of(self.files).FindMessageTypeByName(self.name))
        return self._class

    def indexes(self) -> bytes:
        """Confluent's path to the message within its file."""
        return message_path(path_of(self.message.DESCRIPTOR))


def pool_of(files: bytes) -> Any:
    """Descriptors of their own: two versions of one message do not get in each other's way."""
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(files).file:
            pool.Add(file)
    except TypeError as error:
        raise SchemaRefused(f"the schema is incomplete: {error}") from None
    return pool


def path_of(descriptor: Any) -> list[int]:
    """The indexes of a message and of those around it, outermost first."""
    path: list[int] = []
    while descriptor is not None:
        parent = descriptor.containing_type
        beside = descriptor.file.message_types_by_name if parent is None else parent.nested_types_by_name
        path.insert(0, list(beside).index(descriptor.name))
        descriptor = parent
    return path


def name_at(files: bytes, path: Sequence[int]) -> str:
    """The full name of the message at a path in the main file. Raises ValueError."""
    main = descriptor_pb2.FileDescriptorSet.FromString(files).file[-1]
    names, messages = [main.package] if main.package else [], main.message_type
    for index in path:
        if not 0 <= index < len(messages):
            raise ValueError(f"the schema has no message at {list(path)}")
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def is_compiled(given: bytes) -> bool:
    """Whether these bytes are a descriptor set; a text that begins with an empty line looks like one at first."""
    try:
        found = descriptor_pb2.FileDescriptorSet.FromString(given)
    except DecodeError:
        return False
    return bool(found.file) and all(file.name for file in found.file)


def message_name(files: bytes, name: str | None, origin: str, option: str = "message=") -> str:
    """The full name of the wanted message, or of the only one in the last file, which is the main one."""
    found = list(descriptor_pb2.FileDescriptorSet.FromString(files).file)
    main = found[-1]
    scope = f"{main.package}." if main.package else ""
    names: list[str] = [scope + message.name for message in main.message_type]
    if not names:
        raise SchemaRefused(f"{origin} defines no message")
    if name is None:
        if len(names) > 1:
            raise SchemaRefused(
                f"{origin} defines {len(names)} messages ({', '.join(names)}): set {option} to one of them"
            )
        return names[0]
    everything: list[str] = [full for file in found for full in _all_names(file.package, file.message_type)]
    for one in everything:
        if one == name or one == scope + name:
            return one
    raise SchemaRefused(f"{option} is {name!r}, but {origin} defines {', '.join(everything)}: set one of them")


def _all_names(scope: str, messages: Any) -> Iterator[str]:
    for message in messages:
        full = f"{scope}.{message.name}" if scope else message.name
        if not message.options.map_entry:
            yield full
            yield from _all_names(full, message.nested_type)


# -- texts


def compile_proto(text: str, parts: Sequence[tuple[str, str]], origin: str, folder: Path | None = None) -> bytes:
    """A descriptor set of a schema and what it imports, the main file last. Raises SchemaRefused.

    Texts are .proto files, or descriptors in base64, as generated classes are registered with. `parts` are imported by
    their names, other files from `folder`.
    """
    described = _described(text)
    if described is not None:
        return _assembled(described, parts, origin)
    try:
        import grpc_tools  # type: ignore[import-untyped]
    except ImportError:
        raise SchemaRefused(
            "compiling a .proto needs protoc: pip install grpcio-tools, or give a descriptor set made by "
            "protoc --include_imports --descriptor_set_out"
        ) from None
    with tempfile.TemporaryDirectory(prefix="headrace-proto-") as work:
        root = Path(work)
        for name, content in (*parts, (MAIN_FILE, text)):
            path = root / name
            if not path.resolve().is_relative_to(root.resolve()):
                raise SchemaRefused(f"{origin} refers to {name!r}, which is no plain file name")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        known = Path(grpc_tools.__file__).parent / "_proto"
        return _protoc([root, *([] if folder is None else [folder]), known], root / "set.bin", origin)


def _protoc(folders: Sequence[Path], out: Path, origin: str) -> bytes:
    """protoc's own words when it does not compile."""
    command = [sys.executable, "-m", "grpc_tools.protoc", *(f"-I{folder}" for folder in folders), "--include_imports"]
    try:
        done = subprocess.run(
            [*command, f"--descriptor_set_out={out}", MAIN_FILE],
            capture_output=True,
            text=True,
            timeout=COMPILE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SchemaRefused(f"{origin} was not compiled within {COMPILE_LIMIT_S:g} s") from None
    if done.returncode:
        lines = [line.partition(f"{MAIN_FILE}:")[2] for line in done.stderr.splitlines() if f"{MAIN_FILE}:" in line]
        reasons = [f"line {line}" for line in lines if line[:1].isdecimal()] or lines or [done.stderr.strip()]
        raise SchemaRefused(f"{origin} does not compile: {'; '.join(reasons[:3])}")
    return out.read_bytes()


def _described(text: str) -> Any:
    """The descriptor that a text in base64 stands for; None of a .proto text."""
    try:
        found = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    return found if found.name or found.message_type else None


def _assembled(main: Any, parts: Sequence[tuple[str, str]], origin: str) -> bytes:
    found = descriptor_pb2.FileDescriptorSet()
    seen: set[str] = set()

    def add(file: Any) -> None:
        for name in file.dependency:
            if name.startswith(WELL_KNOWN) and name not in seen:
                seen.add(name)
                well_known = descriptor_pb2.FileDescriptorProto()
                _well_known(name, origin).CopyToProto(well_known)
                add(well_known)
        found.file.append(file)

    for name, text in parts:
        part = _described(text)
        if part is None:
            compiled = descriptor_pb2.FileDescriptorSet.FromString(compile_proto(text, parts, f"reference '{name}'"))
            part = compiled.file[-1]
        part.name = name
        add(part)
    main.name = main.name or MAIN_FILE
    add(main)
    return bytes(found.SerializeToString())


def _well_known(name: str, origin: str) -> Any:
    try:
        return importlib.import_module(f"google.protobuf.{Path(name).stem}_pb2").DESCRIPTOR
    except ImportError:
        raise SchemaRefused(f"{origin} imports {name!r}, which is not known") from None


def text_of_file(descriptor: Any) -> str:
    """A file of generated code as registries take it: its descriptor in base64."""
    return base64.b64encode(descriptor.serialized_pb).decode()
