"""Operators of ONNX that ONNX itself states by others: the nodes of their bodies, which a reader reads in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from convsmith.diag.forking import import_lock

__all__ = ["Body", "body_of", "operators_with_bodies"]

Body = tuple[Sequence[Any], Sequence[Any]]
"""The nodes of a body, and the versions of operators that it uses."""


def body_of(
    proto: Any, opsets: Sequence[Any], type_of: Callable[[str], Any], fresh: Callable[[str], str]
) -> Body | None:
    """Return the body of the node `proto` of a model that uses the versions `opsets`; None if ONNX states none.

    `type_of` returns the type of an input by name as an `onnx.TypeProto`, `fresh` a name that no value has.
    """
    with import_lock:
        import onnx
        from onnx import defs

    schema: Any
    versions = {x.domain: x.version for x in opsets}
    try:
        schema = defs.get_schema(proto.op_type, versions.get("", defs.onnx_opset_version()), "")
    except Exception:  # no operator of ONNX, or none of that version
        return None
    made = onnx.FunctionProto()
    if schema.has_context_dependent_function:
        types = [(type_of(x) if x else onnx.TypeProto()).SerializeToString() for x in proto.input]
        try:
            made.ParseFromString(schema.get_context_dependent_function(proto.SerializeToString(), types))
        except Exception:  # attributes, or types, that the operator does not have
            return None
    elif schema.has_function:
        made.CopyFrom(schema.function_body)
    if not made.node:
        return None
    return _renamed(made, proto, fresh), list(made.opset_import)


def operators_with_bodies() -> set[str]:
    """Return the operators of ONNX, by name, that have a body in their newest version."""
    with import_lock:
        from onnx import defs

    schemas: Any = defs.get_all_schemas()
    return {x.name for x in schemas if not x.domain and (x.has_function or x.has_context_dependent_function)}


def _renamed(body: Any, proto: Any, fresh: Callable[[str], str]) -> Sequence[Any]:
    """Return the nodes of a body with the names of the values of the node `proto`, and its attributes."""
    names: dict[str, str] = {"": ""}
    for inner, outer in (*_pairs(body.input, proto.input), *_pairs(body.output, proto.output)):
        if outer or inner in body.input:
            names[inner] = outer
    given = _attributes(body, proto)

    def named(nodes: Sequence[Any], names: dict[str, str]) -> Sequence[Any]:
        made = []
        for node in nodes:
            copy = type(node)()
            copy.CopyFrom(node)
            for name in node.output:
                names.setdefault(name, fresh(proto.output[0] or proto.op_type))
            copy.input[:] = [names[x] for x in node.input]
            copy.output[:] = [names[x] for x in node.output]
            del copy.attribute[:]
            for a in node.attribute:
                if not a.ref_attr_name:
                    copy.attribute.append(a)
                elif a.ref_attr_name in given:
                    copy.attribute.append(given[a.ref_attr_name])
                    copy.attribute[-1].name = a.name
            for a in copy.attribute:
                if a.HasField("g"):  # a branch, which reads the values around it, or a loop with inputs of its own
                    inner = {**names, **{x.name: x.name for x in (*a.g.input, *a.g.initializer)}}
                    renamed = named(a.g.node, inner)
                    a.g.ClearField("node")
                    a.g.node.extend(renamed)
                    for value in a.g.output:
                        value.name = inner[value.name]
            made.append(copy)
        return made

    return named(body.node, names)


def _pairs(inner: Sequence[str], outer: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(inner, [*outer, *[""] * len(inner)]))


def _attributes(body: Any, proto: Any) -> Mapping[str, Any]:
    """Return the attributes of the node, and the defaults of others."""
    with import_lock:
        from onnx import defs

    schema = defs.get_schema(proto.op_type, "")
    defaults = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
    return {**defaults, **{a.name: a for a in body.attribute_proto}, **{a.name: a for a in proto.attribute}}
