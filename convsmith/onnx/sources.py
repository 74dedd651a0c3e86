"""`ModelSource`: an ONNX model as it was given, with the elements of its large tensors beside the protocol buffer.

A protocol buffer is written with at most 2 GB, also where the package `onnx` infers shapes, and copies the bytes of a
tensor at each access. Elements that take part in neither are held once, as arrays.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convsmith.diag.errors import UnsupportedError, UsageError
from convsmith.diag.forking import import_lock
from convsmith.diag.printable import printable
from convsmith.diag.record import record
from convsmith.onnx.checks import array_of, check_model, element_type
from convsmith.runtime.arrays import Array

__all__ = ["EXTRA", "ModelSource", "model_source", "onnx_package"]

EXTRA = "pip install 'convsmith[onnx]' brings it"
"""The end of a message about missing packages: the command that installs them."""

_LARGEST_SHAPES = 512
"""Elements of the largest initializer that may state a shape, which inference reads."""
_FIELDS = ("raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data", "external_data")
"""Fields of a tensor that have its elements, or say where they are."""


@record(frozen=True)
class ModelSource:
    """A model named ``name``. Initializers in ``held`` have no elements in ``proto``, which is never changed."""

    proto: Any
    name: str
    held: Mapping[str, Array]


def model_source(source: Any, with_data: bool = False) -> ModelSource:
    """Return the model in the file ``source``, in the bytes ``source``, or the `onnx.ModelProto` ``source`` itself.

    ``with_data`` also reads constants from separate files next to the model. UsageError if it is no model;
    UnsupportedError without the package `onnx`.
    """
    proto, name = _proto(source)
    onnx = onnx_package(name)
    held = _taken_out(proto, name, os.path.dirname(name) if with_data and _is_path(source) else None)
    check_model(name, proto, onnx.defs.onnx_opset_version())
    try:
        if proto.functions:
            proto = onnx.inliner.inline_local_functions(proto)
    except Exception as error:
        raise UsageError(f"{name}: is no ONNX model: {printable(str(error))}", code="bad-file") from None
    kept = type(proto)()  # without the memory of what was taken out, which a message keeps
    kept.CopyFrom(proto)
    return ModelSource(kept, name, held)


def _is_path(source: Any) -> bool:
    return isinstance(source, str | os.PathLike)


def _proto(source: Any) -> tuple[Any, str]:
    """Return a model as a protocol buffer of its own, and its name."""
    if isinstance(source, bytes):
        proto = _parsed("model", source)
        return proto, printable(proto.graph.name) or "model"
    if not _is_path(source):
        if not isinstance(source, onnx_package("model").ModelProto):
            message = f"model: expected a path, bytes or an onnx.ModelProto, got {type(source).__name__}"
            raise UsageError(message, code="bad-model")
        proto = type(source)()
        proto.CopyFrom(source)
        return proto, printable(proto.graph.name) or "model"
    name = os.fspath(source)
    try:
        content = Path(name).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{name}: cannot be read: {why}", code="bad-file") from None
    return _parsed(name, content), name


def _parsed(name: str, content: bytes) -> Any:
    """Return the model of ``content``, a protocol buffer. UsageError about ``name`` if it is none."""
    try:
        return onnx_package(name).load_model_from_string(content)
    except UnsupportedError:
        raise
    except Exception as error:
        raise UsageError(f"{name}: is no ONNX model: {printable(str(error))}", code="bad-file") from None


def _taken_out(proto: Any, name: str, folder: str | None) -> dict[str, Array]:
    """Remove the elements of large initializers from a model, and return them by name; those in other files are read
    from a ``folder``, if it is given, and small ones become part of the model.
    """
    onnx = onnx_package(name)
    held: dict[str, Array] = {}
    for tensor in proto.graph.initializer:
        is_elsewhere = tensor.data_location == tensor.EXTERNAL
        if _count(tensor) <= _LARGEST_SHAPES or not isinstance(tensor.name, str) or (is_elsewhere and folder is None):
            continue
        found = _read(tensor, name, folder, onnx) if is_elsewhere and folder is not None else None
        held[tensor.name] = array_of(name, tensor, onnx) if found is None else found
        for field in _FIELDS:
            tensor.ClearField(field)
        tensor.ClearField("data_location")
    if folder is not None:
        _load(onnx.external_data_helper.load_external_data_for_model, proto, name, folder)
    return held


def _read(tensor: Any, name: str, folder: str, onnx: Any) -> Array:
    """Return the elements of a tensor from a file in a folder, whose name the package `onnx` checks."""
    alone = type(tensor)()  # a message keeps the memory of each value that a part of it had
    alone.CopyFrom(tensor)
    load = onnx.external_data_helper.load_external_data_for_tensor
    dtype = element_type(name, tensor.data_type, onnx)
    own, size = {x.key: x.value for x in tensor.external_data}, _count(tensor) * dtype.itemsize
    if own.get("length") == str(size):
        for entry in alone.external_data:
            entry.value = "0" if entry.key == "length" else entry.value
        _load(load, alone, name, folder)
        path, start = os.path.join(folder, own["location"]), int(own.get("offset", 0))
        if os.path.getsize(path) >= start + size:
            read = np.fromfile(path, np.uint8, size, offset=start)
            read.flags.writeable = False
            return read.view(dtype).reshape(tuple(tensor.dims))
        alone.CopyFrom(tensor)
    _load(load, alone, name, folder)
    return array_of(name, alone, onnx)


def _load(load: Any, message: Any, name: str, folder: str | None) -> None:
    """Read the elements that a message has in files of a folder. UsageError about the model ``name``."""
    try:
        load(message, folder)
    except Exception as error:
        why = printable(str(error))
        raise UsageError(f"{name}: the file of its weights cannot be read: {why}", code="bad-file") from None


def _count(tensor: Any) -> int:
    """Return the number of elements that a tensor states; texts do not count."""
    count = int(tensor.data_type != tensor.STRING)
    for size in tensor.dims:
        count *= size
    return count


def onnx_package(name: str) -> Any:
    """Return the package `onnx`. UnsupportedError about the model ``name`` if it is not installed."""
    with import_lock:
        try:
            import onnx
            import onnx.external_data_helper
            import onnx.inliner
        except ImportError:
            raise UnsupportedError(f"{name}: reading a model needs the package onnx: {EXTRA}", code="no-onnx") from None
    return onnx
