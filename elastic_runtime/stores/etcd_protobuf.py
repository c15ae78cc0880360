"""Makes the messages and stubs of `etcd3` usable beside any protobuf.

The files that etcd3 0.12 ships were generated for protobuf before 4, and a current one refuses to run them. The
descriptors in them are sound, though: they are read from the source text and built anew, in a pool of their own, so
that no other package's `rpc.proto` is in the way. Nothing is asked of the environment, and no version of protobuf of
anybody.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from elastic_runtime.stores import etcd_grpc

_PACKAGE = "etcd3.etcdrpc"
_FILES = ("kv_pb2", "auth_pb2", "rpc_pb2")  # each before those that refer to it
_RUNS_OLD_CODE = 4  # the first major version of protobuf that does not

_loading = threading.Lock()


def load() -> Any:
    """The module `etcd3.etcdrpc`: message classes and stubs. Raises ImportError if etcd3 is not installed."""
    with _loading:
        etcd_grpc.load()  # before etcd3 does it
        if _PACKAGE not in sys.modules and not _runs_old_code():
            _place_messages()
        return importlib.import_module(_PACKAGE)


def _runs_old_code() -> bool:
    version = str(importlib.import_module("google.protobuf").__version__)
    return int(version.partition(".")[0]) < _RUNS_OLD_CODE


def _place_messages() -> None:
    """Put modules with the messages where etcd3 is going to look for its own, unless its own are newer than that."""
    spec = importlib.util.find_spec("etcd3")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the package etcd3 is not installed", name="etcd3")
    folder = Path(spec.origin).parent / "etcdrpc"
    files = {name: _serialized((folder / f"{name}.py").read_text()) for name in _FILES}
    if all(files.values()):
        pool = importlib.import_module("google.protobuf.descriptor_pool").DescriptorPool()
        for name, serialized in files.items():
            sys.modules[f"{_PACKAGE}.{name}"] = _module(f"{_PACKAGE}.{name}", pool.AddSerializedFile(serialized), pool)


def _serialized(source: str) -> bytes | None:
    """The serialized descriptor that an old generated file contains: `serialized_pb=_b('...')`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb":
            literal = node.value.args[0] if isinstance(node.value, ast.Call) else node.value
            if isinstance(literal, ast.Constant) and isinstance(literal.value, str | bytes):
                return literal.value if isinstance(literal.value, bytes) else literal.value.encode("latin-1")
            return None  # it stands for a file that is without one, such as the options of old ones
    return None


def _module(name: str, added: Any, pool: Any) -> ModuleType:
    """What a generated file would define: a class for each message, a wrapper and the values of each enum."""
    message_factory = importlib.import_module("google.protobuf.message_factory")
    wrappers = importlib.import_module("google.protobuf.internal.enum_type_wrapper")
    file = added if added is not None else pool.FindFileByName(name.rpartition(".")[2].replace("_pb2", ".proto"))
    module = ModuleType(name)
    names: dict[str, Any] = {"DESCRIPTOR": file}
    for message, descriptor in file.message_types_by_name.items():
        names[message] = message_factory.GetMessageClass(descriptor)
    for enum, descriptor in file.enum_types_by_name.items():
        names[enum] = wrappers.EnumTypeWrapper(descriptor)
        names.update({value.name: value.number for value in descriptor.values})
    vars(module).update(names)
    return module
