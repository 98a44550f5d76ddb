"""The kernels as machine code: compiled by numba once per machine, kept on disk, loaded by llvmlite alone.

Importing numba takes over a second, which every Spark worker would pay before its first row; loading the finished code
takes a tenth of it. Without numba and llvmlite `load` returns None and `decode_python` and `encode_python` do the work.
"""

import ctypes
import fcntl
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

from headrace.client.columnar import kernels

FORMAT = 2
"""Raised when `_compile` changes."""
_SEPARATOR = b"\n--headrace--\n"

Kernel = Callable[..., int]


class Native:
    """The compiled kernels. Arguments are addresses and integers; a call lets go of the interpreter lock."""

    __slots__ = ("_engine", "encode", "gather", "headers", "partition", "scan", "survey")

    def __init__(self, engine: Any, addresses: dict[str, int]) -> None:
        # The engine owns the memory that the code lies in.
        self._engine = engine
        self.survey = _callable(addresses["survey"], "survey")
        self.scan = _callable(addresses["scan"], "scan")
        self.headers = _callable(addresses["headers"], "headers")
        self.gather = _callable(addresses["gather"], "gather")
        self.encode = _callable(addresses["encode"], "encode")
        self.partition = _callable(addresses["partition"], "partition")


def _callable(address: int, name: str) -> Kernel:
    arguments = [ctypes.c_void_p if kind.endswith("*") else ctypes.c_int64 for kind in kernels.SIGNATURES[name].split()]
    return ctypes.CFUNCTYPE(ctypes.c_int64, *arguments)(address)


@cache
def load() -> Native | None:
    """The compiled kernels, or None where numba is missing. HEADRACE_NATIVE=0 leaves them out."""
    if os.environ.get("HEADRACE_NATIVE") == "0":
        return None
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return None
    code = _kept(llvm)
    if code is None:
        with _alone(_path(llvm)):
            # Whoever was here before has most likely compiled it.
            code = _kept(llvm)
            if code is None:
                try:
                    code = _compile()
                except ImportError:
                    return None
                _keep(llvm, code)
    return _link(llvm, code)


def is_ready() -> bool:
    """Whether `load` would be quick: the code is loaded already or lies on disk."""
    if load.cache_info().currsize:
        return load() is not None
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return False
    path = _path(llvm)
    return path is not None and path.exists()


def _compile() -> dict[str, tuple[str, bytes]]:
    """Kernel -> the name of its symbol and its object file."""
    from numba import cfunc, njit, types

    kinds = {
        "i": types.int64,
        "u8*": types.CPointer(types.uint8),
        "i32*": types.CPointer(types.int32),
        "i64*": types.CPointer(types.int64),
    }
    namespace = dict(vars(kernels)) | {"copy": _copy()}
    for name in reversed(kernels.HELPERS):
        namespace[name] = njit(_rebound(name, namespace), error_model="numpy", inline="always")
    found = {}
    for name, arguments in kernels.SIGNATURES.items():
        signature = types.int64(*(kinds[kind] for kind in arguments.split()))
        compiled = cfunc(signature, error_model="numpy")(_rebound(name, namespace))
        state = compiled._library.serialize_using_object_code()
        found[name] = compiled.native_name, state[2][0]
    return found


def _copy() -> Any:
    """kernels.copy as a call of memcpy: numba's own loop takes twice as long for a hundred bytes."""
    from numba import types
    from numba.core.cgutils import raw_memcpy
    from numba.extending import intrinsic

    @intrinsic  # type: ignore[untyped-decorator]
    def copy(context: Any, out: Any, to: Any, src: Any, at: Any, size: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            out, to, src, at, size = arguments
            raw_memcpy(builder, builder.gep(out, [to]), builder.gep(src, [at]), size, 1)
            return context.get_dummy_value()

        return types.void(out, to, src, at, size), generate

    return copy


def _rebound(name: str, namespace: dict[str, Any]) -> FunctionType:
    """A kernel whose helpers are the compiled ones."""
    return FunctionType(getattr(kernels, name).__code__, namespace, name)


def _link(llvm: Any, code: dict[str, tuple[str, bytes]]) -> Native:
    for start in ("initialize", "initialize_native_target", "initialize_native_asmprinter"):
        try:
            getattr(llvm, start)()
        except RuntimeError:
            # llvmlite does `initialize` by itself from 0.45 on and refuses the call.
            continue
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    for _, data in code.values():
        engine.add_object_file(llvm.ObjectFileRef.from_data(data))
    engine.finalize_object()
    return Native(engine, {name: engine.get_function_address(symbol) for name, (symbol, _) in code.items()})


# -- on disk


def _path(llvm: Any) -> Path | None:
    """Machine code fits one processor, one compiler and one source; all three are in its name."""
    digest = hashlib.sha256()
    parts = (str(FORMAT), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten(), str(llvm.llvm_version_info))
    for part in parts:
        digest.update(part.encode())
    digest.update(Path(kernels.__file__).read_bytes())
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = Path(base) if base else Path.home() / ".cache"
    except RuntimeError:
        return None
    return folder / "headrace" / f"kernels-{digest.hexdigest()[:24]}.bin"


@contextmanager
def _alone(path: Path | None) -> Iterator[None]:
    """One process compiles, others wait for it: the first tasks of a machine would all do the same for seconds."""
    try:
        if path is None:
            raise OSError
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_suffix(".lock").open("w")
    except OSError:  # a read-only home
        yield
        return
    with lock:  # the system lets go of it with the process, however it ends
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _kept(llvm: Any) -> dict[str, tuple[str, bytes]] | None:
    path = _path(llvm)
    if path is None:
        return None
    try:
        # Code that another user could have put there is not run.
        if path.stat().st_uid != os.getuid():
            return None
        data = path.read_bytes()
    except OSError:
        return None
    digest, _, rest = data.partition(b"\n")
    if hashlib.sha256(rest).hexdigest().encode() != digest:
        return None
    found = {}
    for part in rest.split(_SEPARATOR):
        name, symbol, code = part.split(b"\n", 2)
        found[name.decode()] = symbol.decode(), code
    return found


def _keep(llvm: Any, code: dict[str, tuple[str, bytes]]) -> None:
    path = _path(llvm)
    if path is None:
        return
    rest = _SEPARATOR.join(
        b"%s\n%s\n%s" % (name.encode(), symbol.encode(), data) for name, (symbol, data) in code.items()
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest)
        Path(file.name).replace(path)
    except OSError:
        # A read-only home: the next process compiles again.
        return
